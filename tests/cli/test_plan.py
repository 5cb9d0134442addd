"""`pe plan` as a user types it, against the run that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import assert_one_sentence, pe, public, recipe, scans

__all__ = ["public", "recipe", "scans"]  # fixtures


def test_the_plan_is_what_the_run_then_does(recipe: Path) -> None:
    plan = json.loads(pe("plan", recipe, "--json", cwd=recipe.parent).stdout)
    assert plan.keys() >= {
        "api_calls", "cost", "epsilon", "delta", "noise_multiplier", "votes_per_candidate", "warnings",
    }  # fmt: skip
    assert plan["api_calls"] == {"random": 1, "variation": 4, "images": 8 + 2 * (8 + 8)}
    assert [one["images"] for one in plan["per_iteration"]] == [8, 16, 16]
    assert (plan["cost"], plan["seconds"]) == (0, None)
    run = json.loads(pe("run", recipe, "--out", "out", "--json", cwd=recipe.parent).stdout)
    assert plan["api_calls"]["random"] + plan["api_calls"]["variation"] == run["api_calls"]
    assert (plan["epsilon"], plan["delta"]) == (pytest.approx(run["epsilon"]), run["delta"])
    status = json.loads(pe("status", "out", "--json", cwd=recipe.parent).stdout)
    assert (status["images"], status["calls"]) == (plan["api_calls"]["images"], run["api_calls"])


def test_the_page_tells_calls_cost_time_noise_and_warnings(recipe: Path) -> None:
    changes = ["private.declared_size=24", "api.price.image=0.5", "limits.max_cost=10", "privacy.delta=0.1"]
    flags = [flag for change in changes for flag in ("--set", change)]
    page = pe("plan", recipe, *flags, "--images-per-second", 0.01, cwd=recipe.parent).stdout
    for line in (
        "all      5      40",
        "Calls       1 of RANDOM_API, 4 of VARIATION_API",
        "Cost        20.00 USD",
        "Time        66.7 min",
        "Guarantee   ε = 20, δ = 0.1",
        "Degree      the generator obeys it exactly",
        "warning: limits.max_cost = 10 stops the run before its end, which needs 20.",
        "warning: privacy.delta = 0.1 is not below 1 / declared_size",
    ):
        assert line in page, page


def test_the_private_records_need_not_be_there(recipe: Path) -> None:
    result = pe("plan", recipe, "--set", "private.path=nowhere", "--set", "api.path=none", cwd=recipe.parent)
    assert result.returncode == 0, result.stderr
    assert "all  unknown      40" in result.stdout
    assert "warning: The number of calls is unknown, because the generator cannot be set up here" in result.stdout
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["public", "recipe.yaml", "scans"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("api.kind=none", "Unknown adapter 'none'"),
        ("api.siz=3", "siz"),
        ("evolution.population=9", "cannot be divided equally among 2 labels"),
    ],
)
def test_a_mistake_is_one_sentence(recipe: Path, change: str, sentence: str) -> None:
    assert_one_sentence(pe("plan", recipe, "--set", change, cwd=recipe.parent), sentence)
