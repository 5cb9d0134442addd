"""Progress: what a run tells of itself while it works. Public quantities only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Task:
    """One bar: a phase of known, public size."""

    def advance(self, count: int, spent: str = "") -> None:
        """`count` more items are done; `spent` is what the whole run has cost so far."""


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
