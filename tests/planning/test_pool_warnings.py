"""A run over a pool is said to end with public samples."""

from __future__ import annotations

from pe.planning.checks import pool_warnings
from pe.plugins.protocols import PluginInfo
from pe.recipe.schema import Recipe
from tests.generators import Shades


class Pool(Shades):
    info = PluginInfo(distinct=5)


def test_a_pool_is_said_to_be_one_and_a_generator_is_not() -> None:
    content = {
        "private": {"kind": "folder", "path": "scans", "classes": [], "size": 8},
        "api": {"kind": "glyphs"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    recipe = Recipe.parse(content, "here")
    (told,) = pool_warnings(recipe, Pool())
    assert "The images are public ones, unchanged" in told
    assert pool_warnings(recipe, Shades()) == []
