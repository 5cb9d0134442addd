"""`pe plan --spend`: what a sum of money can buy, and that a run which takes an alternative costs what was told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import pe
from pe.cli.plan import plan
from pe.errors import RecipeError
from pe.planning.choice import settle
from pe.planning.forecast import forecast
from pe.planning.forecast_values import Alternative
from pe.recipe.schema import Recipe
from tests.generators import Shades
from tests.planning.test_choice import Blind, Drawn, recipe_of

PRICED = {"price": {"image": 0.002}}


def bought(money: float, size: int = 4000, api: Shades | None = None, **sections: Any) -> dict[str, Alternative]:
    recipe = recipe_of(size, 10, 4, **{"api": PRICED, "limits": {"max_cost": money}} | sections)
    found = forecast(recipe, api or Drawn(), alternatives=True).alternatives
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def written(folder: Path) -> Path:
    """The recipe as a file, which leaves the evolution to the rule."""
    content = yaml.safe_load(recipe_of(4000, 10, 4, api=PRICED, limits={"max_cost": 7}).dump())
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content | {"evolution": "auto"}), encoding="utf-8")
    return path


@pytest.mark.parametrize("money", [0.9, 5, 20, 50])
@pytest.mark.parametrize("size", [300, 4000])
@pytest.mark.parametrize("api", [Drawn(), Blind()])
def test_nothing_costs_more_than_the_money_and_most_of_it_can_be_spent(money: float, size: int, api: Shades) -> None:
    found = bought(money, size, api)
    for one in found.values():
        assert one.cost_at_least is not None
        assert one.cost is not None
        assert one.cost_at_least <= one.cost <= money, one.name
    assert [one.name for one in found.values() if one.recommended] == ["the rule"]
    if money < 1:  # whatever there is to learn from, it is the money that is short
        assert all((one.cost or 0) > 0.6 * money for one in found.values())


def test_the_alternatives_are_those_that_the_money_has_to_be_divided_among() -> None:
    found = bought(50)
    assert list(found) == ["the rule", "one vote", "fewer votes", "nothing kept", "lookahead"]
    rule, once, fewer, anew, ahead = found.values()
    assert [one.iterations for one in found.values()] == [4, 1, 2, 4, 4]
    assert once.population[0] > fewer.population[0] > rule.population[0] > ahead.population[0]
    assert (rule.keep, anew.keep, ahead.lookahead) == ("winners", "none", 2)
    assert (rule.cost_at_least or 0) < (anew.cost_at_least or 0) == anew.cost == rule.cost
    assert all(one.signal is not None and one.signal > 0.3 for one in found.values())


def test_where_the_rule_votes_once_that_stands_there_once_beside_two_votes() -> None:
    assert list(bought(50, 300)) == ["the rule", "two votes", "winners kept", "lookahead"]


def test_a_pool_whose_images_are_never_varied_has_no_other_way_than_one_vote() -> None:
    assert list(bought(5, api=Blind())) == ["the rule"]


def test_what_is_pasted_costs_what_was_told(tmp_path: Path) -> None:
    path = written(tmp_path)
    for one in bought(50).values():
        changed = Recipe.load(path, one.changes)
        assert changed.limits.max_cost == 50
        found = forecast(settle(changed, Drawn()).recipe, Drawn())
        assert (found.cost, found.cost_at_least) == (one.cost, one.cost_at_least), one.name
        assert found.images == one.images
        weakest = min(signal.to_noise or 0 for signal in found.signals)
        assert weakest == pytest.approx(one.signal), one.name


def test_a_recipe_with_an_evolution_of_its_own_stands_beside_the_rule() -> None:
    own = {"iterations": 3, "population": 90, "degree": [0.5, 0.4, 0.3], "neighbors": 2, "threshold": 1.0}
    found = bought(20, evolution=own | {"lookahead": [2, 2, 2], "reuse_lookahead": True})
    assert list(found)[:2] == ["as given", "the rule"]
    assert found["as given"].population == (90, 90, 90, 90)
    assert not found["as given"].recommended
    rule = found["the rule"]
    assert (rule.neighbors, rule.population[0] > 90) == (2, True)
    assert any(change.startswith("evolution={") and "threshold: 1.0" in change for change in rule.changes)


def test_without_a_price_or_with_one_that_tells_nothing_beforehand_a_sentence_says_so() -> None:
    with pytest.raises(RecipeError, match=r"unknown, because api\.price is not given: state it, or say by limits"):
        forecast(recipe_of(4000, limits={"max_cost": 5}), Drawn(), alternatives=True)
    tokens = {"price": {"million_tokens": 3}}
    recipe = recipe_of(4000, api=tokens, limits={"max_cost": 5})
    with pytest.raises(RecipeError, match=r"unknown, because tokens have a price: say by limits\.max_images"):
        forecast(recipe, Drawn(), alternatives=True)


def test_the_command_shows_a_table_with_lines_to_paste(tmp_path: Path) -> None:
    path = written(tmp_path)
    told = CliRunner().invoke(plan, [str(path), "--spend", "50"], catch_exceptions=False).output
    for words in ("signal", "  * the rule  4 ", "    one vote  1 ", "nothing kept  4 ", "one vote: All of the budget"):
        assert words in told
    assert "limits.max_cost = 7" not in told
    lines = [line for line in told.splitlines() if line.startswith("  --set ")]
    assert shlex.split(lines[0]) == ["--set", "limits.max_cost=50"]
    assert len(lines) == 5
    values = json.loads(CliRunner().invoke(plan, [str(path), "--spend", "50", "--json"]).stdout)
    assert [shlex.split(line)[1::2] for line in lines] == [one["changes"] for one in values["alternatives"]]
    assert values["alternatives"][1]["population"] == [10_000, 4000]
    assert values["alternatives"][0]["cost_at_least"] < values["alternatives"][0]["cost"]
    assert json.loads(CliRunner().invoke(plan, [str(path), "--json"]).stdout)["alternatives"] is None


def test_the_same_from_python(tmp_path: Path) -> None:
    data = pe.ImageFolder(tmp_path, size=28, channels=1, classes=list(range(10)), declared_size=4000)
    found = pe.plan(data, pe.api("glyphs", **PRICED), spend=50, epsilon=4, delta=1e-6)
    path = written(tmp_path)
    for other in (found, pe.plan(path, spend=50)):
        assert [one.name for one in other.alternatives][:2] == ["the rule", "one vote"]
        assert "What the money can buy" in str(other)
