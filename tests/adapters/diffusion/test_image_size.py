"""Samples of another size than the network draws: reduced for the votes and the result, and varied as drawn."""

import numpy as np
import pytest
import torch

from pe.data.decoding import convert_pixels
from pe.data.samples import DRAWN
from pe.engine.execution import Surroundings, run_recipe
from pe.engine.extend import extend_run
from pe.errors import RecipeError
from pe.planning.build import build_generator
from pe.planning.checks import plugin_warnings
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.adapters.diffusion.asking import assert_same, drawn, moved, varied
from tests.adapters.diffusion.test_improved import SMALL, improved_of, weights
from tests.durability.driver import make_private

SIDE, DRAWN_SIDE = 4, 8


@pytest.fixture
def file(tmp_path):
    torch.save(weights(SMALL), tmp_path / "small.pt")
    return str(tmp_path / "small.pt")


def smaller(images):
    return np.stack([convert_pixels(one, size=(SIDE, SIDE), resize="stretch", channels=3) for one in images])


def assert_smaller(small, large):
    np.testing.assert_array_equal(small.conditions[DRAWN], large.samples.array)
    np.testing.assert_array_equal(small.samples.array, smaller(large.samples.array))
    np.testing.assert_array_equal(small.conditions["api_class"], large.conditions["api_class"])


def test_samples_are_what_is_drawn_made_smaller_and_variations_are_of_what_was_drawn(file):
    plain, api, same = improved_of(file), improved_of(file, image_size=SIDE), improved_of(file, image_size=DRAWN_SIDE)
    large, small = drawn(plain), drawn(api)
    assert_smaller(small, large)
    assert moved(varied(plain, large, 0.6), large) > 1
    assert_smaller(varied(api, small, 0.6), varied(plain, large, 0.6))
    assert_same(varied(api, small, 0.0), small)
    assert list(drawn(same).conditions) == ["api_class"]
    assert (api.info.shape, api.info.drawn, api.info.kept) == ((4, 4, 3), (8, 8), (8, 8))
    assert (same.info.shape, same.info.kept) == ((8, 8, 3), None)
    with pytest.raises(RecipeError, match="image_size is 0: it must be at least 1"):
        improved_of(file, image_size=0)


def test_a_run_has_its_samples_at_the_private_images_size_to_the_end(file, tmp_path):
    make_private(tmp_path / "private.npz")
    private = {"kind": "npz", "path": str(tmp_path / "private.npz"), "size": SIDE, "channels": 3, "resize": "stretch"}
    generator = {"kind": "improved_diffusion", "model": file, "size": DRAWN_SIDE, "steps": 5, "device": "cpu"}
    content = {
        "private": private | {"classes": ["a", "b"], "declared_size": 30},
        "api": generator | {"image_size": SIDE, "batch_size": 4},
        "privacy": {"epsilon": 50, "delta": 0.01, "public_clock": "never"},
        "evolution": {"iterations": 1, "population": 6, "lookahead": 2, "degree": 0.6},
    }
    recipe, without = (Recipe.parse(content | more, "the test") for more in ({}, {"api": generator}))
    assert not plugin_warnings(recipe, build_generator(recipe))
    assert "images of 8×8×3" in plugin_warnings(without, build_generator(without))[0]
    run_recipe(recipe, tmp_path / "run", Surroundings())
    extend_run(tmp_path / "run", 4, 0.6, Surroundings())
    run = Run.open(tmp_path / "run")
    for population in (*run.populations(), *run.extensions()):
        np.testing.assert_array_equal(population.samples.array, smaller(population.conditions[DRAWN]))
        assert population.conditions[DRAWN].shape[1:] == (DRAWN_SIDE, DRAWN_SIDE, 3)
    with np.load(run.export(tmp_path / "copy") / "synthetic.npz") as synthetic:
        assert synthetic["images"].shape == (6, SIDE, SIDE, 3)
