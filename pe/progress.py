"""Progress: what a run tells of itself while it works. Public quantities only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WORTH_TELLING = 5.0
"""Seconds."""


class Task:
    """One bar: a phase of known, public size."""

    def advance(self, count: int, spent: str = "") -> None:
        """`count` more items are done; `spent` is what the whole run has cost so far."""

    def wait(self, words: str) -> None:
        """Until this is called again the work waits, for what `words` say; empty: it goes on."""


class Progress:
    """Says nothing; the command line has one that draws bars.

    Sizes and counts told to it are public: never the number of private records, nor anything that
    depends on them.
    """

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """A phase of `total` items (None: of a length that is not told)."""
        yield Task()

    def warn(self, message: str) -> None:
        """A warning made of released quantities only."""

    def tell(self, message: str) -> None:
        """What helps a person who waits; a run tells no time here, since times may depend on private records."""


def tell_left(progress: Progress, what: str, seconds: float) -> None:
    """Tell how long `what` still takes, where that is worth a line."""
    if seconds >= WORTH_TELLING:
        left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        progress.tell(f"{what}: about {left} left")


@dataclass(frozen=True)
class Part(Progress):
    """Another progress that is told of a part of the work by that part's name.

    Attributes:
        whole: told.
        name: stands before each description.
    """

    whole: Progress
    name: str

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """A phase of the part."""
        with self.whole.task(f"{self.name}: {description}", total) as task:
            yield task

    def warn(self, message: str) -> None:
        """A warning, as it is."""
        self.whole.warn(message)

    def tell(self, message: str) -> None:
        """Likewise."""
        self.whole.tell(message)
