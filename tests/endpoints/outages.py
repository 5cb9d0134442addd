"""A server that goes away and comes back."""

from __future__ import annotations

import time
from typing import Any

from tests.endpoints.faults import fail


class Away:
    """An ASGI app before another: after every `every` answers it is away for `seconds`, `times` times.

    Attributes:
        since: when it went away last; 0: never.
        gone: how often it went away.
        asked: requests that came while it was away.
    """

    def __init__(self, app: Any, *, every: int, seconds: float, times: int = 3, fault: str = "503 html") -> None:
        self._app, self._every, self._seconds, self._times, self._fault = app, every, seconds, times, fault
        self.since, self.gone, self.asked, self._answered = 0.0, 0, 0, 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if self.gone < self._times and self._answered >= self._every * (self.gone + 1):
            self.since, self.gone = time.monotonic(), self.gone + 1
        if self.since and time.monotonic() < self.since + self._seconds:
            self.asked += 1
            await fail(self._fault, send)
        else:
            self._answered += 1
            await self._app(scope, receive, send)
