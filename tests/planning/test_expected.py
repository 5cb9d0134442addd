"""What a plan expects: the share of the possible gain that other data sets reached, or nothing."""

import json

import pytest

from pe.judgement.forecast import POOL, Judged
from pe.planning.forecast import Forecast, forecast
from pe.plugins.protocols import as_generator
from pe.recipe.schema import Recipe
from tests.planning.test_choice import Own, recipe_of

A_POOL = Own(degrees=(0.0,), by_label=False, distinct=3000)
SHARES = {POOL: (0.4, 0.5, 0.6), "glyphs": (0.7, 0.8, 0.9)}
VOTES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Three data sets for each of two kinds of generators, whatever the votes."""
    runs = tuple(
        Judged(f"set {i}", kind, measure, votes, share / 2 if measure == "AUC" else share)
        for kind, shares in SHARES.items()
        for measure in ("AUC", "mean recall")
        for i, share in enumerate(shares)
        for votes in VOTES
    )
    monkeypatch.setattr("pe.planning.forecast.measured", lambda: runs)
    return runs


def planned(generator=A_POOL, size=1000, labels=10, **sections) -> Forecast:
    return forecast(recipe_of(size, labels, 1, **sections), as_generator(generator))


@pytest.mark.parametrize(
    ("generator", "low", "high"),
    [(A_POOL, "28%", "72%"), (Own(), "58%", "100%")],
    ids=["pool", "drawn"],
)
def test_a_plan_says_at_most_what_others_reached_before_it_says_what_happens(generator, low, high):
    plan = planned(generator)
    said = " ".join(str(plan).partition("candidates")[0].split())
    assert f"At ε = 1, expect at most {high} of the gain that is possible" in said
    assert f"Runs over 3 other data sets suggest {low} to {high}" in said
    told = json.loads(json.dumps(plan.to_dict()))["expected"]
    assert told.keys() == {"low", "high", "sets"}
    assert (f"{told['low']:.0%}", f"{told['high']:.0%}", told["sets"]) == (low, high, 3)


def test_two_labels_are_measured_by_the_area():
    two, ten = (planned(size=10 * labels, labels=labels).expected for labels in (2, 10))
    assert two.high == pytest.approx(ten.high / 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": 1},
        {
            "private": {"declared_size": None},
            "evolution": {"iterations": 1, "population": 50},
        },
        {"evolution": {"iterations": 0}},
        {"api": {"kind": "public_images", "path": "pool"}},
        {"size": 10**8},
    ],
    ids=[
        "nothing to learn",
        "number of records unknown",
        "no votes",
        "a kind that was not measured",
        "far more votes",
    ],
)
def test_nothing_is_said_of_what_was_not_measured(changes):
    assert planned(Own()).expected is not None
    plan = planned(Own(), **changes)
    assert plan.expected is None
    assert "expect at most" not in str(plan)
    assert plan.to_dict()["expected"] is None


def test_nothing_is_said_of_a_run_without_noise():
    noisy = recipe_of(1000, 10, 1, evolution={"iterations": 1, "population": 50})
    content = noisy.model_dump(mode="json", exclude_none=True)
    silent = Recipe.parse(content | {"privacy": "none"}, "the test")
    found = [forecast(wanted, as_generator(Own())).expected for wanted in (noisy, silent)]
    assert found[0] is not None
    assert found[1] is None


def test_a_pool_that_knows_the_labels_is_no_pool_that_does_not():
    wanted = recipe_of(1000, 10, 1, api={"kind": "public_images", "path": "pool"})
    by_label = Own(degrees=(0.0,), distinct=3000)
    assert forecast(wanted, as_generator(by_label)).expected is None
    assert forecast(wanted, as_generator(A_POOL)).expected is not None
