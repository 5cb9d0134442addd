"""When a run has a public clock, and what its deadlines follow from."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from embeddings.mixed import Mixed
from embeddings.pixels import Pixels
from embeddings.tfidf import TfIdf
from embeddings.wordllama import WordLlama
from pe.data.columns import Columns
from pe.data.images import Images
from pe.data.texts import Texts
from pe.nearest import nearest
from pe.planning.deadlines import EMBEDDING, clock_terms, deadlines, held_back, round_up_seconds
from pe.planning.forecast import forecast
from pe.planning.releases import fit_dry_runs, lay_out
from pe.plugins.protocols import PluginInfo, as_generator
from pe.recipe.schema import Recipe
from tests.engine.small import but
from tests.generators import Mean, Shades


def recipe(declared=256, private=None, **privacy):
    sized = {} if declared is None else {"declared_size": declared}
    source = {
        "kind": "npz",
        "path": "p.npz",
        "size": 8,
        "channels": 1,
        "classes": ["a", "b"],
    } | sized
    content = {
        "private": source | (private or {}),
        "api": {"kind": "object:tests.generators.Shades"},
        "privacy": {"epsilon": 4, "delta": 1e-5, **privacy},
        "evolution": {"iterations": 2, "population": 200, "lookahead": 0},
    }
    return Recipe.parse(content, "the test")


REMOTE, UNDECLARED = (
    but(Shades(), info=PluginInfo(hosts=hosts)) for hosts in (("api.example",), None)
)
NOBODY_SEES = "off: no other machine sees how long private work takes"


@pytest.mark.parametrize(
    ("api", "wanted", "declared", "why", "warned"),
    [
        (REMOTE, "auto", 256, "on: requests go to api.example", False),
        (UNDECLARED, "auto", 256, "on: requests go to an object that declares no hosts", False),
        (None, "auto", 256, "on: requests go to an object that declares no hosts", False),
        (Shades(), "auto", 256, NOBODY_SEES, False),
        (Shades(), 20, 256, "on: privacy.hold is 20 seconds", False),
        (REMOTE, 20, None, "on: privacy.hold is 20 seconds", False),
        (REMOTE, "auto", None, "off: private.declared_size is missing", True),
        (Shades(), "auto", None, NOBODY_SEES, False),
        (REMOTE, "off", 256, "off: privacy.hold is 'off'", True),
        (Shades(), "off", 256, "off: privacy.hold is 'off'", False),
    ],
)
def test_a_clock_is_on_where_requests_leave_the_process(api, wanted, declared, why, warned):
    terms = clock_terms(recipe(declared, hold=wanted), api)
    assert (terms.on, terms.why) == (why.startswith("on"), why)
    assert bool(terms.warning) == ("State `private.declared_size`" in terms.warning) == warned


@pytest.mark.parametrize("declared", [256, 10_000])
def test_each_piece_of_private_work_has_a_deadline_that_follows_from_public_numbers(declared):
    wanted, shown = recipe(declared), []  # there is no p.npz to be read

    def embed(samples):
        shown.append(len(samples))
        return Mean().embed(samples)

    seconds, unheld = deadlines(wanted, lay_out(wanted), but(Mean(), embed=embed))
    assert list(seconds) == [EMBEDDING, "histogram"]
    assert not unheld
    assert all(value >= 0.1 and value == round_up_seconds(value) for value in seconds.values())
    assert shown == [Mean.batch_size] * 2


def test_a_fit_is_held_by_its_dry_run_and_else_told_to_have_no_deadline():
    training = {
        "steps": 4,
        "expected_batch": 64,
        "block": 2,
    }  # all records in every step: accounted in no time
    content = recipe(64, {"classes": ["a"]}).model_dump(mode="json") | {
        "api": {
            "kind": "dpdm",
            "training": training,
            "network": {"channels": [8, 16]},
            "device": "cpu",
        },
        "privacy": {"epsilon": 4, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 8},
    }
    wanted = Recipe.parse(content, "the test")
    plan = lay_out(wanted)
    tried = [replace(one, seconds_per_step=10.0) for one in fit_dry_runs(wanted)]
    seconds, unheld = deadlines(wanted, plan, Mean(), tried)
    assert seconds["fit"] == 100  # of each block: 2 steps × 10 s × 3, rounded up
    assert not unheld
    assert deadlines(wanted, plan, Mean())[1] == ["fit"]


def test_a_search_is_held_for_as_long_as_the_most_costly_candidates_take():
    """Whoever makes the candidates may plant some that are equally near to every record, which are
    settled in pairs.
    """
    wanted = recipe(3000)
    records, candidates = np.random.default_rng(0).standard_normal((2, 3000, 784), np.float32)
    records[:, 0], candidates[:] = 0, candidates[0]
    candidates[:, 0] = np.arange(3000) * np.float32(1e-12)
    held, taken = [], []
    for _ in range(2):  # other processes take time, too, now from the one and now from the other
        held.append(
            deadlines(wanted, lay_out(wanted), Pixels(features="gradients", size=28))[0][
                "histogram"
            ]
        )
        started = time.perf_counter()
        nearest(records, candidates[:100], 1, metric="l2", backend="auto")  # 100 of a label
        taken.append(time.perf_counter() - started)
    assert min(taken) < max(held)


def test_larger_files_have_time_to_be_decoded():
    wanted = recipe(1000), recipe(1000, {"largest_side": 1024})
    small, large = (deadlines(one, lay_out(one), Mean())[0][EMBEDDING] for one in wanted)
    assert large > small


TEXTS = {
    "plain words": "the room was warm and the staff was friendly and the view was good ",
    "different words": " ".join(f"{i:x}q{i * 7919 % 1000}" for i in range(400)),
    "words of two letters": " ".join(
        a + b for a in "abcdefghijklmnopqrstuvwxyz" for b in "aeiouyxz"
    ),
    "one long word": "abcdefghij0123456789",
    "spaces": "a                      ",
    "accents": "e" + "\u0323\u0301" * 60 + " ",
    "Chinese": "".join(chr(0x4E00 + 7 * i % 20_000) for i in range(700)),
    "emoji": "".join(chr(0x1F300 + i % 300) for i in range(600)) + " ",
    "many scripts": " ".join(chr(0x100 + 13 * i % 9000) for i in range(900)),
    "punctuation": "!?,.;:-'\"()[]{}<>/&%$ ",
    "short lines": "a\nb\nc\n",
}
LONGEST = 2000


def texts_recipe(embedding):
    """Over 3,000 private texts, which are not there."""
    content = recipe(3000).model_dump(mode="json") | {
        "private": {
            "kind": "text_table",
            "path": "p.csv",
            "longest": LONGEST,
            "declared_size": 3000,
        },
        "embedding": {"kind": embedding, "batch_size": 32},
    }
    return Recipe.parse(content, "the test")


@pytest.fixture
def bare(monkeypatch):
    """Deadlines are what was tried, not three times as much."""
    monkeypatch.setattr("pe.planning.deadlines._SLACK", 1.0)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    "embedding", [TfIdf(batch_size=32), WordLlama(batch_size=32)], ids=["tfidf", "wordllama"]
)
def test_the_deadline_of_texts_leaves_time_for_whatever_they_may_hold(embedding):
    wanted = texts_recipe(embedding.kind)
    seconds, _ = deadlines(wanted, lay_out(wanted), embedding)
    taken = {}
    for name, text in TEXTS.items():
        block = Texts.of([(text * (LONGEST // len(text) + 1))[i:] for i in range(32)], LONGEST)
        taken[name] = min(seconds_of(partial(embedding.embed, block)) for _ in range(3)) * 3000 / 32
    assert {name: one for name, one in taken.items() if one > seconds[EMBEDDING]} == {}


@pytest.mark.usefixtures("bare")
def test_the_deadline_of_rows_leaves_time_for_rows_that_all_differ():
    columns = {f"n{i}": {"kind": "real", "min": 0, "max": 9999, "unit": 0.01} for i in range(30)}
    source = {"kind": "table", "path": "p.csv", "columns": columns, "declared_size": 60_000}
    content = recipe().model_dump(mode="json")
    wanted = Recipe.parse(content | {"private": source, "embedding": {"kind": "mixed"}}, "the test")
    embedding = Mixed(columns=columns, batch_size=256)
    rows = Columns(columns).rows(np.random.default_rng(0).integers(0, 999_900, (256, 30)))
    taken = min(seconds_of(partial(embedding.embed, rows)) for _ in range(3)) * 60_000 / 256
    assert deadlines(wanted, lay_out(wanted), embedding)[0][EMBEDDING] > taken


@pytest.mark.usefixtures("bare")
def test_an_embedding_that_takes_time_over_what_an_image_shows_has_it():
    """It looks for each shade of an image."""

    def embed(samples):
        for image in samples.pixels:
            for shade in np.unique(image):
                np.sort(image == shade, axis=None)
        return Mean().embed(samples)

    wanted = recipe(20_000, {"size": 64})
    noise = Images(np.random.default_rng(7).integers(0, 256, (16, 64, 64, 1), dtype=np.uint8))
    taken = min(seconds_of(partial(embed, noise)) for _ in range(3)) * 20_000 / 16
    assert deadlines(wanted, lay_out(wanted), but(Mean(), embed=embed))[0][EMBEDDING] > taken


def seconds_of(work):
    """Processor time, so that other processes do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def test_an_embedding_on_another_machine_is_not_tried_by_a_plan():
    elsewhere = {"kind": "http", "url": "http://127.0.0.1:9", "trusted_with_private_data": True}
    content = recipe().model_dump(mode="json")
    for embedding, is_tried in (({"kind": "pixels"}, True), (elsewhere, False)):
        wanted = Recipe.parse(content | {"embedding": embedding}, "the test")
        assert bool(forecast(wanted, as_generator(REMOTE)).clock.seconds) == is_tried


def test_stated_seconds_hold_every_kind_of_work_and_nothing_is_tried():
    wanted = recipe(hold=7)
    assert held_back(wanted, lay_out(wanted), Shades(), None).seconds == {
        EMBEDDING: 7,
        "histogram": 7,
    }
