"""The demos' recipes, as small as they go. The demos themselves are benchmarks/demo.py's."""

import pytest

from pe.engine.demo import RECIPES
from pe.engine.execution import RunContext, run_recipe
from pe.progress import Progress
from pe.recipe.schema import Recipe


@pytest.mark.parametrize("name", ["glyphs", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_the_demos_recipes_run(name, tmp_path):
    small = (
        "evolution.iterations=1",
        "evolution.population=10",
        "evolution.degree=0.5",
        "evolution.neighbors=1",
    )
    quick = ("api.steps=2",) if name == "diffusion" else ()
    recipe = Recipe.load(RECIPES[name], (*small, "privacy.schedule=null", *quick))
    run = run_recipe(recipe, tmp_path / "run", RunContext(progress=Progress()))
    assert run.synthetic.samples.array.shape == (10, 28, 28, 1)
