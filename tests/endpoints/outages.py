"""A server that goes away and comes back."""

import time

from tests.endpoints.faults import fail


class Away:
    """An ASGI app before another: after every `every` answers it is away for `seconds`, `times`
    times.
    """

    def __init__(self, app, *, every, seconds, times=3, fault="503 html"):
        self._app, self._every, self._seconds, self._times, self._fault = (
            app,
            every,
            seconds,
            times,
            fault,
        )
        self.since, self.gone, self.asked, self._answered = 0.0, 0, 0, 0

    async def __call__(self, scope, receive, send):
        if self.gone < self._times and self._answered >= self._every * (self.gone + 1):
            self.since, self.gone = time.monotonic(), self.gone + 1
        if self.since and time.monotonic() < self.since + self._seconds:
            self.asked += 1
            await fail(self._fault, send)
        else:
            self._answered += 1
            await self._app(scope, receive, send)
