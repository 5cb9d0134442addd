"""Requests that can share a forward pass share one, whoever asked.

While the engine is at work, requests gather; when it is free, the next batch takes the items of one kind (the same job
and shape), in turn from all callers who wait for that kind, so that a caller with many images holds up nobody who has
few. Only an engine that finds too few waits, a few milliseconds, for others.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from adapters.diffusion.items import Item, Outcome
from pe.plugins.protocols import Failed

log = logging.getLogger("ray.serve")

Run = Callable[[Sequence[Item]], list[Outcome]]

_BROKEN = Failed("the engine broke down on this image")


@dataclass(frozen=True)
class Batch:
    """What is to be known of a batch that was made.

    Attributes:
        images: how many.
        waited: seconds that its oldest item had waited.
        took: seconds that the engine took.
    """

    images: int
    waited: float
    took: float


@dataclass(eq=False)
class _Ticket:
    """One caller's items, all of one kind, on their way."""

    caller: str
    items: Sequence[Item]
    done: asyncio.Future[None]
    since: float = field(default_factory=time.monotonic)
    taken: int = 0
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @property
    def kind(self) -> object:
        image = self.items[0].image
        return self.items[0].job, None if image is None else image.shape

    def take(self, most: int) -> list[int]:
        """The next places, `most` at the most."""
        first, self.taken = self.taken, min(self.taken + most, len(self.items))
        return list(range(first, self.taken))

    def enter(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = outcome
        if len(self.outcomes) == len(self.items) and not self.done.done():
            self.done.set_result(None)


class Batcher:
    """Feeds an engine, batch by batch, in a thread of its own.

    Args:
        run: the engine.
        most: items of a batch.
        wait: seconds that a batch which is not full waits for more.
        note: is told of every batch.
    """

    def __init__(self, run: Run, most: int, wait: float, note: Callable[[Batch], None]) -> None:
        self._run, self._most, self._wait, self._note = run, most, wait, note
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pe-batches")
        self._waiting: dict[str, deque[_Ticket]] = {}  # caller → tickets; the first caller's turn is next
        self._came = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self.failures = 0
        """Batches that broke the engine, in a row."""

    async def make(self, items: Sequence[Item], caller: str) -> list[Outcome]:
        """The outcome of each item; all of them are of one kind. Whoever is cancelled waits for nothing more."""
        self._worker = self._worker or asyncio.create_task(self._work())
        ticket = _Ticket(caller, items, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(caller, deque()).append(ticket)
        self._came.set()
        try:
            await ticket.done
        finally:
            self._leave(ticket)
        return [ticket.outcomes[place] for place in range(len(items))]

    async def _work(self) -> None:
        while True:
            await self._came.wait()
            if self._ready() < self._most:
                await asyncio.sleep(self._wait)
            batch = self._next()
            if batch:
                await self._made(batch)
            if not self._waiting:
                self._came.clear()

    def _ready(self) -> int:
        """How many items the next batch could have."""
        return sum(len(ticket.items) - ticket.taken for ticket in self._of_kind())

    def _of_kind(self) -> list[_Ticket]:
        """The tickets of the kind whose turn it is; those of several callers one by one in turn."""
        if not self._waiting:
            return []
        kind = next(iter(self._waiting.values()))[0].kind
        queues = [[ticket for ticket in queue if ticket.kind == kind] for queue in self._waiting.values()]
        return [queue[i] for i in range(max(map(len, queues))) for queue in queues if i < len(queue)]

    def _next(self) -> list[tuple[_Ticket, int]]:
        """The next batch: an even share for each caller, then whatever there is room for."""
        tickets = self._of_kind()
        if not tickets:
            return []
        callers = len({ticket.caller for ticket in tickets})
        batch: list[tuple[_Ticket, int]] = []
        for share in (-(-self._most // callers), self._most):
            for ticket in tickets:
                places = ticket.take(min(share, self._most - len(batch)))
                batch += [(ticket, place) for place in places]
        for ticket in tickets:
            if ticket.taken == len(ticket.items):
                self._leave(ticket)
        first = tickets[0].caller
        if first in self._waiting:
            self._waiting[first] = self._waiting.pop(first)  # its next turn comes after all others'
        return batch

    async def _made(self, batch: list[tuple[_Ticket, int]]) -> None:
        items = [ticket.items[place] for ticket, place in batch]
        oldest = min(ticket.since for ticket, _ in batch)
        started = time.monotonic()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._outcomes, items)
        self._note(Batch(len(items), started - oldest, time.monotonic() - started))
        for (ticket, place), outcome in zip(batch, outcomes, strict=True):
            ticket.enter(place, outcome)

    def _outcomes(self, items: list[Item]) -> list[Outcome]:
        """The engine's; when it breaks down over a batch, each item's alone, so that one spoils no other."""
        try:
            outcomes = self._run(items)
        except Exception as error:
            self.failures += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]  # not the message, which may hold a prompt
            log.error("engine broke", extra={"error": type(error).__name__, "at": f"{frame.name}:{frame.lineno}"})
            return [_BROKEN] if len(items) == 1 else [each for item in items for each in self._outcomes([item])]
        self.failures = 0
        return outcomes

    def _leave(self, ticket: _Ticket) -> None:
        queue = self._waiting.get(ticket.caller)
        if queue and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.caller]
