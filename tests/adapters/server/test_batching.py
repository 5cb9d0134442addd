"""Requests that can share a forward pass share one, whoever asked; a caller with many holds up nobody with few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from adapters.diffusion.engine import Engine as Real
from adapters.diffusion.items import Item, Job, Outcome
from adapters.server.batching import Batch, Batcher
from adapters.server.checks import Settings
from adapters.server.replica import family_of
from pe.plugins.protocols import Failed

A, B = Job(2), Job(3)


class Engine:
    """Makes each item an image of its seed, and notes its batches; breaks down over seed 13."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[Item]] = []
        self._seconds = seconds

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        self.batches.append(list(items))
        time.sleep(self._seconds)
        if any(item.seed == 13 for item in items):
            raise RuntimeError("the prompt was: secret")
        return [np.full((1, 1, 1), item.seed % 256, dtype=np.uint8) for item in items]

    @property
    def seeds(self) -> list[list[int]]:
        return [[item.seed for item in batch] for batch in self.batches]


def items(job: Job, *seeds: int) -> list[Item]:
    return [Item(job, seed) for seed in seeds]


def batcher(engine: Engine, most: int = 4, wait: float = 0.02) -> Batcher:
    return Batcher(engine.run, most, wait, lambda _: None)


def values(outcomes: Sequence[Outcome]) -> list[int]:
    return [int(outcome[0, 0, 0]) for outcome in outcomes if isinstance(outcome, np.ndarray)]


def test_items_of_one_kind_share_a_batch_whoever_asked() -> None:
    async def scenario() -> None:
        engine = Engine()
        batches = batcher(engine)
        answers = await asyncio.gather(*(batches.make(items(A, i), f"caller {i}") for i in range(4)))
        assert [values(answer) for answer in answers] == [[0], [1], [2], [3]]
        assert engine.seeds == [[0, 1, 2, 3]]

    asyncio.run(scenario())


def test_items_of_two_kinds_share_none() -> None:
    async def scenario() -> None:
        engine = Engine()
        batches = batcher(engine)
        image = np.zeros((2, 2, 1), dtype=np.uint8)
        shaped = [Item(A, 9, image)]
        await asyncio.gather(*(batches.make(each, "one") for each in (items(A, 1), items(B, 2), items(A, 3), shaped)))
        assert sorted(engine.seeds) == [[1, 3], [2], [9]]

    asyncio.run(scenario())


def test_a_large_request_is_cut_and_comes_back_in_order() -> None:
    async def scenario() -> None:
        engine = Engine()
        assert values(await batcher(engine).make(items(A, *range(10)), "one")) == list(range(10))
        assert [len(batch) for batch in engine.batches] == [4, 4, 2]

    asyncio.run(scenario())


def test_who_has_few_is_not_held_up_by_who_has_many() -> None:
    async def scenario() -> None:
        engine = Engine(seconds=0.01)
        batches = batcher(engine)
        many = [asyncio.create_task(batches.make(items(A, *range(100, 140)), "many")) for _ in range(5)]
        await asyncio.sleep(0.015)
        await batches.make(items(A, 1), "few")
        await batches.make(items(B, 2), "few")
        assert not any(task.done() for task in many)
        when = [i for i, batch in enumerate(engine.seeds) if batch[0] == 2 or 1 in batch]
        assert when[0] <= 3
        assert when[1] <= when[0] + 3
        await asyncio.gather(*many)

    asyncio.run(scenario())


def test_an_item_that_breaks_the_engine_fails_alone() -> None:
    async def scenario() -> None:
        engine = Engine()
        batches = batcher(engine)
        good, bad = await asyncio.gather(batches.make(items(A, 1, 2), "one"), batches.make(items(A, 13, 3), "other"))
        assert values(good) == [1, 2]
        assert isinstance(bad[0], Failed)
        assert "secret" not in bad[0].reason
        assert values(bad[1:]) == [3]
        assert batches.failures == 0

    asyncio.run(scenario())


def test_an_engine_that_breaks_over_everything_is_known() -> None:
    async def scenario() -> None:
        batches = batcher(Engine())
        await batches.make(items(A, 13, 13, 13), "one")
        assert batches.failures == 4

    asyncio.run(scenario())


class Dying(Engine):
    """Brings down what feeds it, in one of the ways it may, over the first batch."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way
        self.batcher = Batcher(self.run, 4, 0.02, self.note)

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        first = not self.batches
        made = super().run(items)
        if first and self._way == "engine exits":
            raise SystemExit(1)
        if first and self._way == "worker cancelled":
            worker = self.batcher._worker
            assert worker is not None
            worker.get_loop().call_soon_threadsafe(worker.cancel)
            time.sleep(0.05)
        return made[:-1] if first and self._way == "one outcome lost" else made

    def note(self, _: Batch) -> None:
        if self._way == "metrics fail" and len(self.batches) == 1:
            raise OSError("no room for metrics")


@pytest.mark.parametrize("way", ["engine exits", "one outcome lost", "worker cancelled", "metrics fail"])
def test_whatever_brings_the_worker_down_nobody_waits_for_ever_and_the_next_are_served(way: str) -> None:
    async def scenario() -> None:
        batches = Dying(way).batcher
        asked = [batches.make(items(A, *range(i, i + 3)), f"caller {i}") for i in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*asked), 5)
        assert all(isinstance(each, Failed | np.ndarray) for answer in answers for each in answer)
        assert values(await asyncio.wait_for(batches.make(items(B, 7), "next"), 5)) == [7]
        assert batches.failures == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("thread", ["the batcher's", "the engine's"])
def test_a_real_engine_whose_thread_is_gone_answers_with_failures_and_asks_to_be_replaced(thread: str) -> None:
    async def scenario() -> None:
        engine = Real(family_of(Settings(model="small")).load, device="cpu", most=4, most_on_cpu=4)
        batches, drawn = Batcher(engine.run, 4, 0.001, lambda _: None), [Item(A, 1, api_class=0)]
        assert values(await batches.make(drawn, "one"))
        batches.check_health(1)
        (batches._thread if thread == "the batcher's" else engine._workers[0].thread).shutdown()
        for _ in range(10):
            batches.check_health(1)
            assert isinstance((await asyncio.wait_for(batches.make(drawn, "one"), 5))[0], Failed)
        with pytest.raises(RuntimeError, match="breaks down"):
            batches.check_health(1)

    asyncio.run(scenario())


def test_an_engine_that_hangs_asks_to_be_replaced() -> None:
    async def scenario() -> None:
        batches = batcher(Engine(seconds=0.3))
        asked = asyncio.create_task(batches.make(items(A, 1), "one"))
        await asyncio.sleep(0.15)
        batches.check_health(60)
        with pytest.raises(RuntimeError, match="one batch"):
            batches.check_health(0.05)
        await asked
        batches.check_health(0.05)

    asyncio.run(scenario())


def test_what_the_engine_s_errors_say_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(batcher(Engine()).make(items(A, 13), "one"))
    assert "engine broke" in caplog.text
    assert "secret" not in caplog.text


def test_who_goes_away_costs_nothing_more() -> None:
    async def scenario() -> None:
        engine = Engine(seconds=0.02)
        batches = batcher(engine)
        gone = asyncio.create_task(batches.make(items(A, *range(100, 200)), "gone"))
        await asyncio.sleep(0.05)
        gone.cancel()
        await batches.make(items(B, 1), "here")
        assert sum(map(len, engine.batches)) < 20

    asyncio.run(scenario())


def test_every_batch_is_told_of() -> None:
    async def scenario() -> None:
        told: list[Batch] = []
        batches = Batcher(Engine().run, 4, 0.001, told.append)
        await batches.make(items(A, *range(5)), "one")
        assert [batch.images for batch in told] == [4, 1]
        assert all(batch.waited >= 0 and batch.took >= 0 for batch in told)

    asyncio.run(scenario())
