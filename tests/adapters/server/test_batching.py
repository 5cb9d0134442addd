"""Requests that can share a forward pass share one, whoever asked."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pytest

from adapters.diffusion.engine import Engine as Real
from adapters.diffusion.items import Item, Job, Outcome
from adapters.server.batching import Batcher
from adapters.server.checks import ServeSettings
from adapters.server.models import find_model
from pe.plugins.protocols import Failed

A, B = Job(2), Job(3)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


class Engine:
    """Makes each item an image of its seed, and notes the seeds of its batches; breaks down over
    seed 13.

    Over the first batch it brings down what feeds it, in one of the `ways` it may.
    """

    def __init__(self, seconds: float = 0.0, way: str = "") -> None:
        self.seeds: list[list[int]] = []
        self.told: list[tuple[int, float, float]] = []
        self.batches = Batcher(self.run, 4, self.note)
        self._seconds, self._way = seconds, way

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        self.seeds.append([item.seed for item in items])
        time.sleep(self._seconds)
        way = self._way if len(self.seeds) == 1 else ""
        if way == "engine exits":
            raise SystemExit(1)
        if 13 in self.seeds[-1]:
            raise RuntimeError("the prompt was: secret")
        made = [np.full((1, 1, 1), item.seed % 256, dtype=np.uint8) for item in items]
        return made[:-1] if way == "one outcome lost" else made

    def note(self, *batch: float) -> None:
        self.told.append(batch)
        if self._way == "metrics fail" and len(self.told) == 1:
            raise OSError("no room for metrics")


def items(job: Job, *seeds: int) -> list[Item]:
    return [Item(job, seed) for seed in seeds]


def values(outcomes: Sequence[Outcome]) -> list[int]:
    return [int(outcome[0, 0, 0]) for outcome in outcomes if isinstance(outcome, np.ndarray)]


@in_a_loop
async def test_items_of_one_kind_share_a_batch_whoever_asked_and_those_of_two_kinds_none() -> None:
    engine = Engine()
    batches = engine.batches
    answers = await asyncio.gather(*(batches.make(items(A, i)) for i in range(4)))
    assert [values(answer) for answer in answers] == [[0], [1], [2], [3]]
    assert engine.seeds == [[0, 1, 2, 3]]
    shaped = [Item(A, 9, np.zeros((2, 2, 1), dtype=np.uint8))]
    await asyncio.gather(
        *(batches.make(each) for each in (items(A, 1), items(B, 2), items(A, 3), shaped))
    )
    assert sorted(engine.seeds[1:]) == [[1, 3], [2], [9]]


@in_a_loop
async def test_a_large_request_is_cut_and_comes_back_in_order_and_each_batch_is_told_of() -> None:
    engine = Engine()
    assert values(await engine.batches.make(items(A, *range(10)))) == list(range(10))
    assert [images for images, *_ in engine.told] == [4, 4, 2]
    assert all(waited >= 0 and took >= 0 for _, waited, took in engine.told)


@in_a_loop
async def test_requests_that_come_one_by_one_while_the_engine_is_busy_share_the_next_batch() -> (
    None
):
    engine = Engine(seconds=0.1)
    asked = []
    for seed in range(5):
        asked.append(asyncio.create_task(engine.batches.make(items(A, seed))))
        await asyncio.sleep(0.02)
    await asyncio.gather(*asked)
    assert engine.seeds == [[0], [1, 2, 3, 4]]


@in_a_loop
async def test_items_of_another_kind_are_not_held_up_by_those_that_come_later() -> None:
    engine = Engine(seconds=0.01)
    many = [asyncio.create_task(engine.batches.make(items(A, *range(100, 108))))]
    await asyncio.sleep(0.015)
    other = asyncio.create_task(engine.batches.make(items(B, 2)))
    await asyncio.sleep(0)
    many.append(asyncio.create_task(engine.batches.make(items(A, *range(200, 240)))))
    await other
    assert [2] in engine.seeds[:4]
    await asyncio.gather(*many)


@in_a_loop
async def test_an_item_that_breaks_the_engine_fails_alone_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches = Engine().batches
    good, bad = await asyncio.gather(batches.make(items(A, 1, 2)), batches.make(items(A, 13, 3)))
    assert values(good) == [1, 2]
    assert isinstance(bad[0], Failed)
    assert values(bad[1:]) == [3]
    assert batches.failures == 0
    assert "engine broke" in caplog.text
    assert "secret" not in caplog.text + bad[0].reason


@pytest.mark.parametrize("way", ["engine exits", "one outcome lost", "metrics fail"])
@in_a_loop
async def test_whatever_brings_the_worker_down_nobody_waits_for_ever_and_the_next_are_served(
    way: str,
) -> None:
    batches = Engine(way=way).batches
    asked = [batches.make(items(A, *range(i, i + 3))) for i in range(3)]
    answers = await asyncio.wait_for(asyncio.gather(*asked), 5)
    assert all(isinstance(each, Failed | np.ndarray) for answer in answers for each in answer)
    assert values(await asyncio.wait_for(batches.make(items(B, 7)), 5)) == [7]
    assert batches.failures == 0


@in_a_loop
async def test_an_engine_whose_thread_is_gone_answers_with_failures_and_asks_to_be_replaced() -> (
    None
):
    engine = Real(
        find_model(ServeSettings(model="small")).load, device="cpu", most=4, most_on_cpu=4
    )
    batches, drawn = Batcher(engine.run, 4, lambda *_: None), [Item(A, 1, api_class=0)]
    assert values(await batches.make(drawn))
    engine._workers[0].thread.shutdown()
    for _ in range(10):
        batches.check_health(1)
        assert isinstance((await asyncio.wait_for(batches.make(drawn), 5))[0], Failed)
    with pytest.raises(RuntimeError, match="fails on every batch"):
        batches.check_health(1)


@in_a_loop
async def test_an_engine_that_hangs_asks_to_be_replaced() -> None:
    batches = Engine(seconds=0.3).batches
    asked = asyncio.create_task(batches.make(items(A, 1)))
    await asyncio.sleep(0.15)
    batches.check_health(60)
    with pytest.raises(RuntimeError, match="one batch"):
        batches.check_health(0.05)
    await asked
    batches.check_health(0.05)


@in_a_loop
async def test_who_goes_away_costs_nothing_more() -> None:
    engine = Engine(seconds=0.02)
    batches = engine.batches
    gone = asyncio.create_task(batches.make(items(A, *range(100, 200))))
    await asyncio.sleep(0.05)
    gone.cancel()
    await batches.make(items(B, 1))
    assert sum(map(len, engine.seeds)) < 20
