"""What a generator waits for, told while its requests are under way."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pe.dispatch.answers import Stored
from pe.plugins.protocols import GenerationAPI
from pe.plugins.waits import DescribesWait
from pe.progress import Task
from pe.store.writer import RunWriter

EVERY = 0.5
"""Seconds after which a generator is asked again what it waits for."""


@dataclass
class Waits:
    """Tells a bar, and who asks for the run's status, what the generator waits for; at the end nothing is told.

    Attributes:
        api: asked, if it says what it waits for.
        task: told.
        run: where it stands for `pe status`.
    """

    api: GenerationAPI
    task: Task
    run: RunWriter
    _told: str = field(default="", init=False)

    def finished(self, waiting: Iterable[Future[Stored]]) -> list[Future[Stored]]:
        """Those of `waiting` that are done, at least one, in their order."""
        futures, done = list(waiting), set[Future[Stored]]()
        while not done:
            done = wait(futures, EVERY, return_when=FIRST_COMPLETED).done
            self._tell(self.api.describe_wait() if isinstance(self.api, DescribesWait) else "")
        return [future for future in futures if future in done]

    def _tell(self, words: str) -> None:
        if words != self._told:
            self._told = words
            self.run.set_waiting(words)
            self.task.wait(words)

    def __enter__(self) -> Self:
        self.run.set_waiting("")  # what a run that was killed has left
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._tell("")
