"""What is said, and refused, of a run whose recipe states no price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pe
from pe.errors import RecipeError
from pe.planning.build import set_up_generator
from pe.planning.checks import check_price, obstacles
from pe.planning.forecast import forecast
from pe.plugins.protocols import PluginInfo
from pe.recipe.schema import Recipe
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
from tests.recipe.test_schema import with_

PAID = {"kind": "openai_images", "model": "m", "prompts": "a", "size": "512x512", "image_size": 8}
OWN = PAID | {"base_url": "http://127.0.0.1:8000/v1", "key_env": None}
FIRST, SECOND = PAID | {"price": {"image": 0.01}}, PAID | {"base_url": "https://gpu.example.org/v1"}


@pytest.mark.parametrize(
    ("api", "limits", "cost", "asked"),
    [
        (PAID, {}, "not stated", "api.openai.com"),
        (PAID, {"max_images": 100}, "not stated", ""),
        (PAID | {"price": {"image": 0}}, {}, "free", ""),
        (PAID | {"price": {"image": 0.01}}, {"max_cost": 9}, "USD", ""),
        (OWN, {}, "free", ""),
        (OWN | {"base_url": "http://[::1]:8000/v1"}, {}, "free", ""),
        (OWN | {"base_url": "http://10.0.0.7:8000/v1"}, {"max_cost": 9}, "not stated", "10.0.0.7:8000"),
        ({"kind": "portfolio", "of": [FIRST, SECOND]}, {"max_cost": 9}, "not stated", "gpu.example.org"),
        ({"kind": "portfolio", "of": [FIRST, FIRST]}, {"max_cost": 9}, "USD", ""),
        ({"kind": "glyphs"}, {}, "free", ""),
    ],
)
def test_nobody_s_price_is_told_as_free_and_a_run_needs_a_limit(
    monkeypatch: pytest.MonkeyPatch, api: dict[str, Any], limits: dict[str, Any], cost: str, asked: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    recipe = Recipe.parse(with_(api=api, limits=limits), "here")
    for each in (recipe, Recipe.parse(recipe._content(), "stored")):
        generator, _ = set_up_generator(each.api)
        found = forecast(each, generator)
        (told,) = (line for line in str(found).splitlines() if line.startswith("Cost "))
        assert cost in told
        assert (found.to_dict()["cost"] is None) == (cost == "not stated")
        refused = [sentence for sentence in obstacles(each, generator) if f"{asked} charges is not stated" in sentence]
        assert bool(refused) == bool(asked)


@pytest.mark.parametrize(("hosts", "cost"), [((), 0), (None, None), (("localhost:80",), 0), (("a.invalid",), None)])
def test_an_own_object_is_free_where_it_says_that_it_asks_nobody(
    tmp_path: Path, hosts: tuple[str, ...] | None, cost: int | None
) -> None:
    api = Shades()
    api.info = PluginInfo(hosts=hosts)
    recipe = Recipe.parse(with_(), "here")
    assert forecast(recipe, api).cost == cost
    if hosts != ("a.invalid",):
        check_price(recipe, api)
        return
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"population": 8, "iterations": 1, "noise_multiplier": 1, "delta": 1e-5, "embedding": Mean()}
    with pytest.raises(
        RecipeError, match=r"What a\.invalid charges is not stated: give api\.price .* or limits\.max_im"
    ):
        pe.evolve(data, api, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    assert pe.evolve(data, api, out=tmp_path / "run", max_images=100, **settings).folder.is_dir()
