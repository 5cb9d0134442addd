"""A generator whose settings differ by iteration: its plan, and what is refused before there is a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.planning.forecast import forecast
from pe.planning.layout import lay_out
from pe.recipe.schema import Recipe
from tests.generators import Mean, Shades
from tests.planning.test_forecast import recipe_for
from tests.recipe.test_schema import with_


class Stepped(Shades):
    """Shades in so many steps in each iteration."""

    steps = (10, 10, 40)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        steps = self.steps[iteration - 1]
        if degree and degree * steps < 1:
            raise RecipeError(f"Degree {degree:g} leaves none of {steps} steps.")
        return f"{degree * steps:g} of {steps} steps"


def test_the_plan_tells_what_a_degree_means_in_each_iteration(tmp_path: Path) -> None:
    recipe = recipe_for(Stepped(), tmp_path, iterations=3, population=10, lookahead=0, degree=[0.5, 0.4, 0.5])
    found = forecast(recipe, Stepped())
    assert [one.meaning for one in found.iterations] == ["", "5 of 10 steps", "4 of 10 steps", "20 of 40 steps"]
    assert found.warnings[0].startswith("private.declared_size is missing")
    lines = [line.strip() for line in str(found).splitlines()]
    assert "at 0.5 in iteration 1: 5 of 10 steps" in lines
    assert "at 0.5 in iteration 3: 20 of 40 steps" in lines
    assert "at 0.4: 4 of 10 steps" in lines


def test_a_degree_is_refused_by_the_steps_of_its_own_iteration(tmp_path: Path) -> None:
    api = Stepped()
    fine = recipe_for(api, tmp_path, iterations=3, population=10, lookahead=0, degree=[0.1, 0.1, 0.05])
    assert not any("would not start" in warning for warning in forecast(fine, api).warnings)
    refused = recipe_for(api, tmp_path, iterations=3, population=10, lookahead=0, degree=[0.1, 0.05, 0.05])
    said = "Degree 0.05 leaves none of 10 steps."
    assert forecast(refused, api).warnings[0] == f"A run would not start: {said}"
    with pytest.raises(RecipeError, match=said):
        run_recipe(refused, tmp_path / "run", Surroundings(api=api, embedding=Mean()))
    assert not (tmp_path / "run").exists()
    assert api.asked == 0


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([10], "api.steps has 1 entry, and evolution.iterations is 2: give api.steps one number, or 2 (one per"),
        ([10, 10, 20], "or 2 (one per iteration), or set evolution.iterations to 3."),  # as if S_0 had one
        ([], "api.steps has 0 entries"),
    ],
)
def test_a_list_of_settings_has_one_entry_per_iteration(steps: list[int], said: str) -> None:
    def recipe(steps: list[int]) -> Recipe:
        return Recipe.parse(with_(api={"kind": "improved_diffusion", "steps": steps}), "here")

    assert len(lay_out(recipe([10, 40])).steps) == 2
    with pytest.raises(RecipeError, match=re.escape(said)):
        lay_out(recipe(steps))
