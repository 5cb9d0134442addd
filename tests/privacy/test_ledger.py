"""The only door to noise: charge, draw, keep, return; and refuse before the act."""

from dataclasses import replace

import numpy as np
import pytest

from pe.errors import BudgetExceeded, PrivacyError
from pe.planning.releases import PlanSettings, plan
from pe.privacy.accounting import delta, epsilon
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Relation, Release
from tests.seeded_noise import UnsafeSeededNoise

BUDGET = Budget(4, 1e-6)
ROOMY = Budget(40, 1e-6)
PLAN = plan(BUDGET, PlanSettings(3))
FIRST = PLAN[0]


class Journal(MemoryStore):
    """A store that writes down what happens, and can crash and be asked about traces."""

    def __init__(self, traces=False, crash_at=None):
        super().__init__()
        self.happened, self.crash_at, self._traces = [], crash_at, traces

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


def opened(store, budget=ROOMY, planned=PLAN, noise=None):
    return Ledger(
        budget,
        Relation.ADD_REMOVE,
        "record",
        planned,
        store,
        SystemNoise() if noise is None else noise,
    )


def drawing(store, release=FIRST):
    def draw(noise):
        store.happened.append("draw")
        return noise.discrete_gaussian(8, release.scale)

    return draw


def crash(store, budget=ROOMY):
    """Let the first release be stopped by a power cut."""
    with pytest.raises(OSError, match="power cut"):
        opened(store, budget).release(FIRST, drawing(store))


def test_it_charges_before_it_draws_and_keeps_before_it_returns_what_it_never_draws_again():
    store = Journal()
    ledger = opened(store)
    array = ledger.release(FIRST, drawing(store))
    assert store.happened == ["charge", "draw", "keep"]
    assert array is store.find(FIRST.name).array
    assert not array.flags.writeable
    again = opened(store)
    assert not ledger.has_drawn(PLAN[1])
    assert again.has_drawn(FIRST)
    assert np.array_equal(again.release(FIRST, drawing(store)), array)
    assert store.happened.count("draw") == 1
    assert ledger.total() == epsilon(PLAN, ROOMY.delta)


def test_it_refuses_before_the_act_what_does_not_fit():
    store = Journal()
    ledger = opened(store, BUDGET)
    extra = Release("extra", "discrete_gaussian", 1.0, 5.0, grid=2**16)
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        ledger.release(extra, drawing(store, extra))
    assert store.happened == []
    assert ledger.total() <= BUDGET.epsilon


SAFE, UNSAFE = SystemNoise(), UnsafeSeededNoise(1)


@pytest.mark.parametrize(
    ("crash_at", "traces", "noise", "charges"),
    [
        ("charge", False, SAFE, 1),
        ("keep", False, SAFE, 1),
        ("keep", True, SAFE, 2),  # a first draw may have left traces
        ("keep", False, UNSAFE, 2),  # the first charge was for safe noise
    ],
)
def test_after_a_crash_a_release_is_charged_again_where_its_first_charge_does_not_cover_it(
    crash_at, traces, noise, charges
):
    store = Journal(traces, crash_at)
    crash(store)
    ledger = opened(store, noise=noise)
    ledger.release(FIRST, drawing(store))
    assert store.happened.count("charge") == store.find(FIRST.name).charges == charges
    assert ledger.total() == epsilon([*PLAN, *[FIRST] * (charges - 1)], ROOMY.delta)
    assert opened(store).unsafe == (noise is UNSAFE)  # for good


def test_a_second_charge_that_does_not_fit_is_refused():
    store = Journal(traces=True, crash_at="keep")
    crash(store, BUDGET)
    with pytest.raises(BudgetExceeded):
        opened(store, BUDGET).release(FIRST, drawing(store))


def test_the_total_is_the_planned_one_from_the_start_and_what_goes_beyond_counts_too():
    store = Journal()
    ledger = opened(store)
    before = ledger.total()
    ledger.release(FIRST, drawing(store))
    assert ledger.total() == before == epsilon(PLAN, BUDGET.delta)
    assert list(ledger.epsilon_at([1e-5, 1e-7, 2.0])) == [1e-5, 1e-7]
    assert delta(ledger.events(), ledger.total()) <= BUDGET.delta * (1 + 1e-6)
    extra = Release("extra", "discrete_laplace", 1.0, 5.0, grid=1)
    ledger.release(extra, lambda noise: noise.discrete_laplace(3, extra.scale))
    assert ledger.total() == epsilon([*PLAN, extra], ROOMY.delta)
    with pytest.raises(BudgetExceeded, match="plan"):
        opened(store, BUDGET)


def test_without_a_budget_nothing_is_refused_and_nothing_promised():
    store = Journal()
    ledger = opened(store, None)
    ledger.release(FIRST, drawing(store))
    assert ledger.total() == float("inf")
    assert ledger.unsafe


def test_a_plan_above_the_budget_or_with_a_name_twice_is_refused():
    with pytest.raises(BudgetExceeded, match="plan"):
        opened(Journal(), Budget(3.99, 1e-6))
    with pytest.raises(PrivacyError, match="the same name"):
        opened(Journal(), planned=[FIRST, FIRST])


@pytest.mark.parametrize(
    "kind",
    [
        {"relation": Relation.REPLACE_ONE},
        {"relation": Relation.ZERO_OUT},
        {"unit": "patient"},
        {"name": FIRST.name},
    ],
)
def test_a_release_of_another_kind_is_refused(kind):
    store = Journal()
    other = replace(Release("other", "discrete_gaussian", 1.0, 50.0, grid=2**16), **kind)
    with pytest.raises(PrivacyError):
        opened(store).release(other, drawing(store))
    assert store.happened == []
    if "name" not in kind:
        with pytest.raises(PrivacyError, match="one ledger for each relation and unit"):
            opened(store, planned=[other])


def test_a_run_cannot_go_on_with_other_noise_under_the_same_names():
    store = Journal()
    opened(store).release(FIRST, drawing(store))
    with pytest.raises(PrivacyError, match="other parameters"):
        opened(store, planned=plan(ROOMY, PlanSettings(3)))


@pytest.mark.parametrize("wrong", [[1, 2], np.array([object()])])
def test_only_arrays_of_numbers_are_released(wrong):
    with pytest.raises(PrivacyError, match="not an array"):
        opened(Journal()).release(FIRST, lambda noise: wrong)


def test_what_a_draw_that_fails_says_of_a_record_is_not_passed_on():
    def draw(noise):
        raise ValueError("record 17 has the value 3.5")

    with pytest.raises(
        PrivacyError, match=r"^Release 'histogram/1' was not drawn \(ValueError\)\. The log"
    ) as raised:
        opened(MemoryStore()).release(FIRST, draw)
    assert raised.value.__cause__ is raised.value.__context__ is None


def test_memory_cannot_rule_out_traces_and_keeps_once_what_was_charged():
    store = MemoryStore()
    assert store.traces("histogram/1")
    for prepare in (
        lambda: None,
        lambda: (store.charge(FIRST, False), store.keep(FIRST.name, np.zeros(2))),
    ):
        prepare()
        with pytest.raises(PrivacyError, match="not charged, or is kept already"):
            store.keep(FIRST.name, np.zeros(2))


@pytest.mark.parametrize(
    ("e", "d"), [(0, 1e-6), (-1, 1e-6), (float("inf"), 1e-6), (1, 0), (1, 1), (1, float("nan"))]
)
def test_a_budget_out_of_range_is_refused(e, d):
    with pytest.raises(PrivacyError):
        Budget(e, d)
