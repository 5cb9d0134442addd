"""Samples of another size than the network draws: reduced for the votes and the result, and varied as drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adapters.diffusion.improved import ImprovedDiffusion
from pe.data.decoding import convert_pixels
from pe.data.samples import DRAWN
from pe.engine.execution import Surroundings, run_recipe
from pe.engine.extend import extend_run
from pe.errors import RecipeError
from pe.planning.build import build_generator
from pe.planning.checks import plugin_warnings
from pe.planning.forecast import forecast
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.adapters.diffusion.test_improved import SMALL, api_of, drawn, levels, varied, weights
from tests.durability.driver import make_private

SIDE, DRAWN_SIDE = 4, 8


@pytest.fixture
def file(tmp_path: Path) -> str:
    torch.save(weights(SMALL), tmp_path / "small.pt")
    return str(tmp_path / "small.pt")


def smaller(images: np.ndarray) -> np.ndarray:
    return np.stack([convert_pixels(one, size=(SIDE, SIDE), resize="stretch", channels=3) for one in images])


def test_samples_are_what_is_drawn_made_smaller_and_variations_are_of_what_was_drawn(file: str) -> None:
    plain, api = api_of(file), api_of(file, image_size=SIDE)
    large, small = drawn(plain), drawn(api)
    np.testing.assert_array_equal(small.conditions[DRAWN], large.samples.array)
    np.testing.assert_array_equal(small.samples.array, smaller(large.samples.array))
    np.testing.assert_array_equal(small.conditions["api_class"], large.conditions["api_class"])
    once, again = varied(plain, large, 0.6), varied(api, small, 0.6)
    assert np.abs(levels(once) - levels(large)).max() > 1
    np.testing.assert_array_equal(again.conditions[DRAWN], once.samples.array)
    np.testing.assert_array_equal(again.samples.array, smaller(once.samples.array))
    np.testing.assert_array_equal(varied(api, small, 0.0).samples.array, small.samples.array)


def test_a_generator_declares_the_size_of_its_samples_and_what_it_keeps(file: str) -> None:
    assert ImprovedDiffusion().info.shape == (64, 64, 3)
    assert ImprovedDiffusion().info.kept is None
    info = ImprovedDiffusion(image_size=32).info
    assert (info.shape, info.drawn, info.kept) == ((32, 32, 3), (64, 64), (64, 64))
    assert api_of(file, image_size=DRAWN_SIDE).info.kept is None
    assert list(drawn(api_of(file, image_size=DRAWN_SIDE)).conditions) == ["api_class"]
    with pytest.raises(RecipeError, match="image_size is 0: it must be at least 1"):
        api_of(file, image_size=0)


def test_a_run_has_its_samples_at_the_private_images_size_to_the_end(file: str, tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    private = {"kind": "npz", "path": str(tmp_path / "private.npz"), "size": SIDE, "channels": 3, "resize": "stretch"}
    generator = {"kind": "improved_diffusion", "model": file, "size": DRAWN_SIDE, "steps": 5, "device": "cpu"}
    content = {
        "private": private | {"classes": ["a", "b"], "declared_size": 30},
        "api": generator | {"image_size": SIDE, "batch_size": 4},
        "privacy": {"epsilon": 50, "delta": 0.01, "public_clock": "never"},
        "evolution": {"iterations": 2, "population": 6, "lookahead": 2, "degree": 0.6},
    }
    recipe = Recipe.parse(content, "the test")
    api = build_generator(recipe)
    assert not plugin_warnings(recipe, api)
    each = 3 * (SIDE**2 + DRAWN_SIDE**2)
    assert forecast(recipe, api).disk == max(2 * 3 * 6 * each + 6 * 3 * SIDE**2, each * (3 * 6 + 6 + 12))
    without = Recipe.parse(content | {"api": generator}, "the test")
    assert "images of 8×8×3" in plugin_warnings(without, build_generator(without))[0]

    run_recipe(recipe, tmp_path / "run", Surroundings())
    extend_run(tmp_path / "run", 4, 0.6, Surroundings())
    run = Run.open(tmp_path / "run")
    for population in (*run.populations(), *run.extensions()):
        np.testing.assert_array_equal(population.samples.array, smaller(population.conditions[DRAWN]))
        assert population.conditions[DRAWN].shape[1:] == (DRAWN_SIDE, DRAWN_SIDE, 3)
    with np.load(run.export(tmp_path / "copy") / "synthetic.npz") as synthetic:
        assert synthetic["images"].shape == (6, SIDE, SIDE, 3)
