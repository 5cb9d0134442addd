"""Batches across requests: images of one job and shape share a forward pass, whoever asked.

Ray's `@serve.batch` forms a batch while the engine is busy with another, so requests that come one
by one would be made one by one. Here items wait until the engine is free, and the next batch takes
all that can share it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adapters.diffusion.items import Item, Outcome
from pe.errors import ContractError
from pe.plugins.protocols import Failed

log = logging.getLogger("ray.serve")

# batches in a row that an engine breaks on before it is given up
_HOPELESS = 10

_BROKEN = Failed("the engine failed on this image")

# seconds that an idle engine waits for more items before it starts a batch that is not full
_WAIT = 0.004

BatchObserver = Callable[[int, float, float], object]
"""Takes the number of images in a batch, the seconds its oldest item had waited, and the seconds
the batch took."""


@dataclass(eq=False)
class QueuedItem:
    """An item that a request waits for.

    Its outcome is cancelled when the client goes away.
    """

    item: Item
    kind: object  # items of equal kind can share a batch
    outcome: asyncio.Future[Outcome]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Runs an engine on batches of at most `most` items, one batch at a time."""

    def __init__(
        self, engine: Callable[[Sequence[Item]], list[Outcome]], most: int, observe: BatchObserver
    ) -> None:
        self._engine = engine
        self._most = most
        self._observe = observe
        self._queue: list[QueuedItem] = []
        self._worker: asyncio.Task[None] | None = None
        # time at which the engine began its present batch; None: it is idle
        self._began: float | None = None
        self.failures = 0  # batches in a row that broke the engine

    async def make(self, items: Sequence[Item]) -> list[Outcome]:
        """Return the outcome of each item, all of one job and shape.

        If this is cancelled, the items that still wait are dropped.
        """
        loop = asyncio.get_running_loop()
        kind = items[0].job, items[0].shape
        queued = [QueuedItem(item, kind, loop.create_future()) for item in items]
        self._queue += queued
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await asyncio.gather(*(each.outcome for each in queued))

    def check_health(self, longest: float) -> None:
        """Raise RuntimeError if the engine is broken.

        It is if it broke on all of the last batches, or has been at one batch for `longest`
        seconds.
        """
        if self.failures >= _HOPELESS:
            raise RuntimeError("the engine fails on every batch")
        if self._began is not None and time.monotonic() - self._began >= longest:
            raise RuntimeError(
                f"the engine has been at one batch for more than {longest:g} seconds"
            )

    async def _work(self) -> None:
        """Make batches until nothing waits."""
        while self._queue:
            if len(self._queue) < self._most:
                await asyncio.sleep(_WAIT)
            batch = self._next_batch()
            if batch:
                await self._make(batch)

    def _next_batch(self) -> list[QueuedItem]:
        """Take the oldest item and those that can be made with it from the queue.

        Cancelled items are dropped.
        """
        waiting = [each for each in self._queue if not each.outcome.done()]
        batch = [each for each in waiting if each.kind == waiting[0].kind][: self._most]
        taken = set(batch)
        self._queue = [each for each in waiting if each not in taken]
        return batch

    async def _make(self, batch: Sequence[QueuedItem]) -> None:
        self._began = start = time.monotonic()
        outcomes = await self._outcomes([each.item for each in batch])
        self._began = None
        for each, outcome in zip(batch, outcomes, strict=True):
            if not each.outcome.done():  # its client went away
                each.outcome.set_result(outcome)
        try:
            self._observe(
                len(batch), start - min(each.since for each in batch), time.monotonic() - start
            )
        except Exception as error:  # the images are there all the same
            log.error("batch not counted", extra={"error": type(error).__name__})

    async def _outcomes(self, items: list[Item]) -> list[Outcome]:
        """Run the engine.

        If it breaks on a batch, run each item alone, so that one spoils no other.
        """
        try:
            outcomes = await asyncio.to_thread(self._engine, items)
            if len(outcomes) != len(items):
                raise ContractError(
                    f"The engine was given {len(items)} items and made {len(outcomes)}."
                )
            self.failures = 0
            return outcomes
        except (Exception, SystemExit) as error:  # a library that exits must not end the event loop
            self.failures += 1
            # The log tells where, but not the message, which may hold a prompt.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "engine broke",
                extra={"error": type(error).__name__, "at": f"{frame.name}:{frame.lineno}"},
            )
        if len(items) == 1:
            return [_BROKEN]
        return [outcome for item in items for outcome in await self._outcomes([item])]
