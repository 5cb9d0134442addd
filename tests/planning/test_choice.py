"""What `evolution: auto` chooses: sane for every size, and monotone in what there is to
learn from.
"""

import re
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from pe.errors import RecipeError
from pe.planning.choice import (
    ENOUGH_ONCE,
    SIGNAL_ONCE,
    Choice,
    Numbers,
    choose_evolution,
    choose_numbers,
)
from pe.planning.forecast import forecast
from pe.plugins.protocols import PluginInfo, as_generator
from pe.recipe.schema import Recipe
from tests.generators import Shades

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
LABELS = (1, 2, 10, 100)
SIGMAS = (8.9, 4.7, 2.5, 1.35, 0.64)
"""Of one histogram, in votes, at ε = 0.5, 1, 2, 4 and 10 and δ = 1e-6."""

DRAWN = Numbers(1, 1, 1, 1.0, True, inf, False, (0.5, 0.45, 0.4, 0.4), by_label=True, distinct=None)
BLIND = replace(DRAWN, degrees=(0.0,), by_label=False)
"""A generator that knows labels, and a pool whose labels nobody knows."""


def given(size=4000, labels=10, sigma=4.7, kind=DRAWN, **more):
    return replace(kind, records=size, units=size, labels=labels, sigma=sigma, **more)


class Own(Shades):
    def __init__(self, **info):
        super().__init__()
        self.info = PluginInfo(hosts=(), **{"degrees": DRAWN.degrees, "by_label": True} | info)


def own(**info):
    return as_generator(Own(**info))


def recipe_of(size=4000, labels=10, epsilon=1, **sections):
    content = {
        "private": {"kind": "folder", "path": "scans", "size": 32, "classes": list(range(labels))},
        "api": {"kind": "glyphs"},
        "embedding": {"kind": "pixels"},
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
        "evolution": {},
        "limits": {},
    }
    if size is not None:
        content["private"]["declared_size"] = size
    return Recipe.parse(
        {name: one | sections.get(name, {}) for name, one in content.items()}, "the test"
    )


@pytest.mark.parametrize("kind", [DRAWN, BLIND])
def test_every_choice_is_sane_and_votes_stand_out_of_the_noise_where_there_are_records_enough(kind):
    for size, labels, sigma in product(SIZES, LABELS, SIGMAS):
        numbers = given(size, labels, sigma, kind)
        chosen = choose_numbers(numbers, {})
        iterations, degrees, neighbors = chosen["iterations"], chosen["degree"], chosen["neighbors"]
        *candidates, final = (one // labels for one in chosen["population"])
        assert 1 <= iterations == len(candidates) == len(degrees) <= len(kind.degrees)
        assert max(2 * neighbors, 10) <= min(candidates) <= max(candidates) <= 1000
        assert 1 <= final * labels <= 10_000
        assert degrees == sorted(degrees, reverse=True)
        assert degrees[-1] == kind.degrees[-1]
        if size >= 3000 and labels <= 10:
            signal = numbers.votes(neighbors) / candidates[0] / numbers.noise(iterations)
            assert signal > (0.24 if iterations == 1 else 0.45), (size, labels, sigma)


@pytest.mark.parametrize("kind", [DRAWN, BLIND])
def test_more_to_learn_from_is_never_used_less(kind):
    def used(size, labels, sigma):
        chosen = choose_numbers(given(size, labels, sigma, kind), {})
        return chosen["iterations"], sum(chosen["population"][:-1])

    for labels, sigma in product(LABELS, SIGMAS):
        found = [used(size, labels, sigma) for size in SIZES]
        assert found == sorted(found), (labels, sigma)
    for size, labels in product(SIZES, LABELS):
        found = [used(size, labels, sigma) for sigma in SIGMAS]
        assert found == sorted(found), (size, labels)
    for size, sigma in product(SIZES, SIGMAS):
        rounds = [used(size, labels, sigma)[0] for labels in LABELS]
        assert rounds == sorted(rounds, reverse=True), (size, sigma)


def test_what_the_recipe_gives_stays_and_the_rest_follows():
    free = choose_evolution(recipe_of(), own())
    assert {"evolution.iterations", "evolution.neighbors", "privacy.schedule"} <= free.values.keys()
    explicit = {"iterations": 2, "neighbors": 4, "threshold": 3.0}
    bound = choose_evolution(recipe_of(evolution=explicit), own())
    evolution = bound.recipe.evolution
    assert evolution.own_values | explicit == evolution.own_values
    assert not {f"evolution.{key}" for key in explicit} & bound.values.keys()
    assert (evolution.degree, evolution.threshold_sigmas) == ([0.5, 0.4], None)
    assert len(bound.recipe.privacy.schedule) == 2
    listed = choose_evolution(
        recipe_of(evolution={"degree": [0.9, 0.5, 0.1]}), own()
    ).recipe.evolution
    assert (listed.iterations, listed.degree, len(listed.population)) == (3, [0.9, 0.5, 0.1], 4)
    whole = recipe_of(None, evolution={"iterations": 2, "population": 20})
    assert choose_evolution(whole, own()) == Choice(whole, {}, ())


@pytest.mark.parametrize(
    ("numbers", "iterations", "sigmas"),
    [
        (given(), 1, 0.5),
        (given(), 2, 1),
        (given(by_label=False), 4, 2.5),
        (given(by_label=False, labels=1), 1, 2.5),
        (given(by_label=False, labels=1), 2, 1),  # all candidates are of the one label
        (given(kind=BLIND), 1, 0),  # of a pool the best are taken, once each
    ],
)
def test_most_candidates_of_unknown_labels_are_left_out_of_every_vote(numbers, iterations, sigmas):
    assert choose_numbers(numbers, {"iterations": iterations})["threshold_sigmas"] == sigmas


COST = {"api": {"price": {"image": 0.02}}, "limits": {"max_cost": 50}}
IMAGES = {"limits": {"max_images": 2500}}


@pytest.mark.parametrize("given", [COST, IMAGES])
@pytest.mark.parametrize(
    "more", [{}, {"lookahead": 3}, {"lookahead": 8, "iterations": 1, "degree": 0}]
)
def test_limits_are_kept_with_a_lookahead_and_without(given, more):
    found = forecast(recipe_of(5000, 2, **given, evolution=more), own())
    assert 1250 < found.images <= 2500
    assert found.cost == (0 if given == IMAGES else pytest.approx(found.images * 0.02))


@pytest.mark.parametrize(
    ("distinct", "candidates"), [(40, 40), (700, 700), (None, 1000), (50_000, 2000)]
)
def test_no_more_candidates_than_a_pool_has_different_ones(distinct, candidates):
    numbers = given(100_000, sigma=1.35, kind=replace(BLIND, distinct=distinct))
    assert choose_numbers(numbers, {})["population"][0] == 10 * candidates


def test_units_of_several_records_cast_fewer_votes():
    four, patients = {"iterations": 4}, {"privacy_unit": "patient", "declared_units": 250}
    recipes = recipe_of(evolution=four), recipe_of(evolution=four, private=patients)
    many, few = (choose_evolution(one, own()).recipe.evolution.population[0] for one in recipes)
    assert few < many / 3


@pytest.mark.parametrize(
    ("private", "sentence"),
    [
        ({}, r"needs .private\.declared_size"),
        (
            {"declared_size": 4000, "privacy_unit": "patient"},
            r"needs .private\.declared_units.*\(patient\)",
        ),
    ],
)
def test_numbers_that_the_rule_needs_are_asked_for(private, sentence):
    with pytest.raises(RecipeError, match=sentence):
        choose_evolution(recipe_of(None, private=private), own())


def test_what_is_chosen_is_not_called_too_large_and_the_same_given_by_hand_is_told_the_same():
    assert ENOUGH_ONCE <= SIGNAL_ONCE
    recipe = choose_evolution(recipe_of(10_000), own()).recipe
    by_hand = recipe_of(10_000, evolution=recipe.evolution.own_values).model_copy(
        update={"privacy": recipe.privacy}
    )
    found = forecast(recipe, own())
    assert forecast(by_hand, own()).warnings == found.warnings
    assert not any("would be enough" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("size", "labels", "epsilon"), [(100, 10, 1), (100, 100, 4), (300, 100, 0.5), (30, 1, 0.3)]
)
@pytest.mark.parametrize("degrees", [DRAWN.degrees, (0.0,)])
def test_what_would_be_enough_is_enough_for_what_is_then_chosen(size, labels, epsilon, degrees):
    def warnings(size, epsilon):
        return " ".join(forecast(recipe_of(size, labels, epsilon), own(degrees=degrees)).warnings)

    enough = re.search(
        r"would be enough[^:]*: ε = ([\d.]+),.* ([\d,]+) records", warnings(size, epsilon)
    )
    assert "would be enough" not in warnings(size, float(enough[1]))
    assert "would be enough" not in warnings(int(enough[2].replace(",", "")), epsilon)
