"""What becomes of a request before and after a replica; no server is needed."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError
from starlette.requests import Request

from adapters.server import routes as bodies
from adapters.server.checks import Description, Limits, Settings
from adapters.server.errors import Refusal
from adapters.server.formats import BatchAnswer, BatchRequest
from adapters.server.routes import JSON, Bounded
from adapters.server.service import Admission, Service

SMALL = Description("small", 2, class_count=62, shape=(28, 28, 1))


def wanted(size: tuple[int, int] | None = None, count: int = 1) -> BatchRequest:
    return BatchRequest(np.arange(count, dtype=np.uint64), size=size)


def body_of(pieces: list[bytes], pause: float) -> Bounded:
    """A request whose pieces come after a pause each, the last one again and again."""

    async def comes() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": pieces.pop(0) if pieces else b" ", "more_body": pieces != [b"end"]}

    return Bounded(Request({"type": "http", "headers": [(b"content-type", JSON.encode())]}, comes), JSON, 10**6)


def test_a_body_that_drips_is_given_up_and_a_large_one_has_time_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_PATIENCE", 0.15)
    with pytest.raises(Refusal) as refusal:
        asyncio.run(asyncio.wait_for(body_of([], 0.001).body(), 20))
    assert refusal.value.status_code == 408
    assert len(asyncio.run(body_of([bytes(2**14)] * 10 + [b"end"], 0.03).body())) == 10 * 2**14


def test_no_key_has_more_under_way_than_it_may_nor_all_together() -> None:
    admission = Admission(Limits(requests=2, waiting=40))
    with admission.request("one"), admission.request("one"), admission.request("other"):
        with pytest.raises(Refusal, match="2 requests under way") as refusal, admission.request("one"):
            pass
        assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "1"})
    with admission.request("one"), admission.images(50):  # more than fit, but the only ones
        with pytest.raises(Refusal, match="The server is full") as refusal, admission.images(1):
            pass
        assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "2"})
    with admission.images(20), admission.images(20):
        pass


class Engine:
    """Replicas behind a handle as Ray's: they die so many times, then each part's outcomes are its seeds."""

    def __init__(self, deaths: int, seconds: float = 0.0) -> None:
        self.parts: list[list[int]] = []
        self.describe = self.make = SimpleNamespace(remote=self._answer)
        self._deaths, self._seconds = deaths, seconds

    async def _answer(self, part: BatchRequest | None = None, caller: str = "") -> Any:
        if part is None:
            return SMALL
        await asyncio.sleep(self._seconds)
        self._deaths -= 1
        if self._deaths >= 0:
            raise RayActorError
        self.parts.append(part.seeds.tolist())
        return [np.full((28, 28, 1), seed, np.uint8) for seed in part.seeds]


def made(engine: Engine, **limits: Any) -> tuple[BatchAnswer, int]:
    """Five images of a service over this engine, and how many were asked for again."""
    again: list[int] = []
    metrics: Any = SimpleNamespace(count_lost=again.append)
    handle: Any = engine
    service = Service(handle, Settings(model="small", limits=Limits(**limits)), metrics)
    return asyncio.run(service.make(wanted(count=5), "one")), sum(again)


def test_a_request_is_cut_into_batches_and_what_a_dead_replica_lost_is_asked_for_again() -> None:
    engine = Engine(deaths=3)
    answer, again = made(engine)
    assert answer.images[:, 0, 0, 0].tolist() == answer.places.tolist() == [0, 1, 2, 3, 4]
    assert sorted(engine.parts) == [[0, 1], [2, 3], [4]]
    assert again == 5  # each part once


@pytest.mark.parametrize(
    ("engine", "limits", "why"),
    [
        (Engine(deaths=99), {}, "The replicas die"),
        (Engine(deaths=0, seconds=5), {"seconds": 0.05}, "not done in time"),
    ],
)
def test_what_no_replica_makes_in_time_is_asked_for_later(engine: Engine, limits: dict[str, float], why: str) -> None:
    with pytest.raises(Refusal, match=why) as refusal:
        made(engine, **limits)
    assert (refusal.value.status_code, refusal.value.headers) == (503, {"Retry-After": "2"})
