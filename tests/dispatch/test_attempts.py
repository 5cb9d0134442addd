"""How often an item may fail, over stops and starts of its run; what a server that is away does to
that.
"""

import threading

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import retries
from pe.dispatch.limits import Limits, Meter
from pe.errors import APIError, Interrupted, LimitReached, Unavailable
from pe.plugins.protocols import Answer, Failed, Refused
from tests.dispatch.runs import dispatcher
from tests.generators import Shades, images_of

LABELS = np.zeros(3, np.int32)


class Scripted(Shades):
    """Leaves items out as it is told, request by request; remembers the seeds that it was asked
    for.
    """

    def __init__(self, *misses):
        super().__init__(max_chunk=1)
        self.misses, self.seeds = list(misses), list[int]()

    def random_api(self, request):
        self.seeds += request.seeds.tolist()
        return self._drop(super().random_api(request))

    def variation_api(self, request):
        return self._drop(super().variation_api(request))

    def _drop(self, answer):
        return (
            Answer(images_of(np.zeros(0)), missing={0: self.misses.pop(0)})
            if self.misses
            else answer
        )


@pytest.mark.parametrize(
    "miss", [Failed("nothing came"), Failed("too long", retryable=False), Refused("not this one")]
)
def test_a_run_that_stopped_at_an_item_asks_for_it_again_with_the_next_seeds(tmp_path, miss):
    api = Scripted(*[miss] * 1000)
    for start in range(1, 4):
        before = len(api.seeds)
        with pytest.raises(APIError, match=r"`pe run RUN` (goes on|asks for it again)"):
            dispatcher(tmp_path / "run", api, attempts=3, retries=0).random(LABELS)
        assert len(api.seeds) > before, start
    assert len(set(api.seeds)) == len(api.seeds)
    api.misses.clear()
    assert len(dispatcher(tmp_path / "run", api).random(LABELS).samples) == len(LABELS)


def test_a_variation_that_was_given_up_keeps_its_parent_when_the_run_goes_on(tmp_path):
    api = Scripted()
    population = dispatcher(tmp_path / "run", api).random(LABELS)
    given_up = [Refused("no")] * 9  # three items, three times each
    api.misses = [*given_up[:8], Failed("stop", retryable=False)]
    with pytest.raises(APIError):
        dispatcher(tmp_path / "run", api).vary("v", "v", population, np.arange(3), 0.5, 1, "vary")
    api.misses = [Refused("no")]
    made = dispatcher(tmp_path / "run", api).vary(
        "v", "v", population, np.arange(3), 0.5, 1, "vary"
    )
    assert len(made.samples) == 3


@pytest.mark.parametrize(
    ("error", "seconds", "patience"),
    [(Interrupted, None, 900), (LimitReached, 0.2, 900), (Unavailable, None, 0.1)],
)
def test_a_run_that_waits_for_its_server_is_stopped_at_once(
    tmp_path, monkeypatch, error, seconds, patience
):
    monkeypatch.setattr(retries, "FIRST", 0.05)
    known = {
        "model": "m",
        "key_env": None,
        "prompts": "a",
        "longest": 99,
        "concurrency": 3,
        "tries": 2,
    }
    api = Chat(**known, base_url="http://127.0.0.1:9/v1", patience=patience)
    meter = Meter(Limits(max_seconds=seconds))
    if error is Interrupted:
        threading.Timer(0.1, meter.stop.set).start()
    with pytest.raises(error, match=r"samples of population/0 are there; `pe run RUN` goes on"):
        dispatcher(tmp_path / "run", api, meter=meter).random(np.zeros(20, np.int32))
    assert dispatcher(tmp_path / "run", api).run.journal.misses("population/0") == []


def test_items_that_fail_in_a_row_stop_a_phase_that_had_begun_well(tmp_path):
    good, labels = 10, np.zeros(500, np.int32)

    class Breaks(Scripted):
        def random_api(self, request):
            if len(self.seeds) == good:
                self.misses = [Failed(f"an event stream, {i % 3}th reason") for i in range(10_000)]
            return super().random_api(request)

    api = Breaks()
    with pytest.raises(
        APIError, match=r"the last \d+ samples asked for failed .*; `pe run RUN` goes on"
    ):
        dispatcher(tmp_path / "run", api).random(labels)
    assert 48 <= len(api.seeds) - good <= 60
