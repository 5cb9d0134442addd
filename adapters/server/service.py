"""Between the routes and the replicas: who may ask for more, cutting into parts, asking again what a dead one lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adapters.diffusion.items import Outcome
from adapters.server.checks import Description, Limits, Settings, checked
from adapters.server.errors import Refusal, unavailable
from adapters.server.formats import Made, Wanted

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from adapters.server.batching import IngressMetrics

_TRIES = 4
"""How often a part is asked for when its replica dies."""

_PATIENCE = 5.0
"""Seconds to wait for a replica that says what is served."""


class Admission:
    """Bounds what is under way: of each key, so that none takes all, and of all together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._images = 0

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count a request while it is under way, from before its body is read.

        Raises:
            Refusal: the key has as many as it may (429).
        """
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
        """Count images while they are under way; any number is let in where there are none.

        Raises:
            Refusal: the server is full (429).
        """
        if self._images and self._images + count > self._limits.waiting:
            raise Refusal(429, f"The server is full: {self._images} images are under way.", wait=2)
        self._images += count
        try:
            yield
        finally:
            self._images -= count


class Service:
    """Makes images by the replicas.

    Args:
        engine: the deployment of replicas.
        settings: the server's.
        metrics: where what is asked again is counted.
    """

    def __init__(self, engine: DeploymentHandle, settings: Settings, metrics: IngressMetrics) -> None:
        self._engine, self._settings, self._metrics = engine, settings, metrics
        self.admission = Admission(settings.limits)
        self._known: Description | None = None

    async def description(self, anew: bool = False) -> Description:
        """What is served; asked of a replica once, or `anew`.

        Raises:
            Refusal: no replica is there (503).
        """
        if self._known is None or anew:
            try:
                async with asyncio.timeout(_PATIENCE):
                    self._known = await self._engine.describe.remote()
            except Exception as error:  # Ray's own errors have no common root
                raise unavailable("No replica is ready") from error
        return self._known

    async def make(self, wanted: Wanted, caller: str) -> Made:
        """The images.

        Args:
            wanted: the images.
            caller: who takes turns with others.

        Raises:
            Refusal: the model cannot make them, there is no room, or no replica answers.
        """
        model = await self.description()
        wanted = checked(wanted, model, self._settings)
        with self.admission.images(len(wanted)):
            starts = range(0, len(wanted), model.batch)
            parts = [wanted.part(start, start + model.batch) for start in starts]
            try:
                async with asyncio.timeout(self._settings.limits.seconds), asyncio.TaskGroup() as group:
                    asked = [group.create_task(self._part(part, caller)) for part in parts]
            except TimeoutError as error:
                raise unavailable("The images were not done in time") from error
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return Made.of([outcome for task in asked for outcome in task.result()])

    async def _part(self, part: Wanted, caller: str) -> list[Outcome]:
        """A part's images by one replica; by another when that one dies, whose work is lost.

        Raises:
            Refusal: the replicas die, or Ray cannot reach them (503).
        """
        from ray.exceptions import RayActorError

        for _ in range(_TRIES):
            try:
                outcomes: list[Outcome] = await self._engine.make.remote(part, caller)
                return outcomes
            except RayActorError:
                self._metrics.asked_again(len(part))
            except Exception as error:  # Ray's own errors have no common root
                raise unavailable(f"The engine failed ({type(error).__name__})") from error
        raise unavailable("The replicas die")
