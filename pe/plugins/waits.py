"""A generator that says what it waits for, and what became of its answers."""

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


@runtime_checkable
class TellsOfAnswers(Protocol):
    """A generator that changes or passes over some of what its model answers."""

    def describe_answers(self) -> str:
        """Say in a sentence what became of such answers so far; empty: there were none. Public quantities alone."""
        ...
