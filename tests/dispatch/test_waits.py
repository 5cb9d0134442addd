"""What an endpoint makes a run wait for stands on the progress line, and vanishes when the wait is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages
from adapters.server_client import ServerClient
from pe.dispatch import dispatcher as waits
from pe.dispatch.dispatcher import Dispatcher
from pe.plugins.protocols import DescribesWait
from pe.progress import Progress, Task
from pe.store.places import WAITING
from pe.store.writer import RunWriter
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving


class Told(Progress, Task):
    """Keeps what is told, and what stands for `pe status` at that time."""

    def __init__(self, place: Path) -> None:
        self._place, self.words, self.stood = place, list[str](), list[str]()

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        yield self

    def wait(self, words: str) -> None:
        self.words.append(words)
        self.stood.append(self._place.read_text() if self._place.exists() else "")


def test_a_rate_limit_is_told_until_the_server_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "WORTH_TELLING", 0.2)
    monkeypatch.setattr(waits, "EVERY", 0.02)
    run = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})
    run.set_waiting("left by a run that was killed")
    told = Told(run.folder / WAITING)
    with serving(OpenAIServer(Script(first=("", "429 500", "429 10")))) as url:
        given = {"model": "m", "base_url": f"{url}/v1", "key_env": None, "prompts": "a {label}", "image_size": SIDE}
        api = OpenAIImages(**given, concurrency=2, timeout=5)
        assert api.describe_wait() == ""
        with run:
            Dispatcher(api, run, ("cat",), seed=3, progress=told).random(np.zeros(6, np.int32))
    first, last = told.words
    assert first.startswith("rate limited by the server until ")
    assert last == ""
    assert told.stood == [first, ""]


def test_every_endpoint_tells_it() -> None:
    assert isinstance(ServerClient(base_url="http://127.0.0.1:1"), DescribesWait)
