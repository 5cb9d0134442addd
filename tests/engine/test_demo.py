"""The demos' recipes, and the model that ships with the project. The demos themselves are benchmarks/demo.py's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.glyphs import Glyphs
from pe.cli.run import _of_digits
from pe.data.images import Images
from pe.engine.demo.digits import RECIPES
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.utility import accuracies
from pe.plugins.protocols import RandomRequest
from pe.private.npz import DIGITS
from pe.recipe.schema import Recipe

SHIPPED = Path(__file__).parents[2] / "adapters" / "diffusion" / "small"


@pytest.mark.parametrize("name", RECIPES)
def test_the_demos_recipes_run(name: str, tmp_path: Path) -> None:
    small = "evolution.iterations=1", "evolution.population=20", "evolution.degree=0.5", "evolution.neighbors=2"
    quick = ("api.steps=2",) if name == "diffusion" else ()
    recipe = Recipe.load(RECIPES[name], (*small, "privacy.schedule=null", *quick))
    run = run_recipe(recipe, tmp_path / "run", Surroundings())
    assert run.synthetic.samples.array.shape == (20, 28, 28, 1)


def test_the_table_has_the_control_by_one_vote_where_it_was_made() -> None:
    sets = {"synthetic": 0.75, "unevolved": 0.5, "one_vote": 0.7, "real": 0.9}
    result = {"epsilon": 1.0, "delta": 1e-5, "run": "run", "api_calls": 7, "seconds": 1.0}
    both = dict.fromkeys(("logistic_regression", "mlp"), sets)
    told = [line.split("  ") for line in _of_digits(result | {"accuracy": both}, "glyphs").splitlines()]
    assert ["as many chosen by one vote, not varied (same noise)", "70.0%", "70.0%"] in [
        [cell.strip() for cell in row if cell] for row in told
    ]
    less = {name: {key: sets[key] for key in sets if key != "one_vote"} for name in both}
    assert "one vote" not in _of_digits(result | {"accuracy": less}, "diffusion")


def test_the_shipped_model_is_small_and_nothing_in_it_is_run() -> None:
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 5e6
    assert {path.suffix for path in files} == {".safetensors", ".json", ".md"}


def test_the_shipped_model_draws_the_digit_that_it_is_asked_for() -> None:
    def drawn(api: Glyphs | PixelSpace, count: int) -> tuple[Images, np.ndarray]:
        digits = (np.arange(count) % 10).astype(np.int32)
        seeds = np.arange(count, dtype=np.uint64) * np.uint64(2**20) + np.uint64(2**40)
        return api.random_api(RandomRequest(tuple(DIGITS[d] for d in digits), seeds)).samples, digits

    model = PixelSpace(model="small", steps=8, classes={digit: digit for digit in DIGITS}, device="cpu")
    scores = accuracies(*drawn(Glyphs(), 3000), *drawn(model, 60), 0)
    assert scores["mlp"] > 0.4, scores  # drawn glyphs themselves: about 0.6; chance: 0.1
