"""The first requests of a phase: if they all fail for one reason, so will the rest, and each may cost money."""

from __future__ import annotations

import re

from pe.dispatch.answers import Stored
from pe.errors import APIError
from pe.store.journal import Totals

CHUNKS, ITEMS = 3, 12
"""Requests, and items, that a phase begins with before it is judged; with more workers, a request for each."""

_NUMBERS = re.compile(r"\d+")


class Outset:
    """Holds the rest of a phase back until one of its first requests shows that it may succeed.

    That is a sample, a refusal, a second reason (other than in numbers), or a fault that the generator has retried by
    itself, such as a rate or a server that is down: it may pass.

    Args:
        workers: requests under way at once.
        proven: something of this phase is there already.

    Attributes:
        spent: by these requests.
    """

    def __init__(self, workers: int, proven: bool) -> None:
        self._chunks, self._asked_chunks, self._asked_items = max(CHUNKS, workers), 0, 0
        self._proven, self._reasons, self._last = proven, set[str](), ""
        self.spent = Totals()

    @property
    def holds(self) -> bool:
        """Whether no more may be asked for before what is under way is back; then: whether all of it failed alike."""
        return not self._proven and self._asked_chunks >= self._chunks and self._asked_items >= ITEMS

    def ask(self, items: int) -> None:
        """Enter a request for so many items."""
        self._asked_chunks += 1
        self._asked_items += items

    def note(self, stored: list[Stored]) -> None:
        """Enter what requests brought."""
        for one in stored:
            row = one.row
            self.spent += Totals(row.usage)
            self._reasons |= {_NUMBERS.sub("#", miss.reason) for miss in one.misses}
            self._last = one.misses[-1].reason if one.misses else self._last
            passing = row.usage.calls > 1 and not row.usage.images
            refused = any(miss.outcome == "refused" for miss in one.misses)
            self._proven |= bool(row.answered) or refused or passing or len(self._reasons) > 1

    def error(self, what: str, cost: str, command: str) -> APIError:
        """That `what` failed, what it took, and what to do; `cost` is empty where nothing is charged."""
        took = f"{self.spent.usage.calls} calls" + (f" and {cost}" if cost else "")
        return APIError(
            f"{what} failed for one reason ({self._last.rstrip('.')}), which took {took}: set the server right, and "
            f"`{command}` goes on; or change `api`, try it with `pe probe`, and begin a new run."
        )
