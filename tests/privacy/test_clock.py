"""A public clock lets private work end at its deadline, however long it took; a broken one is found out.

Time stands still here but for what the work takes and what is waited.
"""

from __future__ import annotations

from contextlib import contextmanager
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

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout >= 0
        self.now += 0 if self.is_set() else timeout
        return self.is_set()


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: found.now)
    return found


def ends_at_its_deadline(passing: Time, kind: type[PublicClock]) -> None:
    missed: list[str] = []
    clock = kind({"histogram/1": 5.0}, missed.append, passing)
    for taken in (0.0, 0.3, 4.9, 5.0):
        began = passing.now
        with clock.hold("histogram/1"):
            passing.now += taken
        assert passing.now == pytest.approx(began + 5)
    assert not missed
    with clock.hold("histogram/1"):
        passing.now += 7
    assert missed == ["histogram/1"]


def test_work_ends_at_its_deadline_or_is_told_to_have_missed_it(passing: Time) -> None:
    ends_at_its_deadline(passing, PublicClock)


class WaitsAfterwards(PublicClock):
    @contextmanager
    def hold(self, work):
        yield
        self.stop.wait(self.deadlines[work])


class WaitsForNothing(PublicClock):
    @contextmanager
    def hold(self, work):
        yield


class TellsNothing(PublicClock):
    @contextmanager
    def hold(self, work):
        before = clock_module.time.monotonic()
        yield
        self.stop.wait(max(0.0, before + self.deadlines[work] - clock_module.time.monotonic()))


@pytest.mark.parametrize("broken", [WaitsAfterwards, WaitsForNothing, TellsNothing])
def test_a_broken_clock_is_found_out(passing: Time, broken: type[PublicClock]) -> None:
    with pytest.raises(AssertionError):
        ends_at_its_deadline(passing, broken)


def test_work_without_a_deadline_is_not_held(passing: Time) -> None:
    with PublicClock({"histogram/1": 5.0}, stop=passing).hold("fit/1"):
        pass
    assert passing.now == 100


def test_a_stop_ends_the_wait(passing: Time) -> None:
    passing.set()
    with PublicClock({"histogram/1": 5.0}, stop=passing).hold("histogram/1"):
        pass
    assert passing.now == 100


def test_a_ledger_holds_a_draw_and_returns_what_is_kept_at_once(passing: Time) -> None:
    ledger = Ledger(Budget(1.0, 1e-5), Relation.ADD_REMOVE, "record", [RELEASE], MemoryStore())
    ledger.clock = PublicClock({RELEASE.name: 5.0}, stop=passing)
    drawn = ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, RELEASE.scale))
    assert passing.now == 105
    assert (ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1.0)) == drawn).all()
    assert passing.now == 105


def test_a_draw_that_fails_is_not_held(passing: Time) -> None:
    ledger = Ledger(Budget(1.0, 1e-5), Relation.ADD_REMOVE, "record", [RELEASE], MemoryStore())
    ledger.clock = PublicClock({RELEASE.name: 5.0}, stop=passing)
    with pytest.raises(PrivacyError, match="was not drawn"):
        ledger.release(RELEASE, lambda noise: 1 / 0)
    assert passing.now == 100
