"""The only door to noise: charge, draw, keep, return; and refuse before the act.

Each promise is a function of a ledger class, and is shown to fail for a ledger broken on purpose.
"""

import numpy as np
import pytest

from pe.errors import BudgetExceeded, PrivacyError
from pe.planning.layout import PlanSettings, plan
from pe.privacy.accounting import delta, epsilon
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise
from pe.privacy.release import Relation, Release

BUDGET = Budget(4, 1e-6)
ROOMY = Budget(40, 1e-6)
PLAN = plan(BUDGET, PlanSettings(3))
FIRST = PLAN[0]


class Journal(MemoryStore):
    """A store that writes down what happens, and can crash and be asked about traces."""

    def __init__(self, traces=False):
        super().__init__()
        self.happened, self.crash_at, self._traces = [], None, traces

    def charge(self, release, unsafe):
        self._step("charge")
        super().charge(release, unsafe)

    def keep(self, name, array):
        self._step("keep")
        super().keep(name, array)

    def traces(self, name):
        return self._traces

    def _step(self, what):
        if self.crash_at == what:
            self.crash_at = None
            raise OSError("power cut")
        self.happened.append(what)


def opened(kind, store, budget=ROOMY, planned=PLAN, noise=None):
    return kind(budget, Relation.ADD_REMOVE, "record", planned, store, SystemNoise() if noise is None else noise)


def drawing(store, release=FIRST):
    def draw(noise):
        store.happened.append("draw")
        return noise.discrete_gaussian(8, release.scale)

    return draw


def charges_before_it_draws_and_keeps_before_it_returns(kind):
    store = Journal()
    array = opened(kind, store).release(FIRST, drawing(store))
    assert store.happened == ["charge", "draw", "keep"]
    assert array is store.find(FIRST.name).array


def returns_what_is_kept_without_a_new_draw(kind):
    store = Journal()
    ledger = opened(kind, store)
    one = ledger.release(FIRST, drawing(store))
    other = opened(kind, store).release(FIRST, drawing(store))
    assert np.array_equal(one, other)
    assert store.happened.count("draw") == 1
    assert ledger.total() == epsilon(PLAN, ROOMY.delta)


def refuses_before_the_act_what_does_not_fit(kind):
    store = Journal()
    ledger = opened(kind, store, BUDGET)
    extra = Release("extra", "discrete_gaussian", 1.0, 5.0, grid=2**16)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        ledger.release(extra, drawing(store, extra))
    assert store.happened == []
    assert ledger.total() <= BUDGET.epsilon


def charges_again_where_a_first_draw_may_have_left_traces(kind):
    store = Journal(traces=True)
    store.crash_at = "keep"
    ledger = opened(kind, store)
    with pytest.raises(OSError, match="power cut"):
        ledger.release(FIRST, drawing(store))
    opened(kind, store).release(FIRST, drawing(store))
    assert store.happened == ["charge", "draw", "charge", "draw", "keep"]
    assert ledger.total() == epsilon([*PLAN, FIRST], ROOMY.delta)


def stays_void_once_unsafe_noise_was_used(kind):
    store = Journal()
    opened(kind, store, noise=UnsafeSeededNoise(1)).release(FIRST, drawing(store))
    assert opened(kind, store).unsafe


PROMISES = [
    charges_before_it_draws_and_keeps_before_it_returns,
    returns_what_is_kept_without_a_new_draw,
    refuses_before_the_act_what_does_not_fit,
    charges_again_where_a_first_draw_may_have_left_traces,
    stays_void_once_unsafe_noise_was_used,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_the_ledger(promise):
    promise(Ledger)


class DrawsFirst(Ledger):
    def release(self, release, draw):
        array = draw(self._noise)
        return super().release(release, lambda noise: array)


class ReturnsBeforeItKeeps(Ledger):
    def _draw(self, release, draw):
        return draw(self._noise)


class DrawsAnew(Ledger):
    def release(self, release, draw):
        return draw(self._noise) if self._store.find(release.name) else super().release(release, draw)


class NeverRefuses(Ledger):
    def _check_affordable(self, events, what):
        return None


class ChargesOnce(Ledger):
    def _charge(self, release, stored):
        if stored is None:
            super()._charge(release, stored)


class ForgetsItsNoise(Ledger):
    @property
    def unsafe(self):
        return self._noise.unsafe


BROKEN = [
    (DrawsFirst, charges_before_it_draws_and_keeps_before_it_returns),
    (ReturnsBeforeItKeeps, charges_before_it_draws_and_keeps_before_it_returns),
    (DrawsAnew, returns_what_is_kept_without_a_new_draw),
    (NeverRefuses, refuses_before_the_act_what_does_not_fit),
    (ChargesOnce, charges_again_where_a_first_draw_may_have_left_traces),
    (ForgetsItsNoise, stays_void_once_unsafe_noise_was_used),
]


@pytest.mark.parametrize(("kind", "promise"), BROKEN, ids=lambda one: one.__name__)
def test_a_broken_ledger_is_found_out(kind, promise):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        promise(kind)


@pytest.mark.parametrize("crash_at", ["charge", "keep"])
def test_after_a_crash_a_release_without_traces_stays_under_its_charge(crash_at):
    store = Journal(traces=False)
    store.crash_at = crash_at
    with pytest.raises(OSError, match="power cut"):
        opened(Ledger, store, BUDGET).release(FIRST, drawing(store))
    ledger = opened(Ledger, store, BUDGET)
    ledger.release(FIRST, drawing(store))
    assert store.happened.count("charge") == 1
    assert ledger.total() <= BUDGET.epsilon


def test_a_second_charge_that_does_not_fit_is_refused():
    store = Journal(traces=True)
    store.crash_at = "keep"
    with pytest.raises(OSError, match="power cut"):
        opened(Ledger, store, BUDGET).release(FIRST, drawing(store))
    with pytest.raises(BudgetExceeded):
        opened(Ledger, store, BUDGET).release(FIRST, drawing(store))


def test_the_total_is_the_planned_one_from_the_start():
    store = Journal()
    ledger = opened(Ledger, store, BUDGET)
    before = ledger.total()
    ledger.release(FIRST, drawing(store))
    assert ledger.total() == before == epsilon(PLAN, BUDGET.delta)
    assert list(ledger.epsilon_at([1e-5, 1e-7])) == [1e-5, 1e-7]
    assert delta(ledger.events(), ledger.total()) <= BUDGET.delta * (1 + 1e-6)


def test_what_is_released_beyond_the_plan_counts_too():
    store = Journal()
    ledger = opened(Ledger, store, ROOMY)
    extra = Release("extra", "discrete_laplace", 1.0, 5.0, grid=1)
    ledger.release(extra, lambda noise: noise.discrete_laplace(3, extra.scale))
    assert ledger.total() == epsilon([*PLAN, extra], ROOMY.delta)
    with pytest.raises(BudgetExceeded, match="plan"):
        opened(Ledger, store, BUDGET)


def test_a_plan_above_the_budget_is_refused():
    with pytest.raises(BudgetExceeded, match="plan"):
        opened(Ledger, Journal(), Budget(3.99, 1e-6))


@pytest.mark.parametrize(
    "release",
    [
        Release("other", "discrete_gaussian", 1.0, 50.0, Relation.REPLACE_ONE, grid=2**16),
        Release("other", "discrete_gaussian", 1.0, 50.0, Relation.ZERO_OUT, grid=2**16),
        Release("other", "discrete_gaussian", 1.0, 50.0, unit="patient", grid=2**16),
        Release(FIRST.name, "discrete_gaussian", 1.0, 50.0, grid=2**16),
    ],
    ids=["relation", "zero_out", "unit", "declaration"],
)
def test_a_release_of_another_kind_is_refused(release):
    store = Journal()
    with pytest.raises(PrivacyError):
        opened(Ledger, store).release(release, drawing(store))
    assert store.happened == []


def test_a_run_cannot_go_on_with_other_noise_under_the_same_names():
    store = Journal()
    opened(Ledger, store).release(FIRST, drawing(store))
    with pytest.raises(PrivacyError, match="other parameters"):
        opened(Ledger, store, planned=plan(ROOMY, PlanSettings(3)))


def test_what_is_returned_cannot_be_changed():
    store = Journal()
    array = opened(Ledger, store).release(FIRST, drawing(store))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0


def test_only_arrays_of_numbers_are_released():
    for wrong in ([1, 2], np.array([object()])):
        with pytest.raises(PrivacyError, match="not an array"):
            opened(Ledger, Journal()).release(FIRST, lambda noise, wrong=wrong: wrong)


def test_what_a_draw_that_fails_says_of_a_record_is_not_passed_on():
    def draw(noise):
        raise ValueError("record 17 has the value 3.5")

    with pytest.raises(PrivacyError, match=r"^Release 'histogram/1' was not drawn \(ValueError\): the log") as raised:
        opened(Ledger, MemoryStore()).release(FIRST, draw)
    assert raised.value.__cause__ is raised.value.__context__ is None


def test_memory_cannot_rule_out_traces():
    assert MemoryStore().traces("histogram/1")


@pytest.mark.parametrize(("e", "d"), [(0, 1e-6), (-1, 1e-6), (float("inf"), 1e-6), (1, 0), (1, 1), (1, float("nan"))])
def test_a_budget_out_of_range_is_refused(e, d):
    with pytest.raises(PrivacyError):
        Budget(e, d)
