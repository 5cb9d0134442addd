"""Captions that are drawn: what each of the two generators is asked, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.caption_then_draw import CaptionNote, CaptionThenDraw
from adapters.glyphs import Glyphs
from adapters.portfolio import Portfolio
from pe.data.samples import Conditions, mix
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.planning.forecast import differences
from pe.plugins.protocols import (
    Answer,
    DrawsConditions,
    Failed,
    JobNote,
    RandomRequest,
    Refused,
    Usage,
    VariationRequest,
)
from pe.recipe.schema import Recipe
from tests.adapters.captions import SIDE, chat, pool, web
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving

PEN: dict[str, Any] = {"kind": "glyphs", "size": SIDE}
SEEDS = np.random.default_rng(0).integers(0, 2**63, 6).astype(np.uint64)


def new(api: CaptionThenDraw, *labels: str, job: JobNote | None = None) -> Answer:
    seeds = SEEDS[: len(labels)]
    assert isinstance(api, DrawsConditions)
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote()))


def varied(api: CaptionThenDraw, parents: Answer, degree: float, *labels: str) -> Answer:
    return api.variation_api(
        VariationRequest(parents.samples, labels, parents.conditions, SEEDS[-len(labels) :], degree)
    )


def test_captions_of_a_pool_are_drawn_by_the_simulator(tmp_path: Path) -> None:
    api = CaptionThenDraw(captions=pool(tmp_path / "captions.txt"), draw=PEN)
    answer = new(api, *"373")
    lines = (tmp_path / "captions.txt").read_text().splitlines()
    captions = answer.conditions["caption"].tolist()
    assert captions == [lines[place] for place in answer.conditions["captions.pool"]]
    asked = RandomRequest(("3",) * 3, mix(SEEDS[:3]), Conditions({"prompt": np.array(captions)}))
    alone = Glyphs(size=SIDE, prompts="-").random_api(asked)
    np.testing.assert_array_equal(answer.samples.array, alone.samples.array)
    child = varied(api, answer, 0.5, *"373")
    assert child.conditions["caption"].tolist() == [lines[place] for place in child.conditions["captions.pool"]]
    assert child.conditions["caption"].tolist() != captions
    assert (child.usage, varied(api, answer, 0.0, *"373").usage) == (Usage(2, 3), Usage(0))


def test_endpoints_are_asked_for_captions_and_then_for_drawings_of_them() -> None:
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
    assert sum(a != b for a, b in zip(caption.split(), its.split(), strict=True)) <= 15  # half of the words were blanks
    assert child.conditions["captions.prompt"].tolist() == ["describe a 3"]
    tokens = {"tokens": 40 + 10, "text_in": 10 + 3, "text_out": 30, "image_out": 7}
    assert child.usage == Usage(2, 1, megapixels=SIDE * SIDE / 1e6, **tokens)


def test_a_request_holds_as_many_items_as_one_drawing_and_captions_come_as_they_can() -> None:
    writes = Script()
    with serving(ChatServer(writes)) as url:
        api = CaptionThenDraw(captions=chat(url, prompts='"{label}" '), draw=PEN)
        assert api.capabilities.max_chunk == 64
        answer = new(api, *"3737")
    assert len(writes.requests) == 4
    assert answer.usage is not None
    assert (answer.usage.calls, answer.usage.images) == (4 + 1, 0)  # no caption quoted a text
    why = Refused("draw: the prompt has no text of 1 to 40 characters in quotation marks")
    assert answer.missing == dict.fromkeys(range(4), why)


def test_what_the_generator_of_captions_refuses_is_not_drawn() -> None:
    draws = Script()
    with serving(ChatServer(Script(first=("refusal",)))) as one, serving(OpenAIServer(draws, side=SIDE)) as other:
        api = CaptionThenDraw(captions=chat(one), draw=web(other))
        answer = new(api, "3")
    assert answer.missing == {0: Refused("captions: I can't.")}
    assert answer.samples.array.shape == (0, SIDE, SIDE, 3)
    assert draws.requests == []
    assert answer.usage is not None
    assert (answer.usage.calls, answer.usage.images, answer.usage.text_out) == (1, 0, 30)


def test_captions_that_are_noted_are_not_asked_for_again() -> None:
    writes, draws, kept = Script(), Script(first=("refusal",)), [""]
    with serving(ChatServer(writes)) as one, serving(OpenAIServer(draws, side=SIDE)) as other:
        api = CaptionThenDraw(captions=chat(one), draw=web(other))
        first = new(api, "3", job=JobNote(keep=lambda job: kept.append(job)))
        again = new(api, "3", job=JobNote(kept[-1]))
    assert len(writes.requests) == 1
    assert [each["prompt"] for each in draws.requests] == [str(again.conditions["caption"][0])] * 2
    assert list(first.missing) == [0]
    assert again.usage is not None
    assert again.usage.text_out == 30  # the journal has none of what a killed request cost


def test_a_note_is_read_as_it_was_written() -> None:
    kept = [""]
    texts = Texts.of(["é", 'a "7"\n'], 30)
    columns = Conditions(
        {"prompt": np.array(["p", "quite"]), "pool": np.arange(2), "size": np.ones((2, 3), np.float32)}
    )
    missing = {1: Refused("no"), 3: Failed("busy", retryable=False)}
    note = CaptionNote.of(JobNote(keep=kept.append))
    note.add(np.array([0, 2, 4, 5]), Answer(texts, columns, missing, Usage(2, 2, text_out=5, cost=0.1)))
    note.drawing_job().write("job 1")
    found = CaptionNote.of(JobNote(kept[-1]))
    [(items, answer)] = found.parts
    assert items.tolist() == [0, 2, 4, 5]
    assert (answer.samples.array.dtype, answer.samples.strings) == (texts.array.dtype, texts.strings)
    assert (answer.missing, answer.usage) == (missing, Usage(2, 2, text_out=5, cost=0.1))
    assert {name: (column.dtype, column.tolist()) for name, column in answer.conditions.items()} == {
        name: (column.dtype, column.tolist()) for name, column in columns.items()
    }
    job = found.drawing_job()
    assert (job.job, job.calls) == ("job 1", 1)


def test_parents_of_another_generator_or_of_a_pool_that_has_changed_are_refused(tmp_path: Path) -> None:
    captions = pool(tmp_path / "captions.txt")
    parents = new(CaptionThenDraw(captions=captions, draw=PEN), *"37")
    pool(tmp_path / "captions.txt", "987654321")
    changed = CaptionThenDraw(captions=captions, draw=PEN)
    with pytest.raises(APIError, match=r"captions\.txt holds other captions than when the run began"):
        varied(changed, parents, 0.5, *"37")
    with pytest.raises(APIError, match="The parents carry no captions"):
        varied(changed, Answer(parents.samples), 0.5, *"37")


def refusal(captions: dict[str, Any], draw: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as refused:
        CaptionThenDraw(captions=captions, draw=draw)
    return str(refused.value)


def test_generators_that_cannot_do_their_part_are_refused_in_a_sentence(tmp_path: Path) -> None:
    texts = pool(tmp_path / "captions.txt")
    assert "captions: glyphs makes images: name one that makes texts" in refusal(PEN, PEN)
    assert "draw: public_images draws from no prompts" in refusal(texts, {"kind": "public_images", "path": "x"})
    masked = {"kind": "masked_lm", "model": "x", "prompts": "{caption}"}
    assert "draw: masked_lm makes texts: name one that makes images" in refusal(texts, masked)
    assert "draw.prompts: 'a 7' has no {caption}" in refusal(texts, PEN | {"prompts": {"3": "{caption}", "7": ["a 7"]}})
    assert "captions: dpdm is fitted on the private records" in refusal({"kind": "dpdm"}, PEN)
    assert "captions.batch is given" in refusal(chat("http://a.example", batch=50), PEN)
    several = {"kind": "portfolio", "of": [PEN, PEN]}
    assert "captions: portfolio has generators of its own" in refusal(several, PEN)
    assert "unknown key 'sise'; did you mean 'size'?" in refusal(texts, {"kind": "glyphs", "sise": 8})
    assert "unknown key 'drew'; did you mean 'draw'?" in _unknown(texts)
    with pytest.raises(RecipeError, match="portfolio: 'caption_then_draw' has generators of its own"):
        Portfolio(of=[PEN, {"kind": "caption_then_draw", "captions": texts, "draw": PEN}])
    labelled = CaptionThenDraw(captions=texts, draw=PEN | {"prompts": {"3": "{caption}"}})
    labelled.check_labels(["3"])
    with pytest.raises(RecipeError, match="draw: prompts: there is none for the label '7'"):
        labelled.check_labels(["3", "7"])
    with pytest.raises(RecipeError, match="captions: prompts: there is none for the label '7'"):
        CaptionThenDraw(captions=chat("http://a.example", prompts={"3": "x"}), draw=PEN).check_labels(["7"])


def _unknown(texts: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as refused:
        CaptionThenDraw(captions=texts, drew=PEN)
    return str(refused.value)


def test_what_it_tells_of_itself_is_what_its_parts_tell(tmp_path: Path) -> None:
    texts = pool(tmp_path / "captions.txt")
    api = CaptionThenDraw(captions=chat("http://a.example"), draw=web("http://b.example"))
    assert api.info.hosts == ("a.example", "b.example")
    assert api.info.shape == (SIDE, SIDE, 3)
    assert (api.info.by_label, api.info.distinct, api.info.modality) == (True, None, "images")
    assert api.capabilities.degree == "wording"
    assert not api.capabilities.deterministic
    assert api.describe_degree(0.25) == "the caption: 0.25 of the words are blanks to fill in; drawn anew"
    assert api.describe_degree(0.0) == "the parent itself"
    assert api.describe_wait() == ""
    here = CaptionThenDraw(captions=texts, draw=PEN)
    assert (here.info.hosts, here.info.degrees) == ((), (0.0,))
    assert here.capabilities.deterministic
    assert here.capabilities.max_chunk == 4096
    assert here.describe_degree(0.25) == "the caption: varied by it; drawn anew"


def test_each_endpoint_is_looked_at() -> None:
    with serving(ChatServer(Script())) as one, serving(OpenAIServer(Script())) as other:
        found = list(CaptionThenDraw.look({"captions": chat(one), "draw": web(other)}))
    told = " ".join(finding.what for finding in found)
    assert one.removeprefix("http://") in told
    assert other.removeprefix("http://") in told
    [none] = CaptionThenDraw.look({"captions": {"kind": "public_texts", "path": "x"}, "draw": PEN})
    assert "none of its generators has an endpoint" in none.what


def test_paths_machine_settings_and_single_keys_of_parts_are_those_of_generators(tmp_path: Path) -> None:
    text = """
private: {kind: mnist}
privacy: {epsilon: 1, delta: 1.0e-6}
api: {kind: caption_then_draw, captions: {kind: public_texts, path: pool.txt}, draw: {kind: glyphs}}
"""
    (tmp_path / "recipe.yaml").write_text(text)
    before = Recipe.load(tmp_path / "recipe.yaml")
    assert before.api.settings["captions"]["path"] == str(tmp_path.resolve() / "pool.txt")
    priced = ("api.draw.price.call=1", "limits.max_cost=3")
    assert (
        differences(before, Recipe.load(tmp_path / "recipe.yaml", ("api.captions.path=elsewhere.txt", *priced))) == []
    )
    changed = differences(before, Recipe.load(tmp_path / "recipe.yaml", ("api.draw.size=4",)))
    assert changed == ["api.draw.size: None → 4"]
