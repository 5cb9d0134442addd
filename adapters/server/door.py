"""In front of Ray's HTTP proxy: what its own handling of requests would make of them is kept to our surface.

The proxy acts on some headers of anybody's request (deadlines, routing), trips over others (bytes that are no text),
and answers in its own words, or not at all, when an ingress has died. Ray loads `middlewares` into each proxy where
the environment has RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=adapters.server.door:middlewares.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters.server.errors import CODES, Refusal, unavailable

_PASSED = frozenset(
    b"accept authorization content-length content-type host origin transfer-encoding user-agent".split()
)


def middlewares() -> list[Middleware]:
    """For Ray's proxy."""
    return [Middleware(Door)]


class Door:
    """Lets HTTP requests in with the headers that mean something here, and documented answers out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not scope["path"].startswith("/"):  # as of `OPTIONS *`, over which the proxy trips
            await Refusal(400, "The request names no path.").response()(scope, receive, send)
            return
        begun, status = False, 503

        async def answer(message: Message) -> None:
            """Hold back what is not ours: an error that is not in JSON."""
            nonlocal begun, status
            if message["type"] == "http.response.start":
                status = message["status"]
                kinds = [bytes(value) for name, value in message["headers"] if bytes(name).lower() == b"content-type"]
                begun = status < 400 or any(kind.startswith(b"application/json") for kind in kinds)
            if begun:
                await send(message)

        headers = [(name, value) for name, value in scope["headers"] if name in _PASSED]
        try:
            await self._app({**scope, "headers": headers}, receive, answer)
        except Exception:
            status = 503  # the proxy itself failed; it has logged why
        if not begun:
            await _refusal_of(status).response()(scope, receive, send)


def _refusal_of(status: int) -> Refusal:
    if status == 404:  # the proxy's own: the application is not there, yet or no more
        return unavailable("The application is not there")
    if status in CODES and status < 500:
        return Refusal(status, "The proxy could not pass the request on: ask again.", wait=1)
    return unavailable("The ingress failed on this request")
