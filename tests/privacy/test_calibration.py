"""Calibrated noise never exceeds the target, and wastes next to nothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe.errors import PrivacyError
from pe.histogram import histogram_releases
from pe.planning.layout import PlanSettings, noise_multiplier_for, plan
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import grid_for
from pe.privacy.release import Poisson, Relation, Release


@given(
    target=st.floats(math.log(1e-3), math.log(1e3)).map(math.exp),
    log_delta=st.floats(-12, -1),
    iterations=st.sampled_from([1, 2, 5, 29, 1000, 10**5]),
    relation=st.sampled_from(list(Relation)),
)
def test_noise_for_an_epsilon_gives_that_epsilon_back(target, log_delta, iterations, relation):
    budget = Budget(target, 10**log_delta)
    z = noise_multiplier_for(budget, iterations, relation)
    [one] = histogram_releases(z, 1, relation=relation)
    used = epsilon([one] * min(iterations, 1000), budget.delta) if iterations <= 1000 else None
    together = replace(one, count=iterations)
    found = epsilon([together], budget.delta)
    assert used in (None, found)
    assert found <= target
    assert found >= target * (1 - 1e-6) - 1e-9 or z <= 2e-3


@given(z=st.floats(math.log(1e-2), math.log(1e5)).map(math.exp), iterations=st.sampled_from([1, 7, 10**4]))
def test_the_epsilon_of_a_noise_gives_that_noise_back(z, iterations):
    [one] = histogram_releases(z, 1)
    found = epsilon([replace(one, count=iterations)], 1e-6)
    if found == 0:
        return
    back = noise_multiplier_for(Budget(found, 1e-6), iterations)
    assert back == pytest.approx(z, rel=1e-6)


def test_a_plan_meets_its_budget_jointly_and_not_below_a_thousandth():
    dp_sgd = Release("dp_sgd", "discrete_gaussian", 1.0, 20.0, sampling=Poisson(0.01), count=100, grid=2**30)
    budget = Budget(4, 1e-6)
    for settings in (
        PlanSettings(6),
        PlanSettings(6, class_counts=0.05),
        PlanSettings(3, weights=(1, 2, 3), class_counts=0.1, unit="patient"),
        PlanSettings(6, Relation.REPLACE_ONE, class_counts=0.05),
        PlanSettings(2, fixed=(dp_sgd,)),
    ):
        releases = plan(budget, settings)
        assert 0.999 * budget.epsilon <= epsilon(releases, budget.delta) <= budget.epsilon


def test_a_schedule_gives_each_iteration_its_share():
    releases = plan(Budget(4, 1e-6), PlanSettings(3, weights=(1, 2, 5)))
    shares = [1 / release.noise_multiplier**2 for release in releases]
    assert [share / shares[0] for share in shares] == pytest.approx([1, 2, 5])
    constant = plan(Budget(4, 1e-6), PlanSettings(3))
    assert len({release.noise_multiplier for release in constant}) == 1
    assert [release.name for release in constant] == ["histogram/1", "histogram/2", "histogram/3"]


def test_class_counts_take_their_share_and_their_relation():
    counts, *rest = plan(Budget(2, 1e-6), PlanSettings(2, class_counts=0.1))
    assert (counts.name, counts.mechanism, counts.sensitivity, counts.grid) == (
        "class_counts",
        "discrete_laplace",
        1,
        1,
    )
    assert 1 / counts.noise_multiplier == pytest.approx(0.2)
    assert epsilon([counts], 1e-9) == pytest.approx(0.2, rel=1e-6)
    settings = PlanSettings(2, Relation.REPLACE_ONE, "patient", class_counts=0.1)
    users, *_ = plan(Budget(2, 1e-6), settings)
    assert users.sensitivity == 2
    assert users.grid is not None
    assert users.grid >= 2**16
    assert len(rest) == 2


def test_a_given_noise_multiplier_is_planned_as_it_is():
    releases = plan(Budget(2, 1e-6), PlanSettings(4), noise_multiplier=3.0)
    assert {release.noise_multiplier for release in releases} == {3.0}


def test_what_cannot_be_met_is_refused():
    too_much = Release("dp_sgd", "discrete_gaussian", 1.0, 0.5, grid=2**30)
    with pytest.raises(PrivacyError, match="takes all of it"):
        plan(Budget(1, 1e-6), PlanSettings(3, fixed=(too_much,)))
    with pytest.raises(PrivacyError, match="one weight above 0"):
        plan(Budget(1, 1e-6), PlanSettings(3, weights=(1, 0, 1)))
    with pytest.raises(PrivacyError, match="one weight above 0"):
        plan(Budget(1, 1e-6), PlanSettings(3, weights=(1, 1)))
    with pytest.raises(PrivacyError, match="share"):
        plan(Budget(1, 1e-6), PlanSettings(3, class_counts=1.0))


@pytest.mark.parametrize(
    "relation",
    [
        Relation.ADD_REMOVE,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (Relation.REPLACE_ONE, Relation.ZERO_OUT)),
    ],
)
def test_a_budget_that_can_be_met_is_met_though_the_quick_bounds_see_no_room_in_it(relation):
    sampled = Release("fit", "discrete_gaussian", 1.0, 0.95, relation, sampling=Poisson(0.125), count=7, grid=2**30)
    exact, quick = epsilon([sampled], 1e-5), epsilon([sampled], 1e-5, quick=True)
    target = exact + (quick - exact) / 4

    def both(z):
        return [sampled, Release("votes", "discrete_gaussian", 1.0, z, relation, grid=2**30)]

    least = calibrate(both, Budget(target, 1e-5))
    assert epsilon(both(least), 1e-5) <= target < epsilon(both(least * 0.999), 1e-5)
    with pytest.raises(PrivacyError, match="No noise brings this within"):
        calibrate(both, Budget(0.9 * exact, 1e-5))


def test_a_loose_target_does_not_search_for_ever():
    assert calibrate(lambda z: histogram_releases(z, 1), Budget(1e12, 0.1)) <= 4e-3


@given(deviation=st.floats(2**-15, 1e6), fractional=st.booleans())
def test_the_grid_is_the_smallest_fine_power_of_two(deviation, fractional):
    grid = grid_for(deviation, fractional=fractional)
    assert grid & (grid - 1) == 0
    assert grid * deviation >= 2**16
    assert not fractional or grid >= 2**16
    assert grid == 1 or grid / 2 * deviation < 2**16 or (fractional and grid == 2**16)


@pytest.mark.parametrize("nudge", [-3e-15, 3e-15])
def test_a_machine_that_rounds_otherwise_finds_the_same_noise(nudge):
    for target in (0.01, 0.1, 0.5, 1, 2, 3, 8, 10, 50):
        here, there = (
            calibrate(lambda z, by=by: histogram_releases(z * (1 + by), 6), Budget(target, 1e-5)) for by in (0, nudge)
        )
        assert here == there
