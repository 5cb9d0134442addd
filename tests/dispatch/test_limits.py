"""`limits.max_seconds` counts the time in which the generator is asked; what it waits for is told
meanwhile.
"""

from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

from pe.data.population import Members
from pe.dispatch import limits
from pe.dispatch.limits import Limits, Meter
from pe.errors import LimitReached
from tests.dispatch.runs import dispatcher
from tests.generators import Shades

LABELS = np.zeros(8, np.int32)


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for what requests take, and what a test adds."""
    found = SimpleNamespace(now=100.0, monotonic=lambda: found.now)
    monkeypatch.setattr(limits, "time", found)
    return found


class Slow(Shades):
    """Each round of requests that are under way at once takes so many seconds."""

    def __init__(self, clock, seconds, concurrency=1):
        super().__init__(max_chunk=2, concurrency=concurrency)
        self._clock, self._seconds, self._round = clock, seconds, Barrier(concurrency)

    def random_api(self, request):
        if self._round.wait(20) == 0:
            self._clock.now += self._seconds
        return super().random_api(request)


def limited(folder, api):
    return dispatcher(folder / "run", api, meter=Meter(Limits(max_seconds=1.0)))


def test_private_work_between_requests_does_not_count(tmp_path, clock):
    dispatch = limited(tmp_path, Slow(clock, 0.2))
    first = dispatch.random(LABELS)
    clock.now += 5
    assert len(dispatch.variations(1, first, Members.offspring(np.arange(8)), 0.5)) == 8


def test_a_generator_that_takes_longer_reaches_it_over_several_phases_and_another_process_goes_on(
    tmp_path, clock
):
    dispatch = limited(tmp_path, Slow(clock, 0.6))
    dispatch.draw("one", "one", LABELS[:2], "one")
    with pytest.raises(LimitReached, match=r"limits\.max_seconds = 1 is reached"):
        dispatch.random(LABELS)
    assert len(limited(tmp_path, Slow(clock, 0)).random(LABELS)) == 8


def test_requests_that_are_under_way_at_once_count_once(tmp_path, clock):
    assert (
        len(limited(tmp_path, Slow(clock, 0.2, concurrency=4)).random(np.zeros(32, np.int32))) == 32
    )
