"""The public clock: private work ends, for whoever watches, at an instant that was set before it began.

How long a search or an embedding takes depends on the number of private records and on their values. Who receives the
next request, or sees the console, must not learn it: the work is held back until a deadline that follows from public
numbers alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event


@dataclass(frozen=True)
class PublicClock:
    """Holds pieces of private work back until their deadlines.

    Attributes:
        deadlines: name → seconds from the start of the work; what has no deadline is not held back.
        overran: told of a piece of work that took longer than its deadline, by name.
        stop: set to wait no longer: the run stops before anything that could tell the time.
    """

    deadlines: Mapping[str, float] = field(default_factory=dict)
    overran: Callable[[str], None] = lambda work: None
    stop: Event = field(default_factory=Event)

    @contextmanager
    def hold(self, work: str) -> Iterator[None]:
        """Let the block, which is the work of this name, end at its deadline and not before.

        Guarantee: while the work meets its deadline, when the block ends does not depend on how long the work took,
        but for what the system takes to wake a process. Work that raises is not held back: the run ends with it.
        """
        deadline, started = self.deadlines.get(work), time.monotonic()
        yield
        if deadline is None:
            return
        left = started + deadline - time.monotonic()
        if left < 0:
            self.overran(work)
        else:
            self.stop.wait(left)
