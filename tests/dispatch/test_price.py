"""What was billed, at the prices that the recipe states; a usage that cannot be counts as if it
were not stated.
"""

import logging
import math
import sqlite3
from threading import Event

import numpy as np
import pytest

from pe.dispatch.limits import Limits, LimitToRaise, Meter
from pe.errors import RecipeError
from pe.planning.parts import build_dispatcher, build_generator, price_of
from pe.plugins import protocols as usage_module
from pe.plugins.protocols import Answer, Usage
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.journal import Journal, Totals
from pe.store.writer import RunWriter
from tests.dispatch.runs import dispatcher
from tests.generators import Shades

BY_KIND = {"text_in": 5.0, "image_in": 8.0, "image_out": 30.0}
MADE = Usage(2, 3, 1_000_000, text_in=100_000, image_in=200_000, image_out=600_000, megapixels=3.5)


def recipe(api, **limits):
    private = {
        "kind": "npz",
        "path": "a.npz",
        "size": 32,
        "channels": 1,
        "classes": ["a"],
        "declared_size": 9,
    }
    content = {
        "private": private,
        "api": api,
        "limits": limits,
        "privacy": {"epsilon": 1, "delta": 0.1},
    }
    return Recipe.parse(content, "the test")


def price(**stated):
    """As a recipe states it."""
    return price_of(recipe({"kind": "glyphs", "price": stated}, max_cost=9))


KNOWN = 0.1 * 5 + 0.2 * 8 + 0.6 * 30


@pytest.mark.parametrize(
    ("stated", "cost"),
    [
        ({"million_tokens": BY_KIND}, KNOWN + 0.1 * 30),  # of those of no kind, the dearest
        ({"million_tokens": {"image_out": 30}}, 30),
        ({"million_tokens": {**BY_KIND, "text_out": 0}}, KNOWN + 0.1 * 30),
        ({"million_tokens": 7}, 7),
        ({"call": 1, "image": 0.5, "megapixel": 0.2}, 2 + 1.5 + 0.7),
    ],
)
def test_each_kind_of_token_has_its_price_and_all_prices_add_up(stated, cost):
    assert price(**stated).of(MADE) == pytest.approx(cost)


def test_a_price_of_tokens_wants_a_limit_and_a_kind_that_there_is():
    with pytest.raises(RecipeError, match=r"needs limits\.max_cost"):
        recipe({"kind": "glyphs", "price": {"million_tokens": BY_KIND}})
    with pytest.raises(RecipeError, match="video_out"):
        price(million_tokens={"video_out": 3})


def test_the_limit_foresees_the_first_batch_by_the_tokens_that_are_expected():
    of_text = price(million_tokens={"text_in": 1, "text_out": 2})
    meter = Meter(
        Limits(max_cost=1), of_text, expected=Usage(0, text_in=1000, text_out=2000)
    )  # .005 a text
    assert meter.refusal(Totals(), calls=1, images=200) is None
    assert isinstance(meter.refusal(Totals(), calls=1, images=201), LimitToRaise)


def test_the_limit_foresees_the_next_images_tokens_and_pixels_by_those_before():
    spent = Totals(Usage(10, 10, 1_000_000, image_out=1_000_000, megapixels=10), answers=10)
    meter = Meter(Limits(max_cost=41.9), price(million_tokens=BY_KIND, megapixel=0.5))
    assert meter.refusal(spent, calls=1, images=1) is None  # 35 are spent, and each image costs 3.5
    stop = meter.refusal(spent, calls=2, images=2)
    assert isinstance(stop, LimitToRaise)
    assert (
        "35.00 USD are spent, and the next request, with those under way, would make them 42.00"
        in str(stop)
    )


def test_a_limit_of_images_counts_those_under_way():
    meter = Meter(Limits(max_images=12))
    assert meter.refusal(Totals(Usage(5, 10)), calls=1, images=2) is None
    stop = meter.refusal(Totals(Usage(5, 10)), calls=1, images=3)
    assert str(stop).startswith(
        "limits.max_images = 12 is reached: 10 samples are made, and the next request, with"
    )
    assert "would make them 13" in str(stop)


@pytest.mark.parametrize("several", [False, True])
def test_pixels_are_foreseen_by_the_size_that_is_asked_for(several, tmp_path):
    api = {
        "kind": "sdapi",
        "base_url": "http://127.0.0.1:9",
        "size": [1024, 1536],
        "price": {"megapixel": 0.5},
    }
    api |= {"prompts": "a", "image_size": 32, "channels": 1, "key_env": None}
    if several:
        free = {"kind": "glyphs", "name": "own", "share": 1, "size": 32}
        api = {"kind": "portfolio", "of": [api | {"name": "host", "share": 1}, free]}
    given = recipe(api, max_cost=2)
    run = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})
    meter = build_dispatcher(given, build_generator(given), run, Progress(), Event(), str).meter
    assert meter.refusal(Totals(), calls=1, images=2) is None  # 1.57 USD
    assert isinstance(meter.refusal(Totals(), calls=1, images=3), LimitToRaise)  # 2.36 USD
    withheld = Totals(Usage(2, 2))  # nothing was drawn, and it was billed
    assert isinstance(meter.refusal(withheld, calls=1, images=3), LimitToRaise)


ABSURD = [2**63, 10**13, 10**400, -1, 12.5, math.nan, math.inf, True, "12", [1], {"a": 1}]


def spent(folder, usage):
    """What a phase of seven items cost, as a journal says that is opened again."""

    class Billing(Shades):
        def random_api(self, request):
            answer = super().random_api(request)
            return Answer(answer.samples, answer.conditions, answer.missing, usage)

    dispatcher(folder, Billing()).random(np.zeros(7, np.int32))
    return RunWriter.reopen(folder).journal.totals().usage


@pytest.mark.parametrize("stated", ABSURD, ids=lambda stated: str(stated)[:20])
def test_a_usage_that_cannot_be_is_as_if_it_were_not_stated(stated, tmp_path, caplog):
    usage_module._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "pe.plugins.protocols"):
        everything = [stated] * 7 + [
            stated if stated == 12.5 or isinstance(stated, str) else -1.0
        ] * 2
        found = spent(tmp_path / "run", Usage(*everything))
    assert (found.calls, found.images, found.tokens, found.image_out) == (1, 7, 0, 0)
    assert [record.message[:42] for record in caplog.records] == [
        "An answer states a usage that no request c"
    ]


@pytest.mark.parametrize(
    ("stated", "counted"), [(7.0, 7), (np.int64(7), 7), (10**12, 10**12), (None, 0)]
)
def test_a_usage_that_can_be_is_kept(stated, counted, tmp_path):
    found = spent(tmp_path / "run", Usage(2, 3, stated, megapixels=0.5))
    assert (found.calls, found.images, found.tokens, found.megapixels) == (2, 3, counted, 0.5)


def test_a_journal_with_absurd_numbers_from_before_can_be_read(tmp_path):
    spent(tmp_path / "run", Usage(1, 7, 5))
    journal = next((tmp_path / "run").rglob("journal.sqlite"))
    absurd = (
        "INSERT INTO chunks (phase, answered, calls, images, tokens, seconds) VALUES ('x', 0, 1, "
        "0, ?, 0)"
    )
    with sqlite3.connect(journal) as connection:
        connection.executemany(absurd, [(2**62,)] * 2)
    assert Journal(journal, reading=True).totals().usage.tokens >= 2**63
