"""A generator that says what it waits for."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class DescribesWait(Protocol):
    """A generator whose requests may wait for long: for a server that limits their rate, say."""

    def describe_wait(self) -> str:
        """What its requests wait for now, in one clause without a full stop; empty: for nothing.

        Asked about twice a second while requests are under way, by another thread than theirs; must not block. Shown
        on the progress line and by `pe status`, so it may tell public quantities alone, such as a server's own words.
        """
        ...
