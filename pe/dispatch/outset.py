"""Requests of a phase that all fail: if the first do for one reason, or many in a row do later, so will the rest."""

from __future__ import annotations

import re

from pe.dispatch.answers import Stored
from pe.dispatch.limits import Meter
from pe.errors import APIError
from pe.store.journal import Totals

CHUNKS, ITEMS = 3, 12
"""Requests, and items, that a phase begins with before it is judged; with more workers, a request for each."""

LATER = 4
"""Factor by which more must fail in a row in a phase that began well."""

_OWN_WORDS = re.compile(r"(?<=HTTP 2\d\d: ).*|\d+", re.DOTALL)
"""Parts of a reason that differ from answer to answer: numbers, and the words of a whole answer of another kind."""


class Outset:
    """Holds the rest of a phase back until one of its first requests shows that it may succeed.

    That is a sample, a refusal, or a second reason (other than in numbers, or in the words of answers of another kind).

    Args:
        workers: requests under way at once.
        proven: something of this phase is there already.
    """

    def __init__(self, workers: int, proven: bool) -> None:
        self._chunks, self._asked_chunks, self._asked_items = max(CHUNKS, workers), 0, 0
        self._proven, self._reasons, self._last = proven, set[str](), ""
        self._spent, self._failed_chunks, self._failed_items = Totals(), 0, 0

    @property
    def holds(self) -> bool:
        """True while no more may be asked for before the requests under way are back; then, if all failed alike."""
        if self._proven:
            return self._failed_chunks >= LATER * self._chunks and self._failed_items >= LATER * ITEMS
        return self._asked_chunks >= self._chunks and self._asked_items >= ITEMS

    def ask(self, items: int) -> None:
        """Enter a request for so many items."""
        self._asked_chunks += 1
        self._asked_items += items

    def note(self, stored: list[Stored]) -> None:
        """Enter what requests brought."""
        for one in stored:
            self._reasons |= {_OWN_WORDS.sub("#", miss.reason) for miss in one.misses}
            self._proven |= len(self._reasons) > 1
            if one.row.answered or any(miss.outcome == "refused" for miss in one.misses):
                self._proven, self._spent, self._failed_chunks, self._failed_items = True, Totals(), 0, 0
                continue
            self._spent += Totals(one.row.usage)
            self._failed_chunks += 1
            self._failed_items += len(one.misses)
            self._last = one.misses[-1].reason

    def error(self, name: str, phase: str, meter: Meter) -> APIError:
        """Return the error: the generator `name` fails, what that took, and what to do."""
        cost = meter.spending(self._spent)
        took = f"{self._spent.usage.calls} calls" + (f" and {cost}" if cost else "")
        what = f"the last {self._failed_items} samples asked for" if self._proven else "all that it began with"
        why = "" if self._proven else "for one reason "
        return APIError(
            f"{name}, {phase}: {what} failed {why}({self._last.rstrip('.')}), which took {took}: set the server right; "
            "or change `api`, try it with `pe probe`, and begin a new run."
        )
