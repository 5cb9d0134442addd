"""Runs whose captions are drawn: votes move captions, prices add up, and nothing is paid for twice."""

from __future__ import annotations

import csv
import sqlite3
import time
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from adapters.glyphs import read_quote
from adapters.http import policy as policy_module
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.errors import LimitReached, RecipeError
from pe.planning.build import price_of, set_up_generator
from pe.planning.forecast import forecast
from pe.plugins.protocols import Usage
from pe.store.run import Run, purge
from pe.store.writer import read_journal
from tests.adapters.captions import LABELS, SIDE, carry_on, chat, pool, recipe, web
from tests.durability.driver import forked
from tests.durability.test_kill import shareable
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.comfy_server import ComfyServer, workflows
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

PEN: dict[str, Any] = {"kind": "glyphs", "size": SIDE}
SAMPLES = 2 * 12
"""S_0 and S_1."""
WORKERS = 3 + 2
"""Of two captions and two drawings at a time."""
CAPTIONS: dict[str, Any] = {
    "price": {"million_tokens": {"text_in": 1000, "text_out": 4000}, "call": 0.5},
    "expected_tokens": {"text_in": 10, "text_out": 30},
}
CAPTION, IMAGE = 0.5 + 0.01 + 0.12, 0.25
"""What one costs."""


def right(run: Run) -> list[float]:
    """The share of samples whose caption quotes their label, population by population."""
    found = []
    for population in run.populations():
        texts = [read_quote(str(caption)) for caption in population.conditions["caption"]]
        found.append(float(np.mean([text == LABELS[k] for text, k in zip(texts, population.labels, strict=True)])))
    return found


def test_votes_on_drawings_move_captions_to_what_the_records_show(tmp_path: Path) -> None:
    evolution = {"iterations": 3, "population": 120, "degree": 0.1}
    texts = pool(tmp_path / "captions.txt", "12345678")
    given = recipe(tmp_path, texts, PEN, evolution=evolution, privacy="none", embedding={"kind": "pixels"})
    shares = right(run_recipe(given, tmp_path / "run", Surroundings()))
    assert shares[0] < 0.2
    assert shares[-1] > 0.5


def test_captions_go_with_the_samples_into_every_export_and_the_report(tmp_path: Path) -> None:
    given = recipe(tmp_path, pool(tmp_path / "captions.txt"), PEN, evolution={"iterations": 1, "population": 8})
    run = carry_on(given, tmp_path)
    captions = run.populations()[-1].conditions["caption"].tolist()
    extend_run(run.folder, 2, 0.5, Surroundings())
    for form in ("npz", "folder", "parquet"):
        run.export(tmp_path / form, form)
    assert np.load(tmp_path / "npz" / "synthetic.npz")["captions"].tolist() == captions
    with (tmp_path / "folder" / "synthetic" / "labels.csv").open(encoding="utf-8") as file:
        rows = [row["caption"] for row in csv.DictReader(file)]
    assert rows[:8] == captions
    assert len(rows) == 10
    assert pq.read_table(tmp_path / "parquet" / "synthetic.parquet")["caption"].to_pylist() == rows
    assert captions[0] in unescape(write_report(run.folder).read_text(encoding="utf-8"))


def test_parents_of_captions_are_not_tried_on_drawings_from_scratch(tmp_path: Path) -> None:
    evolution = {"iterations": 2, "population": 4, "degree": [0.9, 0.2]}
    with serving(ChatServer(Script())) as one, serving(OpenAIServer(Script(), side=SIDE)) as other:
        captions = chat(one, variation="paraphrase")
        run = carry_on(recipe(tmp_path, captions, web(other), evolution=evolution), tmp_path)
        told = recipe(tmp_path, captions, web(other), evolution=evolution | {"measure_degree": "always"})
        planned = forecast(told, *set_up_generator(told.api)[:1])
    assert run.degree is None
    assert planned.images.most == 3 * 4 + 16


def test_a_caption_and_an_image_cost_what_their_prices_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)
    writes = Script(share=0.2, faults=("500", "dropped", "refusal"))
    draws = Script(share=0.2, faults=("503 html", "refusal"))
    with serving(ChatServer(writes)) as one, serving(OpenAIServer(draws, side=SIDE)) as other:
        captions, draw = chat(one, **CAPTIONS), web(other, price={"image": IMAGE})
        given = recipe(tmp_path, captions, draw, limits={"max_cost": 100}, refusals={"max_share": 1})
        planned = forecast(given, *set_up_generator(given.api)[:1])
        run = carry_on(given, tmp_path)
    with read_journal(run) as journal:
        spent = journal.totals()
    assert planned.cost == planned.cost_at_least == pytest.approx(SAMPLES * (CAPTION + IMAGE))
    assert not any("votes decide who makes" in warning for warning in planned.warnings)
    assert spent.usage.images == draws.delivered
    assert spent.usage.calls == sum(writes.seen.values()) + sum(draws.seen.values())
    assert spent.usage.text_out == 30 * writes.delivered
    asked = sum(writes.seen.values())
    cost = 0.5 * asked + (0.01 + 0.12) * writes.delivered + IMAGE * draws.delivered
    assert price_of(given).of(spent.usage) == pytest.approx(cost)
    assert spent.refused > 0


def test_the_limit_holds_on_captions_and_images(tmp_path: Path) -> None:
    with serving(ChatServer(Script())) as one, serving(OpenAIServer(Script(), side=SIDE)) as other:
        captions, draw = chat(one, **CAPTIONS), web(other, price={"image": IMAGE})
        given = recipe(tmp_path, captions, draw, limits={"max_cost": 10.0})
        with pytest.raises(LimitReached, match=r"limits\.max_cost = 10 USD is reached"):
            carry_on(given, tmp_path)
        run = resume_run(
            tmp_path / "run", Surroundings(embedding=Mean()), recipe(tmp_path, captions, draw, limits={"max_cost": 100})
        )
    with read_journal(run) as journal:
        assert journal.totals().usage.cost == pytest.approx(SAMPLES * (CAPTION + IMAGE))


def test_prices_of_parts_are_added_up_and_those_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    limits, texts = {"max_cost": 3}, pool(tmp_path / "captions.txt")
    priced = texts | {"price": {"call": 1, "image": 2}}
    price = price_of(recipe(tmp_path, priced, PEN | {"price": {"call": 4, "megapixel": 8}}, limits=limits))
    assert price.of(Usage(5, 5, cost=0.125)) == 0.125
    assert price.least_of(Usage(1, 10, megapixels=2)) == price.most_of(Usage(1, 10, megapixels=2)) == 10 * 7 + 2 * 8
    assert price.of_next(Usage(4, 2, megapixels=1.0, cost=3.0), calls=1, images=2) == 2 * 7 + 8
    with pytest.raises(RecipeError, match=r"api\.draw\.price is given, so limits\.max_cost must be too"):
        recipe(tmp_path, texts, PEN | {"price": {"call": 1}})
    with pytest.raises(RecipeError, match=r"prices are in EUR and USD"):
        price_of(recipe(tmp_path, priced, PEN | {"price": {"call": 1, "currency": "EUR"}}, limits=limits))


def served(folder: Path, one: str, other: str) -> None:
    """Begin the run over a chat server and a host of jobs, or go on with it."""
    images = {"kind": "comfyui", "base_url": other, "image_size": SIDE, "concurrency": 2, "poll": 0.002}
    carry_on(recipe(folder, chat(one), {**images, **workflows(folder)}), folder)


def known(folder: Path) -> tuple[int, int]:
    """Samples that the run has, and requests of which it knows something before they are answered."""
    with closing(sqlite3.connect(f"file:{folder}/run/confidential/journal.sqlite?mode=ro", uri=True)) as journal:
        answered, noted = journal.execute("SELECT (SELECT SUM(answered) FROM chunks), COUNT(*) FROM jobs").fetchone()
    return answered, noted


def test_neither_a_caption_nor_its_drawing_is_paid_for_twice(tmp_path: Path) -> None:
    writes, draws = Script(), ComfyServer()
    draws.finished = SAMPLES - 9  # in S_1
    with serving(ChatServer(writes)) as one, serving(draws) as other:
        process = forked(served, tmp_path, one, other)
        while process.is_alive() and (draws.held < 2 or known(tmp_path) != (draws.finished, WORKERS)):
            time.sleep(0.01)
        process.kill()
        process.join(60)
        assert draws.held == 2  # the others wait for their turn, with their captions
        assert len(writes.requests) == draws.finished + WORKERS
        draws.finished = float("inf")
        served(tmp_path, one, other)
    with read_journal(Run.open(tmp_path / "run")) as journal:
        usage = journal.totals().usage
    assert len(draws.jobs) == len(writes.requests) == SAMPLES
    assert (usage.calls, usage.images, usage.text_out) == (2 * SAMPLES, SAMPLES, 30 * SAMPLES)


def alone(folder: Path) -> None:
    """Begin the run over the pool and the simulator, or go on with it."""
    evolution = {"iterations": 3, "population": 40, "lookahead": 2, "degree": 0.3}
    carry_on(recipe(folder, pool(folder.parent / "captions.txt", "37"), PEN, evolution=evolution), folder)


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    alone(whole)
    process = forked(alone, broken)
    while process.is_alive() and not any(broken.glob("run/confidential/chunks/lookahead-2-*.chunk")):
        time.sleep(0.001)
    process.kill()
    process.join(60)
    alone(broken)
    assert shareable(broken / "run") == shareable(whole / "run")
    last = np.load(whole / "run" / "populations" / "003" / "condition.caption.npy")
    assert all(read_quote(str(caption)) for caption in last)


def test_an_address_of_a_part_in_a_run_of_somebody_else_is_named_again(tmp_path: Path) -> None:
    with serving(ChatServer(Script())) as url:
        texts = chat(url, prompts='"7" {label}')
        given = recipe(tmp_path, texts, PEN | {"prompts": '"7" {caption}'})
        run = carry_on(given, tmp_path)
        purge(run)
        surroundings = Surroundings(embedding=Mean())
        with pytest.raises(RecipeError, match=r"api\.captions\.base_url"):
            extend_run(run.folder, 6, 0.5, surroundings)
        more = extend_run(run.folder, 6, 0.5, surroundings, (f"api.captions.base_url={url}/v1",))
    with np.load(more) as found:
        assert found["images"].shape == (6, SIDE, SIDE, 1)
