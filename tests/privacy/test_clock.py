"""A public clock lets private work end at its deadline, however long it took.

Time stands still here but for what the work takes and what is waited.
"""

from threading import Event

import pytest

from pe.errors import PrivacyError
from pe.privacy import ledger as clock_module
from pe.privacy.ledger import Budget, Ledger, MemoryStore, PublicClock
from pe.privacy.release import Relation, Release

RELEASE = Release("histogram/1", "discrete_gaussian", 1.0, 4.0, grid=2**14)


class Time(Event):
    """What the time is; waiting lets it pass."""

    now = 100.0

    def wait(self, timeout=None):
        assert timeout >= 0
        self.now += 0 if self.is_set() else timeout
        return self.is_set()


@pytest.fixture
def passing(monkeypatch):
    found = Time()
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: found.now)
    return found


@pytest.fixture
def ledger(passing):
    ledger = Ledger(Budget(1.0, 1e-5), Relation.ADD_REMOVE, "record", [RELEASE], MemoryStore())
    ledger.clock = PublicClock({"histogram": 5.0}, stop=passing)
    return ledger


def test_work_ends_at_its_deadline_or_is_told_to_have_missed_it(passing):
    missed = []
    clock = PublicClock({"histogram": 5.0}, missed.append, passing)
    for taken in (0.0, 0.3, 4.9, 5.0):
        began = passing.now
        with clock.hold("histogram/1"):
            passing.now += taken
        assert passing.now == pytest.approx(began + 5)
    assert not missed
    with clock.hold("histogram/1"):
        passing.now += 7
    assert missed == ["histogram/1"]


def test_work_without_a_deadline_and_work_that_is_stopped_are_not_held(passing):
    clock = PublicClock({"histogram": 5.0}, stop=passing)
    with clock.hold("fit/1"):
        pass
    passing.set()
    with clock.hold("histogram/1"):
        pass
    assert passing.now == 100


def test_a_ledger_holds_a_draw_and_returns_what_is_kept_at_once(passing, ledger):
    drawn = ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, RELEASE.scale))
    assert passing.now == 105
    assert (ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1.0)) == drawn).all()
    assert passing.now == 105


def test_a_draw_that_fails_is_not_held(passing, ledger):
    with pytest.raises(PrivacyError, match="was not drawn"):
        ledger.release(RELEASE, lambda noise: 1 / 0)
    assert passing.now == 100
