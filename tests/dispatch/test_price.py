"""What was billed, at the prices that the recipe states."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pe.dispatch.limits import Limits, LimitToRaise, Meter
from pe.errors import RecipeError
from pe.planning.build import build_dispatcher, build_generator, price_of, usage_of
from pe.plugins.price import Price
from pe.plugins.protocols import Usage
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.journal import Totals
from pe.store.writer import RunWriter

BY_KIND = {"text_in": 5.0, "image_in": 8.0, "image_out": 30.0}
MADE = Usage(2, 3, 1_000_000, text_in=100_000, image_in=200_000, image_out=600_000, megapixels=3.5)


def price(**stated: object) -> Price:
    """As a recipe states it."""
    private = {"kind": "npz", "path": "a.npz", "size": 4, "channels": 1, "classes": ["a"], "declared_size": 9}
    content = {"private": private, "api": {"kind": "glyphs", "price": stated}, "limits": {"max_cost": 9}}
    return price_of(Recipe.parse(content | {"privacy": {"epsilon": 1, "delta": 0.1}}, "the test"))


def test_each_kind_of_token_has_its_price_and_one_that_is_not_told_the_dearest() -> None:
    known = 0.1 * 5 + 0.2 * 8 + 0.6 * 30
    assert price(million_tokens=BY_KIND).of(MADE) == pytest.approx(known + 0.1 * 30)
    assert price(million_tokens={"image_out": 30}).of(MADE) == pytest.approx(30)
    assert price(million_tokens={**BY_KIND, "text_out": 0}).of(MADE) == pytest.approx(known + 0.1 * 30)


def test_a_price_of_all_tokens_holds_for_each() -> None:
    assert price(million_tokens=7).of(MADE) == pytest.approx(7)
    assert price(million_tokens=7).of(Usage(1, 1, 500_000)) == pytest.approx(3.5)


def test_calls_images_and_megapixels_add_up() -> None:
    assert price(call=1, image=0.5, megapixel=0.2).of(MADE) == pytest.approx(2 + 1.5 + 0.7)


def test_a_price_of_tokens_wants_a_limit() -> None:
    with pytest.raises(RecipeError, match=r"limits\.max_cost must be too"):
        Recipe.parse(
            {
                "private": {"kind": "mnist"},
                "api": {"kind": "glyphs", "price": {"million_tokens": BY_KIND}},
                "privacy": {"epsilon": 1, "delta": 1e-6},
            },
            "the test",
        )


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(RecipeError, match="video_out"):
        price(million_tokens={"video_out": 3})


def test_the_limit_foresees_the_first_batch_by_the_tokens_that_are_expected() -> None:
    of_text = price(million_tokens={"text_in": 1, "text_out": 2})
    meter = Meter(Limits(max_cost=1), of_text, expected=Usage(0, text_in=1000, text_out=2000))  # .005 a text
    assert meter.refusal(Totals(), calls=1, images=200) is None
    assert isinstance(meter.refusal(Totals(), calls=1, images=201), LimitToRaise)


def test_the_limit_foresees_the_next_images_tokens_and_pixels_by_those_before() -> None:
    spent = Totals(Usage(10, 10, 1_000_000, image_out=1_000_000, megapixels=10), answered=10)
    meter = Meter(Limits(max_cost=41.9), price(million_tokens=BY_KIND, megapixel=0.5))
    assert meter.refusal(spent, calls=1, images=1) is None  # 35 are spent, and each image costs 3.5
    stop = meter.refusal(spent, calls=2, images=2)
    assert isinstance(stop, LimitToRaise)
    assert "35.00 USD are spent, and the next request, with those under way, would make them 42.00" in str(stop)


HOSTED = {"prompts": "a", "image_size": 32, "channels": 1, "key_env": None}
SIZED = {
    "openai_images": {"model": "m", "size": "1536x1024", "base_url": "http://127.0.0.1:9/v1"},
    "together": {"model": "m", "parent_field": "image_url", "size": [1024, 1536]},
    "bfl": {"model": "m", "size": [1024, 1536]},
    "fal": {"model": "m", "size": [1024, 1536]},
    "replicate": {"model": "m", "size": [1024, 1536]},
    "hf_inference": {"model": "m", "size": [1024, 1536]},
    "sdapi": {"base_url": "http://127.0.0.1:9", "size": [1024, 1536]},
}
FREE = {"kind": "glyphs", "name": "own", "share": 1, "size": 32}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", SIZED)
def test_pixels_are_foreseen_by_the_size_that_is_asked_for(kind: str, several: bool, tmp_path: Path) -> None:
    api: dict[str, Any] = {"kind": kind, "price": {"megapixel": 0.5}} | HOSTED | SIZED[kind]
    if several:
        api = {"kind": "portfolio", "of": [api | {"name": "host", "share": 1}, FREE]}
    private = {"kind": "npz", "path": "a.npz", "size": 32, "channels": 1, "classes": ["a"], "declared_size": 9}
    content = {"private": private, "api": api, "limits": {"max_cost": 2}, "privacy": {"epsilon": 1, "delta": 0.1}}
    recipe = Recipe.parse(content, "the test")
    generator = build_generator(recipe)
    run = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})
    meter = build_dispatcher(recipe, generator, run, Progress(), Event(), str).meter
    assert meter.refusal(Totals(), calls=1, images=2) is None  # 1.57 USD
    assert isinstance(meter.refusal(Totals(), calls=1, images=3), LimitToRaise)  # 2.36 USD
    withheld = Totals(Usage(2, 2))  # nothing was drawn, and it was billed
    assert isinstance(meter.refusal(withheld, calls=1, images=3), LimitToRaise)
    assert usage_of(meter.price, generator, 1, 3).megapixels == pytest.approx(4.718592)
