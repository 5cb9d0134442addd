"""Batches across requests: images of one job and shape share a forward pass, whoever asked; and the server's metrics.

While the engine is at work, requests gather; when it is free, the next batch takes the items of one kind in turn from
all callers who wait for that kind, so that a caller with many images holds up nobody who has few. An engine waits for
more items, a few milliseconds, only if it has too few for a full batch.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from adapters.diffusion.items import Item, Outcome
from pe.errors import ContractError
from pe.plugins.protocols import Failed

log = logging.getLogger("ray.serve")

PREFIX = "pe_server_"

_HOPELESS = 10
"""An engine that broke on this many batches in a row will not recover."""
_BROKEN = Failed("the engine broke down on this image")

_SECONDS = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0]
_SIZES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
_NOISE = re.compile(r'(?:otel_scope_\w+|Component|SessionName|Version|WorkerId)="[^"]*",?')
_EXPORTED = re.compile(rf"^(?:# \w+ )?ray_{PREFIX}", re.MULTILINE)

Note = Callable[[int, float, float], object]
"""Takes the number of images in a batch, the seconds its oldest item had waited, and the seconds the batch took."""
_WAIT = 0.004
"""Seconds that an idle engine waits for more items before it starts a batch that is not full."""


@dataclass(eq=False)
class _Wish:
    """An item that a caller waits for; `outcome` is done when the image is made or the caller goes away."""

    item: Item
    kind: object
    outcome: asyncio.Future[Outcome]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Runs an engine on batches of at most `most` items, in a separate thread."""

    def __init__(self, run: Callable[[Sequence[Item]], list[Outcome]], most: int, note: Note) -> None:
        self._run, self._most, self._note = run, most, note
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pe-batches")
        self._waiting: dict[str, list[_Wish]] = {}  # by caller; the first caller's turn is next
        self._came = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._batch: Sequence[_Wish] = ()
        self.failures = 0  # batches that broke the engine or its worker, in a row
        self._began: float | None = None  # time at which the engine began its present batch; None: idle

    async def make(self, items: Sequence[Item], caller: str) -> list[Outcome]:
        """Return the outcome of each item, all of one job and shape; cancelling the call drops items that wait."""
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        image = items[0].image
        kind = items[0].job, None if image is None else image.shape
        wishes = [_Wish(item, kind, asyncio.get_running_loop().create_future()) for item in items]
        self._waiting.setdefault(caller, []).extend(wishes)
        self._came.set()
        return await asyncio.gather(*(wish.outcome for wish in wishes))

    def check_health(self, longest: float) -> None:
        """Raise RuntimeError if the last batches all broke the engine, or the present one took `longest` seconds."""
        if self.failures >= _HOPELESS:
            raise RuntimeError("the engine breaks down over every batch")
        if self._began is not None and time.monotonic() - self._began >= longest:
            raise RuntimeError(f"the engine has been at one batch for more than {longest:g} seconds")

    async def _work(self) -> None:
        try:
            while True:
                await self._came.wait()
                if sum(map(len, self._of_kind())) < self._most:
                    await asyncio.sleep(_WAIT)
                self._batch = self._next()
                if self._batch:
                    await self._make(self._batch)
                else:
                    self._came.clear()
        except Exception as error:
            self._note_failure(error)
        finally:  # nobody waits for a worker that has ended; the next caller starts another
            self._began = None
            for wish in (*self._batch, *chain.from_iterable(self._waiting.values())):
                if not wish.outcome.done():
                    wish.outcome.set_result(_BROKEN)

    def _of_kind(self) -> list[list[_Wish]]:
        """Forget items that are done; return the others of the kind whose turn it is, a list for each caller."""
        waiting = {caller: [wish for wish in each if not wish.outcome.done()] for caller, each in self._waiting.items()}
        self._waiting = {caller: wishes for caller, wishes in waiting.items() if wishes}
        kinds = [wishes[0].kind for wishes in self._waiting.values()]
        return [[wish for wish in wishes if wish.kind == kinds[0]] for wishes in self._waiting.values()]

    def _next(self) -> list[_Wish]:
        """Return a batch: an item of each caller in turn, until it is full; the first caller is last the next time."""
        rows = zip_longest(*self._of_kind())
        batch = [wish for row in rows for wish in row if wish is not None][: self._most]
        for first in list(self._waiting)[:1]:
            self._waiting[first] = self._waiting.pop(first)
        members = set(batch)
        self._waiting = {caller: [one for one in each if one not in members] for caller, each in self._waiting.items()}
        return batch

    async def _make(self, batch: Sequence[_Wish]) -> None:
        items = [wish.item for wish in batch]
        oldest = min(wish.since for wish in batch)
        self._began = start = time.monotonic()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._outcomes, items)
        took, self._began = time.monotonic() - start, None
        for wish, outcome in zip(batch, outcomes, strict=True):
            if not wish.outcome.done():  # its caller went away
                wish.outcome.set_result(outcome)
        try:
            self._note(len(items), start - oldest, took)
        except Exception as error:  # the images are there all the same
            log.error("batch not counted", extra={"error": type(error).__name__})

    def _outcomes(self, items: list[Item]) -> list[Outcome]:
        """Run the engine; when it breaks down over a batch, run each item alone, so that one spoils no other."""
        try:
            outcomes = self._run(items)
            if len(outcomes) != len(items):
                raise ContractError(f"The engine was given {len(items)} items and made {len(outcomes)}.")
        except BaseException as error:  # a library that exits, too: it would end the event loop, and all who wait
            self._note_failure(error)
            return [_BROKEN] if len(items) == 1 else [each for item in items for each in self._outcomes([item])]
        self.failures = 0
        return outcomes

    def _note_failure(self, error: BaseException) -> None:
        self.failures += 1
        frame = traceback.extract_tb(error.__traceback__)[-1]  # not the message, which may hold a prompt
        log.error("engine broke", extra={"error": type(error).__name__, "at": f"{frame.name}:{frame.lineno}"})


class EngineMetrics:
    """Metrics of a replica for Prometheus. Ray exports them on each node."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        self._images = Counter(f"{PREFIX}images", "Images made by the engine, refused and failed ones included.")
        self._engine = Counter(f"{PREFIX}engine_seconds", "Seconds that the engine was at work.")
        self._batch = Histogram(f"{PREFIX}batch_images", "Images in a batch.", boundaries=_SIZES)
        self._queue = Histogram(f"{PREFIX}queue_seconds", "Seconds that a batch's oldest waited.", boundaries=_SECONDS)

    def note(self, images: int, waiting: float, took: float) -> None:
        """Count a batch."""
        self._images.inc(images)
        self._engine.inc(took)
        self._batch.observe(images)
        self._queue.observe(max(waiting, 1e-6))


class IngressMetrics:
    """Metrics of an ingress for Prometheus."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        tags = ("path", "status")
        self._answers = Counter(f"{PREFIX}answers", "Requests answered, by path and status.", tag_keys=tags)
        self._images_sent = Counter(f"{PREFIX}images_sent", "Images in answers.")
        self._again = Counter(f"{PREFIX}images_asked_again", "Images asked again because their replica died.")
        self._seconds = Histogram(f"{PREFIX}answer_seconds", "Seconds to the answer.", _SECONDS, ("path",))

    def count_answer(self, path: str, status: int, images: int, seconds: float) -> None:
        """Count an answer that holds `images` images."""
        self._answers.inc(tags={"path": path, "status": str(status)})
        self._seconds.observe(max(seconds, 1e-6), tags={"path": path})
        if images:
            self._images_sent.inc(images)

    def count_lost(self, images: int) -> None:
        """Count the images that a dead replica left undone."""
        self._again.inc(images)


async def exported() -> str:
    """Return our metrics of all nodes, in Prometheus' text format, without Ray's prefix and labels."""
    import aiohttp
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node.get("MetricsExportPort", -1) > 0]
    urls = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes]

    async def page(session: aiohttp.ClientSession, url: str) -> str:
        try:
            async with session.get(url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""  # a node that does not answer is missing from the sum, and from Ray's own view soon

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        pages = await asyncio.gather(*(page(session, url) for url in urls))
    lines = [line for text in pages for line in text.splitlines() if _EXPORTED.match(line)]
    plain = [_NOISE.sub("", line.replace(f"ray_{PREFIX}", PREFIX, 1)).replace(",}", "}") for line in lines]
    return "".join(f"{line}\n" for line in dict.fromkeys(plain))
