"""How many requests an endpoint is asked at once: fewer when it says that it is too much, then more again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 0.5
"""Seconds after which a request that waits is asked whether the run is to stop."""

SHRINK = 0.8
"""What is left of the concurrency after a 429: it shrinks by a fifth."""


def workers_for(concurrency: int) -> int:
    """Threads that keep `concurrency` requests under way: some read and decode answers while others ask."""
    return concurrency + max(1, concurrency // 8)


class Gate:
    """Lets at most `width` requests through at once; shared by all workers of an endpoint.

    A request that was throttled narrows it by a fifth, once for all requests that had started before the last
    narrowing; each whole round of successes widens it by one (as TCP does: Chiu and Jain, 1989). A pause holds
    everybody back.
    """

    def __init__(self, most: int) -> None:
        """Opens as wide as `most`, ≥ 1."""
        self._most = most
        self._width = float(most)
        self._inside = 0
        self._narrowings = 0
        self._open_again = 0.0
        self._changed = threading.Condition()

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return max(1, int(self._width))

    @contextmanager
    def passing(self, check_stop: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for a place, unless `check_stop` raises; gives the number of narrowings so far, for `throttled`."""
        with self._changed:
            while True:
                wait = self._open_again - time.monotonic()
                if wait <= 0 and self._inside < self.width:
                    break
                self._changed.wait(min(wait, EVERY) if wait > 0 else EVERY)
                check_stop()
            self._inside += 1
            since = self._narrowings
        try:
            yield since
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify()

    def succeeded(self) -> None:
        """Widen a little: by one after as many successes as it is wide."""
        with self._changed:
            before = self.width
            self._width = min(float(self._most), self._width + 1 / self._width)
            if self.width > before:
                self._changed.notify()

    def throttled(self, since: int, pause: float | None) -> None:
        """Narrow, and hold everybody back for `pause` seconds, if the endpoint named any."""
        with self._changed:
            if since == self._narrowings:
                self._width = max(1.0, self._width * SHRINK)
                self._narrowings += 1
            if pause is not None:
                self._open_again = max(self._open_again, time.monotonic() + pause)
