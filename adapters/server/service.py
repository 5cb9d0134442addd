"""The way from the routes to the replicas: admits requests, cuts them into parts, repeats a dead replica's parts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adapters.diffusion.items import Outcome
from adapters.server.checks import Description, Limits, Settings, check
from adapters.server.errors import Refusal, unavailable
from adapters.server.formats import BatchAnswer, BatchRequest

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from adapters.server.batching import IngressMetrics

_TRIES = 4
"""Times that a part is asked for at most, if its replicas die."""

_PATIENCE = 5.0
"""Seconds to wait for a replica's description."""


class Admission:
    """Limits on each key's requests under way, so that no key takes all, and on the images under way of all keys."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._images = 0

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count a request while it is under way, from before its body is read; Refusal (429) at the key's limit."""
        most = self._limits.requests
        if self._requests[key] >= most:
            raise Refusal(429, f"This key has {most} requests under way, as many as it may: wait for one.", wait=1)
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]

    @contextmanager
    def images(self, count: int) -> Iterator[None]:
        """Count images while they are under way; Refusal (429) beyond the limit, unless no others are under way."""
        if self._images and self._images + count > self._limits.waiting:
            raise Refusal(429, f"The server is full: {self._images} images are under way.", wait=2)
        self._images += count
        try:
            yield
        finally:
            self._images -= count


class Service:
    """Makes images by the replicas behind `engine`."""

    def __init__(self, engine: DeploymentHandle, settings: Settings, metrics: IngressMetrics) -> None:
        self._engine, self._settings, self._metrics = engine, settings, metrics
        self.admission = Admission(settings.limits)
        self._description: Description | None = None

    async def description(self, anew: bool = False) -> Description:
        """Return a replica's description of the model, asked for once or `anew`; Refusal (503) if none answers."""
        if self._description is None or anew:
            try:
                async with asyncio.timeout(_PATIENCE):
                    self._description = await self._engine.describe.remote()
            except Exception as error:  # Ray's own errors have no common root
                raise unavailable("No replica is ready") from error
        return self._description

    async def make(self, request: BatchRequest, caller: str) -> BatchAnswer:
        """Return the images of a request, callers taking turns; Refusal if there is no room or they cannot be made."""
        model = await self.description()
        request = check(request, model, self._settings)
        with self.admission.images(len(request)):
            starts = range(0, len(request), model.batch)
            parts = [request.part(start, start + model.batch) for start in starts]
            try:
                async with asyncio.timeout(self._settings.limits.seconds), asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._part(part, caller)) for part in parts]
            except TimeoutError as error:
                raise unavailable("The images were not done in time") from error
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return BatchAnswer.of([outcome for task in tasks for outcome in task.result()])

    async def _part(self, part: BatchRequest, caller: str) -> list[Outcome]:
        """Return the outcomes of a part, made by one replica; if a replica dies, another one makes the whole part."""
        from ray.exceptions import RayActorError

        for _ in range(_TRIES):
            try:
                outcomes: list[Outcome] = await self._engine.make.remote(part, caller)
                return outcomes
            except RayActorError:
                self._metrics.count_lost(len(part))
            except Exception as error:  # Ray's own errors have no common root
                raise unavailable(f"The engine failed ({type(error).__name__})") from error
        raise unavailable("The replicas die")
