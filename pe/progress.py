"""Progress: messages of a run while it works. Public quantities only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WORTH_TELLING = 5.0
"""A wait of at least this many seconds is worth a message to the user."""


class Task:
    """One bar: a phase of the work, whose size is public or not shown (see `Progress.task`)."""

    def advance(self, count: int, cost: str = "") -> None:
        """Report `count` more finished items. `cost` is what the whole run has cost so far."""

    def wait(self, words: str) -> None:
        """Report what the work waits for. An empty text says that the work goes on."""


class Progress:
    """Silent progress. The command line has one that draws bars.

    Sizes and counts passed to it are public: never the number of private records, nor anything that
    depends on them.
    """

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """Begin a phase of `total` items. None: its length is not public, or not known."""
        yield Task()

    def warn(self, message: str) -> None:
        """Show a warning made of released quantities only."""

    def tell(self, message: str) -> None:
        """Show a message to a person who waits.

        A run's messages tell no times, which may depend on private records.
        """


@dataclass(frozen=True)
class Part(Progress):
    """The progress of a part of the work.

    Attributes:
        whole: the progress of all the work, which shows it.
        name: stands before each description.
    """

    whole: Progress
    name: str

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """Begin a phase of the part."""
        with self.whole.task(f"{self.name}: {description}", total) as task:
            yield task

    def warn(self, message: str) -> None:
        """Show a warning unchanged."""
        self.whole.warn(message)

    def tell(self, message: str) -> None:
        """Show a message unchanged."""
        self.whole.tell(message)
