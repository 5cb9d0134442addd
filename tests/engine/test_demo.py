"""The demos' recipes, and the model that ships with the project. The demos themselves are benchmarks/demo.py's."""

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.glyphs import Glyphs
from pe.engine.demo.digits import RECIPES
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.utility import accuracies
from pe.plugins.protocols import RandomRequest
from pe.private.npz import DIGITS
from pe.progress import Progress
from pe.recipe.schema import Recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_demos_recipes_run(name, tmp_path):
    small = "evolution.iterations=1", "evolution.population=10", "evolution.degree=0.5", "evolution.neighbors=1"
    quick = ("api.steps=2",) if name == "diffusion" else ()
    recipe = Recipe.load(RECIPES[name], (*small, "privacy.schedule=null", *quick))
    run = run_recipe(recipe, tmp_path / "run", Surroundings(progress=Progress()))
    assert run.synthetic.samples.array.shape == (10, 28, 28, 1)


def test_the_shipped_model_draws_the_digit_that_it_is_asked_for():
    def drawn(api, count):
        digits = (np.arange(count) % 10).astype(np.int32)
        seeds = np.arange(count, dtype=np.uint64) * np.uint64(2**20) + np.uint64(2**40)
        return api.random_api(RandomRequest(tuple(DIGITS[d] for d in digits), seeds)).samples, digits

    model = PixelSpace(model="small", steps=8, classes={digit: digit for digit in DIGITS}, device="cpu")
    scores = accuracies(*drawn(Glyphs(), 1000), *drawn(model, 60), 0)
    assert scores["mlp"] > 0.35, scores  # drawn glyphs themselves: about 0.6; chance: 0.1
