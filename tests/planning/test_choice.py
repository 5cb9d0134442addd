"""What `evolution: auto` chooses: sane for every size, and monotone in what there is to learn from."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from pe.errors import RecipeError
from pe.planning.choice import ENOUGH_ONCE, SIGNAL_ONCE, Choice, choose_evolution
from pe.planning.forecast import forecast
from pe.planning.layout import lay_out
from pe.plugins.protocols import PluginInfo
from pe.recipe.schema import Recipe
from tests.generators import Shades

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
LABELS = (1, 2, 10, 100)
EPSILONS = (0.5, 1, 2, 4, 10)


class Blind(Shades):
    """A pool whose labels nobody knows."""

    info = PluginInfo(hosts=(), degrees=(0.0,))


class Drawn(Shades):
    """A generator that knows labels."""

    info = PluginInfo(hosts=(), degrees=(0.5, 0.45, 0.4, 0.4), by_label=True)


GENERATORS = (Blind(), Drawn())


def recipe_of(size: int | None, labels: int = 10, epsilon: float = 1, **sections: dict[str, Any]) -> Recipe:
    content: dict[str, Any] = {
        "private": {"kind": "folder", "path": "scans", "size": 32, "classes": list(range(labels))},
        "api": {"kind": "glyphs"},
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
        "evolution": {},
        "limits": {},
    }
    if size is not None:
        content["private"]["declared_size"] = size
    return Recipe.parse({name: one | sections.get(name, {}) for name, one in content.items()}, "the test")


@cache
def chosen(size: int, labels: int, epsilon: float, api: Shades) -> Choice:
    return choose_evolution(recipe_of(size, labels, epsilon), api)


@pytest.mark.parametrize("api", GENERATORS)
def test_every_choice_is_sane(api: Shades) -> None:
    for size, labels, epsilon in product(SIZES, LABELS, EPSILONS):
        recipe = chosen(size, labels, epsilon, api).recipe
        plan = lay_out(recipe)
        evolution = recipe.evolution
        assert 1 <= evolution.iterations <= len(api.info.degrees)
        assert 2 * evolution.neighbors <= min(plan.sizes)
        assert 10 <= min(plan.sizes) <= max(plan.sizes) <= 1000
        assert sum(plan.steps[-1].sizes) <= 10_000
        assert [step.degree for step in plan.steps] == sorted((step.degree for step in plan.steps), reverse=True)
        assert plan.steps[-1].degree == api.info.degrees[-1]


@pytest.mark.parametrize("api", GENERATORS)
def test_more_to_learn_from_is_never_used_less(api: Shades) -> None:
    def measure(size: int, labels: int, epsilon: float) -> tuple[int, int]:
        evolution = chosen(size, labels, epsilon, api).recipe.evolution
        assert isinstance(evolution.population, list)
        return evolution.iterations, evolution.population[0] * evolution.iterations

    for labels, epsilon in product(LABELS, EPSILONS):
        found = [measure(size, labels, epsilon) for size in SIZES]
        assert found == sorted(found), (labels, epsilon)
    for size, labels in product(SIZES, LABELS):
        found = [measure(size, labels, epsilon) for epsilon in EPSILONS]
        assert found == sorted(found), (size, labels)
    for size, epsilon in product(SIZES, EPSILONS):
        rounds = [measure(size, labels, epsilon)[0] for labels in LABELS]
        assert rounds == sorted(rounds, reverse=True), (size, epsilon)


@pytest.mark.parametrize("api", GENERATORS)
def test_votes_stand_out_of_the_noise_where_there_are_records_enough(api: Shades) -> None:
    for size, labels, epsilon in product((3000, 10_000, 100_000), (1, 2, 10), EPSILONS):
        signals = forecast(recipe_of(size, labels, epsilon), api).signals
        for signal in signals:
            assert signal.fewest is not None
            assert signal.fewest / signal.sigma > (0.24 if len(signals) == 1 else 0.45), (size, labels, epsilon)


def test_what_the_recipe_gives_stays_and_the_rest_follows() -> None:
    free = choose_evolution(recipe_of(4000), Drawn())
    assert {"evolution.iterations", "evolution.neighbors", "privacy.schedule"} <= free.chosen.keys()
    given = {"iterations": 2, "neighbors": 4, "threshold": 3.0}
    bound = choose_evolution(recipe_of(4000, evolution=given), Drawn())
    assert bound.recipe.evolution.given | given == bound.recipe.evolution.given
    assert not {f"evolution.{key}" for key in given} & bound.chosen.keys()
    assert bound.recipe.evolution.degree == [0.5, 0.4]
    assert bound.recipe.evolution.threshold_sigmas is None
    assert len(bound.recipe.privacy.schedule or []) == 2


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_most_candidates_of_unknown_labels_are_left_out_of_every_vote(iterations: int) -> None:
    class BlindModel(Blind):
        info = PluginInfo(hosts=(), degrees=(0.7, 0.6, 0.5, 0.4))

    def threshold(api: Shades) -> float | None:
        return choose_evolution(
            recipe_of(4000, evolution={"iterations": iterations}), api
        ).recipe.evolution.threshold_sigmas

    assert threshold(BlindModel()) == 2.5
    assert threshold(Drawn()) == (0.5 if iterations == 1 else 1)
    single = choose_evolution(recipe_of(4000, 1, evolution={"iterations": iterations}), BlindModel()).recipe.evolution
    assert single.threshold_sigmas == (2.5 if iterations == 1 else 1)  # all candidates are of the one label


def test_a_list_says_how_many_iterations_there_are() -> None:
    found = choose_evolution(recipe_of(4000, evolution={"degree": [0.9, 0.5, 0.1]}), Drawn()).recipe
    assert found.evolution.iterations == 3
    assert found.evolution.degree == [0.9, 0.5, 0.1]
    assert isinstance(found.evolution.population, list)
    assert len(found.evolution.population) == 4


def test_a_recipe_that_gives_both_sizes_is_left_as_it_is() -> None:
    recipe = recipe_of(None, evolution={"iterations": 2, "population": 20})
    assert choose_evolution(recipe, Drawn()) == Choice(recipe, {}, ())
    assert recipe.evolution.neighbors == 1


def test_a_limit_on_what_the_run_may_cost_is_kept() -> None:
    priced = {"price": {"image": 0.02}}
    for budget in (20, 50, 200, 1000):
        found = forecast(recipe_of(5000, 2, api=priced, limits={"max_cost": budget}), Drawn())
        assert 0.5 * budget < (found.cost or 0) <= budget or budget == 1000
    assert found.synthetic == 5000  # as many as there are records, since each costs something


@pytest.mark.parametrize("ahead", [3, 8])
@pytest.mark.parametrize("given", [{}, {"iterations": 2}, {"iterations": 1, "degree": 0}, {"reuse_lookahead": True}])
def test_a_limit_is_kept_with_a_lookahead_too(ahead: int, given: dict[str, Any]) -> None:
    priced, evolution = {"price": {"image": 0.02}}, {"lookahead": ahead} | given
    found = forecast(recipe_of(5000, 2, api=priced, limits={"max_cost": 50}, evolution=evolution), Drawn())
    assert 35 < (found.cost or 0) <= 50
    free = forecast(recipe_of(5000, 2, limits={"max_images": 2500}, evolution=evolution), Drawn())
    assert free.images.most <= 2500


@pytest.mark.parametrize("by_label", [False, True])
def test_one_vote_over_a_pool_has_the_threshold_of_any_one_vote(by_label: bool) -> None:
    class Pool(Blind):
        info = PluginInfo(hosts=(), degrees=(0.0,), by_label=by_label)

    assert choose_evolution(recipe_of(4000, epsilon=4), Pool()).recipe.evolution.threshold_sigmas == (
        0.5 if by_label else 2.5
    )


@pytest.mark.parametrize(("distinct", "candidates"), [(40, 400), (700, 7000), (None, 10_000), (50_000, 20_000)])
def test_no_more_candidates_than_a_pool_has_different_ones(distinct: int | None, candidates: int) -> None:
    class Pool(Blind):
        info = PluginInfo(hosts=(), degrees=(0.0,), distinct=distinct)

    evolution = choose_evolution(recipe_of(100_000, epsilon=4), Pool()).recipe.evolution
    assert isinstance(evolution.population, list)
    assert evolution.population[0] == candidates


def test_units_of_several_records_cast_fewer_votes() -> None:
    by_patient = {"privacy_unit": "patient", "declared_units": 250}
    four = {"iterations": 4}
    record = choose_evolution(recipe_of(4000, evolution=four), Drawn()).recipe.evolution
    patient = choose_evolution(recipe_of(4000, private=by_patient, evolution=four), Drawn()).recipe.evolution
    assert isinstance(record.population, list)
    assert isinstance(patient.population, list)
    assert patient.population[0] < record.population[0] / 3


@pytest.mark.parametrize(
    ("private", "sentence"),
    [
        ({}, r"private\.declared_size, which is missing"),
        ({"declared_size": 4000, "privacy_unit": "patient"}, r"private\.declared_units, which is missing.*\(patient\)"),
    ],
)
def test_numbers_that_the_rule_needs_are_asked_for(private: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        choose_evolution(recipe_of(None, private=private), Drawn())


@pytest.mark.parametrize("api", GENERATORS)
def test_what_is_chosen_is_not_called_too_large_and_the_same_given_by_hand_is_told_the_same(api: Shades) -> None:
    assert ENOUGH_ONCE <= SIGNAL_ONCE
    for size, labels, epsilon in product(SIZES[::2], LABELS, EPSILONS[::2]):
        recipe = chosen(size, labels, epsilon, api).recipe
        found = forecast(recipe, api, [])
        given = recipe_of(size, labels, epsilon, evolution=recipe.evolution.given)
        given = given.model_copy(update={"privacy": recipe.privacy})
        assert forecast(given, api, []).warnings == found.warnings
        votes = [signal.votes / signal.sigma for signal in found.signals if signal.votes is not None]
        if min(votes) >= SIGNAL_ONCE:  # else there are too few records for the fewest candidates
            assert not any("too large" in warning for warning in found.warnings), (size, labels, epsilon)


@pytest.mark.parametrize("threshold", [0, 0.5, 2.5])
def test_one_vote_with_the_planners_signal_is_enough_at_any_threshold_and_less_is_not(threshold: float) -> None:
    def told(population: int) -> list[str]:
        evolution = {"iterations": 1, "population": population, "neighbors": 32, "threshold_sigmas": threshold}
        found = forecast(recipe_of(1000, evolution=evolution), None, [])
        return [warning for warning in found.warnings if "too large" in warning]

    assert told(5350) == []
    (warning,) = told(8000)
    assert "and a threshold of " in warning


@pytest.mark.parametrize(("limit", "candidates"), [(600, 57), (1500, 142)])
def test_where_a_limit_is_too_small_for_several_votes_one_vote_takes_what_it_chooses(
    limit: int, candidates: int
) -> None:
    recipe = recipe_of(4000, limits={"max_images": limit})
    choice = choose_evolution(recipe, Drawn())
    evolution = choice.recipe.evolution
    assert (evolution.iterations, evolution.population) == (1, [10 * candidates] * 2)
    assert (evolution.degree, evolution.threshold_sigmas, evolution.selection) == ([0.0], 1.0, "systematic")
    assert choice.reasons[0] == (
        f"One vote over {10 * candidates:,} images is expected to be best, because the limits allow too few for two "
        "votes, of which each needs 50 candidates of a label. Nothing is varied: all images that are paid for are "
        "candidates, and the chosen ones are taken as they are."
    )
    found = forecast(recipe, Drawn())
    assert (found.images.least, found.images.most) == (10 * candidates,) * 2
    assert "copies" not in "".join(choice.reasons)


@pytest.mark.parametrize(
    ("size", "limit", "given"),
    [
        (4000, 1600, {}),  # enough for two votes
        (300, 1500, {}),  # too few records for two votes, whatever the limit
        (4000, 1500, {"degree": 0.3}),
        (4000, 1500, {"initial_variations": 1}),
        (4000, 1500, {"iterations": 2}),
    ],
)
def test_else_what_is_chosen_is_varied(size: int, limit: int, given: dict[str, Any]) -> None:
    choice = choose_evolution(recipe_of(size, limits={"max_images": limit}, evolution=given), Drawn())
    degree = choice.recipe.evolution.degree
    assert min(degree if isinstance(degree, list) else [degree]) > 0
    assert not any("expected to be best" in reason for reason in choice.reasons)


def test_it_says_how_many_copies_a_pool_comes_to() -> None:
    class Small(Blind):
        info = PluginInfo(hosts=(), degrees=(0.0,), distinct=50)

    (told,) = (each for each in choose_evolution(recipe_of(1000), Small()).reasons if "copies" in each)
    assert told == (
        "Degree 0 varies nothing, so the 2,500 images at the end are copies of the candidates: 5 of each if all were "
        "chosen, and more of those with many votes."
    )
    assert not [each for each in chosen(1000, 10, 1, GENERATORS[1]).reasons if "copies" in each]


@pytest.mark.parametrize("given", [{"iterations": 0}, {"degree": []}, {"keep": [], "lookahead": []}])
@pytest.mark.parametrize("api", [{"kind": "glyphs"}, {"kind": "dp_gaussian", "public": {"kind": "noise"}}])
def test_without_iterations_only_the_number_of_samples_is_chosen(given: dict[str, Any], api: dict[str, Any]) -> None:
    choice = choose_evolution(recipe_of(1000, evolution=given, api=api))
    assert choice.chosen == {"evolution.population": [2500]}
    assert choice.recipe.evolution.iterations == 0
