"""Captions that are drawn: what each of the two generators is asked, what it costs, and nothing is
paid twice.
"""

import csv
from html import unescape
from itertools import product
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from adapters.caption_then_draw import CaptionThenDraw
from adapters.glyphs import Glyphs
from adapters.http import retries
from pe.engine.execution import RunContext
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.errors import APIError, RecipeError
from pe.planning.forecast import forecast
from pe.planning.parts import price_of, set_up_generator
from pe.plugins.protocols import Answer, JobNote, RandomRequest, Refused, Usage, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.durability.driver import SameNoise, begin_or_go_on
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.job_hosts import ComfyServer, workflows
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

SIDE = 16
LABELS = ("3", "7")
SEEDS = np.random.default_rng(0).integers(0, 2**63, 6).astype(np.uint64)
SAMPLES = 2 * 12
"""S_0 and S_1."""
CAPTIONS: dict[str, Any] = {
    "price": {"million_tokens": {"text_in": 1000, "text_out": 4000}, "call": 0.5},
    "expected_tokens": {"text_in": 10, "text_out": 30},
}
CAPTION, IMAGE = 0.5 + 0.01 + 0.12, 0.25
"""What one costs."""


def pool(path, texts="0123456789"):
    """Captions of these texts in a file, each in twelve ways."""
    ways = product(("", "small ", "large "), ("", "thin "), ("", "wide "))
    path.write_text("\n".join(f'a {"".join(way)}"{text}"' for way in ways for text in texts))
    return {"kind": "public_texts", "path": path}


def chat(url, **settings):
    given = {
        "kind": "chat",
        "base_url": f"{url}/v1",
        "key_env": None,
        "model": "m",
        "seed_field": "seed",
    }
    return given | {"prompts": "describe a {label}", "concurrency": 2} | settings


def web(url, **settings):
    given = {
        "kind": "openai_images",
        "base_url": f"{url}/v1",
        "key_env": None,
        "model": "m",
        "server": None,
    }
    return given | {"image_size": SIDE, "concurrency": 2} | settings


@pytest.fixture
def pen():
    """A server that draws, and the settings that ask it."""
    draws = Script()
    with serving(OpenAIServer(draws, side=SIDE)) as url:
        yield draws, web(url)


def recipe(folder, captions, draw, **changes):
    """Of a run over sixty drawn digits."""
    if not (folder / "private.npz").exists():
        labels, seeds = LABELS * 30, np.arange(60, dtype=np.uint64)
        images = Glyphs(size=SIDE).random_api(RandomRequest(labels, seeds)).samples.array
        np.savez(folder / "private.npz", images=images, labels=np.array(labels))
    private = {
        "kind": "npz",
        "path": folder / "private.npz",
        "size": SIDE,
        "channels": 1,
        "classes": list(LABELS),
    }
    content = {
        "private": private,
        "api": {"kind": "caption_then_draw", "captions": captions, "draw": draw},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 12, "lookahead": 0, "measure_degree": "never"},
    }
    return Recipe.parse(content | changes, "the test")


def carry_on(given, folder):
    """Begin the run, or go on with it."""
    return begin_or_go_on(given, folder / "run", RunContext(embedding=Mean(), noise=SameNoise()))


def new(api, *labels, job=None):
    seeds = SEEDS[: len(labels)]
    return api.random_api(
        RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote())
    )


def varied(api, parents, degree, *labels):
    return api.variation_api(
        VariationRequest(parents.samples, labels, parents.conditions, SEEDS[-len(labels) :], degree)
    )


def test_captions_of_a_pool_are_drawn(tmp_path, pen):
    draws, draw = pen
    api = CaptionThenDraw(captions=pool(tmp_path / "captions.txt"), draw=draw)
    answer = new(api, "3")
    lines = (tmp_path / "captions.txt").read_text().splitlines()
    caption = lines[answer.conditions["captions.pool"][0]]
    assert (
        answer.conditions["caption"].tolist()
        == [each["prompt"] for each in draws.requests]
        == [caption]
    )
    child = varied(api, answer, 0.5, "3")
    its = lines[child.conditions["captions.pool"][0]]
    assert child.conditions["caption"].tolist() == [draws.requests[1]["prompt"]] == [its]
    assert its != caption
    assert (child.usage.calls, child.usage.images) == (2, 1)
    assert varied(api, answer, 0.0, "3").usage == Usage(0)


def test_endpoints_are_asked_for_captions_and_then_for_drawings_of_them():
    writes, draws = Script(), Script()
    prompts = {"3": "a photo: {caption}", "7": ["a drawing of a {label}: {caption}"]}
    with serving(ChatServer(writes)) as one, serving(OpenAIServer(draws, side=SIDE)) as other:
        api = CaptionThenDraw(captions=chat(one), draw=web(other, prompts=prompts, n=4))
        assert api.capabilities.max_chunk == 1  # each caption is a prompt of its own
        parents, seven = new(api, "3"), new(api, "7")
        child = varied(api, parents, 0.5, "3")
    caption, its = (str(each.conditions["caption"][0]) for each in (parents, child))
    assert [each["prompt"] for each in draws.requests] == [
        f"a photo: {caption}",
        f"a drawing of a 7: {seven.conditions['caption'][0]}",
        f"a photo: {its}",
    ]
    assert all(each["parents"] is None for each in draws.requests)
    assert writes.requests[0]["messages"][-1]["content"] == "describe a 3"
    assert (
        sum(a != b for a, b in zip(caption.split(), its.split(), strict=True)) <= 15
    )  # half of the words were blanks
    assert child.conditions["captions.prompt"].tolist() == ["describe a 3"]
    tokens = {"tokens": 40 + 10, "text_in": 10 + 3, "text_out": 30, "image_out": 7}
    assert child.usage == Usage(2, 1, megapixels=SIDE * SIDE / 1e6, **tokens)


def test_what_the_generator_of_captions_refuses_is_not_drawn():
    draws = Script()
    with (
        serving(ChatServer(Script(first=("refusal",)))) as one,
        serving(OpenAIServer(draws, side=SIDE)) as other,
    ):
        api = CaptionThenDraw(captions=chat(one), draw=web(other))
        answer = new(api, "3")
    assert answer.missing == {0: Refused("captions: I can't.")}
    assert answer.samples.array.shape == (0, SIDE, SIDE, 3)
    assert draws.requests == []
    assert (answer.usage.calls, answer.usage.images, answer.usage.text_out) == (1, 0, 30)


def test_neither_captions_nor_a_drawing_that_are_noted_are_asked_for_again(tmp_path):
    writes, draws, kept = Script(), ComfyServer(), []
    with serving(ChatServer(writes)) as one, serving(draws) as other:
        images = {
            "kind": "comfyui",
            "base_url": other,
            "image_size": SIDE,
            "poll": 0.002,
            **workflows(tmp_path),
        }
        api = CaptionThenDraw(captions=chat(one), draw=images)
        first = new(api, "3", job=JobNote(keep=kept.append))
        for note in kept[::-1]:  # with the job of the drawing; then with the caption alone
            again = new(api, "3", job=JobNote(note))
            assert again.conditions["caption"].tolist() == first.conditions["caption"].tolist()
            assert again.usage.text_out == 30  # the journal has none of what a killed request cost
    assert (len(kept), len(writes.requests)) == (2, 1)
    assert draws.submitted.total() == 2  # the first, and one for the caption alone


def test_parents_of_another_generator_or_of_a_pool_that_has_changed_are_refused(tmp_path, pen):
    captions = pool(tmp_path / "captions.txt")
    parents = new(CaptionThenDraw(captions=captions, draw=pen[1]), *"37")
    pool(tmp_path / "captions.txt", "987654321")
    changed = CaptionThenDraw(captions=captions, draw=pen[1])
    with pytest.raises(
        APIError, match=r"captions\.txt holds other captions than when the run began"
    ):
        varied(changed, parents, 0.5, *"37")
    with pytest.raises(APIError, match="The parents carry no captions"):
        varied(changed, Answer(parents.samples), 0.5, *"37")


def refusal(captions, draw):
    with pytest.raises(RecipeError) as refused:
        CaptionThenDraw(captions=captions, draw=draw)
    return str(refused.value)


def test_generators_that_cannot_do_their_part_are_refused_in_a_sentence(tmp_path):
    texts, pen = pool(tmp_path / "captions.txt"), web("http://a.example")
    assert "captions: glyphs makes images. Name one that makes texts" in refusal(
        {"kind": "glyphs"}, pen
    )
    assert "draw: public_images draws from no prompts" in refusal(
        texts, {"kind": "public_images", "path": "x"}
    )
    assert "draw.prompts: 'a 7' has no {caption}" in refusal(
        texts, pen | {"prompts": {"3": "{caption}", "7": ["a 7"]}}
    )
    assert "captions: dpdm is fitted on the private records" in refusal({"kind": "dpdm"}, pen)
    assert "`captions.batch` cannot be used here" in refusal(
        chat("http://a.example", batch=50), pen
    )
    labelled = CaptionThenDraw(captions=texts, draw=pen | {"prompts": {"3": "{caption}"}})
    with pytest.raises(RecipeError, match="draw: prompts: there is none for the label '7'"):
        labelled.check_labels(["3", "7"])


def test_captions_go_with_the_samples_into_every_export_and_the_report(tmp_path, pen):
    given = recipe(
        tmp_path,
        pool(tmp_path / "captions.txt"),
        pen[1],
        evolution={"iterations": 1, "population": 8},
    )
    run = carry_on(given, tmp_path)
    captions = run.populations()[-1].conditions["caption"].tolist()
    extend_run(run.folder, 2, 0.5, RunContext())
    for form in ("folder", "parquet"):
        run.export(tmp_path / form, form)
    with (tmp_path / "folder" / "synthetic" / "labels.csv").open(encoding="utf-8") as file:
        rows = [row["caption"] for row in csv.DictReader(file)]
    assert rows[:8] == captions
    assert len(rows) == 10
    assert pq.read_table(tmp_path / "parquet" / "synthetic.parquet")["caption"].to_pylist() == rows
    assert captions[0] in unescape(write_report(run.folder).read_text(encoding="utf-8"))


def test_parents_of_captions_are_not_tried_on_drawings_from_scratch(tmp_path):
    evolution = {"iterations": 2, "population": 4, "degree": [0.9, 0.2]}
    with serving(ChatServer(Script())) as one, serving(OpenAIServer(Script(), side=SIDE)) as other:
        captions = chat(one, variation="paraphrase")
        run = carry_on(recipe(tmp_path, captions, web(other), evolution=evolution), tmp_path)
        told = recipe(
            tmp_path, captions, web(other), evolution=evolution | {"measure_degree": "always"}
        )
        planned = forecast(told, *set_up_generator(told.api)[:1])
    assert run.degree is None
    assert planned.images == 3 * 4 + 16


def test_a_caption_and_an_image_cost_what_their_prices_say(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "FIRST", 0.02)
    monkeypatch.setattr(retries, "MOST", 0.2)
    writes = Script(share=0.2, faults=("500", "dropped", "refusal"))
    draws = Script(share=0.2, faults=("503 html", "refusal"))
    with serving(ChatServer(writes)) as one, serving(OpenAIServer(draws, side=SIDE)) as other:
        captions, draw = chat(one, **CAPTIONS), web(other, price={"image": IMAGE})
        given = recipe(
            tmp_path, captions, draw, limits={"max_cost": 100}, refusals={"max_share": 1}
        )
        planned = forecast(given, *set_up_generator(given.api)[:1])
        run = carry_on(given, tmp_path)
    with read_journal(run) as journal:
        spent = journal.totals()
    assert planned.cost == pytest.approx(SAMPLES * (CAPTION + IMAGE))
    assert spent.usage.images == draws.delivered
    assert spent.usage.calls == sum(writes.seen.values()) + sum(draws.seen.values())
    assert spent.usage.text_out == 30 * writes.delivered
    asked = sum(writes.seen.values())
    cost = 0.5 * asked + (0.01 + 0.12) * writes.delivered + IMAGE * draws.delivered
    assert price_of(given).of(spent.usage) == pytest.approx(cost)
    assert spent.refusals > 0


def test_prices_of_parts_are_added_up(tmp_path):
    limits, texts, pen = (
        {"max_cost": 3},
        pool(tmp_path / "captions.txt"),
        web("http://a.example", size="16x16"),
    )
    priced = texts | {"price": {"call": 1, "image": 2}}
    price = price_of(
        recipe(tmp_path, priced, pen | {"price": {"call": 4, "megapixel": 8}}, limits=limits)
    )
    assert price.of(Usage(5, 5, cost=0.125)) == 0.125
    assert price.most_of(Usage(1, 10, megapixels=2)) == 10 * 7 + 2 * 8
    assert price.of_next(Usage(4, 2, megapixels=1.0, cost=3.0), calls=1, images=2) == 2 * 7 + 8
