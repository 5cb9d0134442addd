"""`limits.max_seconds` counts the time in which the generator is asked; what it waits for is told meanwhile."""

import time
from contextlib import contextmanager

import numpy as np
import pytest

from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages
from pe.data.population import Members
from pe.dispatch import dispatcher as waits
from pe.dispatch.limits import Limits, Meter
from pe.errors import LimitReached
from pe.progress import Progress, Task
from pe.store.places import WAITING
from tests.dispatch.runs import dispatcher
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Shades

LABELS, LIMIT = np.zeros(8, np.int32), 0.4


class Slow(Shades):
    """Takes a share of the limit over every request."""

    def __init__(self, share, **settings):
        super().__init__(max_chunk=2, **settings)
        self._seconds = share * LIMIT

    def random_api(self, request):
        time.sleep(self._seconds)
        return super().random_api(request)


def test_private_work_between_requests_does_not_count(tmp_path):
    dispatch = dispatcher(tmp_path / "run", Slow(0.1), meter=Meter(Limits(max_seconds=LIMIT)))
    first = dispatch.random(LABELS)
    time.sleep(LIMIT)
    assert len(dispatch.variations(1, first, Members.offspring(np.arange(8)), 0.5)) == 8


def test_a_generator_that_takes_longer_reaches_it_over_several_phases_and_another_process_goes_on(tmp_path):
    def limited(share):
        return dispatcher(tmp_path / "run", Slow(share), meter=Meter(Limits(max_seconds=LIMIT)))

    dispatch = limited(0.6)
    dispatch.draw("one", "one", LABELS[:2], "one")
    with pytest.raises(LimitReached, match=r"limits\.max_seconds = 0\.4 is reached"):
        dispatch.random(LABELS)
    assert len(limited(0).random(LABELS)) == 8


def test_requests_that_are_under_way_at_once_count_once(tmp_path):
    meter = Meter(Limits(max_seconds=LIMIT))
    assert len(dispatcher(tmp_path / "run", Slow(0.4, concurrency=4), meter=meter).random(LABELS)) == 8


class Told(Progress, Task):
    """Keeps what is told, and what stands for `pe status` at that time."""

    def __init__(self, place):
        self._place, self.words, self.stood = place, list[str](), list[str]()

    @contextmanager
    def task(self, description, total):
        yield self

    def wait(self, words):
        self.words.append(words)
        self.stood.append(self._place.read_text() if self._place.exists() else "")


def test_a_rate_limit_is_told_until_the_server_lets_go(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "WORTH_TELLING", 0.2)
    monkeypatch.setattr(waits, "EVERY", 0.02)
    told = Told(tmp_path / "run" / WAITING)
    with serving(OpenAIServer(Script(first=("", "429 500", "429 10")))) as url:
        given = {"model": "m", "base_url": f"{url}/v1", "key_env": None, "prompts": "a {label}", "image_size": SIDE}
        api = OpenAIImages(**given, concurrency=2, timeout=5)
        assert api.describe_wait() == ""
        dispatch = dispatcher(tmp_path / "run", api, progress=told)
        dispatch.run.set_waiting("left by a run that was killed")
        dispatch.random(np.zeros(6, np.int32))
    first, last = told.words
    assert first.startswith("rate limited by the server until ")
    assert last == ""
    assert told.stood == [first, ""]
