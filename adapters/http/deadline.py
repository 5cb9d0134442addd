"""The bound on a whole request: a server that sends a byte now and then holds no worker for ever."""

from __future__ import annotations

import time
from threading import local
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

_PIECE = 2**16
"""Bytes of one write."""
_CLOSE = 0.05
"""Seconds that a socket's clock may be ahead of ours."""


def bound_requests(client: httpx2.Client, seconds: float) -> None:
    """Let each request of a client take `seconds` at most, from its first byte to the last of the answer.

    The client has no setting for this, so the sockets below it are wrapped; no public name leads there.
    """
    watch = _Watch(seconds)
    inner: Any = client
    for transport in (inner._transport, *inner._mounts.values()):
        if transport is not None:  # a host for which there is no proxy
            transport._pool._network_backend = _Backend(transport._pool._network_backend, watch)
    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], watch.start]}


class _Watch:
    """When the request of each thread must have ended: a thread has one at a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._of_thread = seconds, local()

    def start(self, _: httpx2.Request) -> None:
        self._of_thread.end = time.monotonic() + self._seconds

    def left(self, timeout: float | None) -> float | None:
        """`timeout`, or what is left of the request's time if that is less; a time-out if nothing is."""
        import httpcore2

        left: float = getattr(self._of_thread, "end", float("inf")) - time.monotonic()
        if left <= _CLOSE:
            raise httpcore2.ReadTimeout(f"no whole answer within total_timeout, {self._seconds:g} s") from None
        return left if timeout is None else min(timeout, left)


class _Backend:
    """httpcore2's, whose streams have an end."""

    def __init__(self, backend: Any, watch: _Watch) -> None:
        self._backend, self._watch = backend, watch

    def connect_tcp(self, *, timeout: float | None = None, **address: Any) -> _Stream:
        return _Stream(self._backend.connect_tcp(timeout=self._watch.left(timeout), **address), self._watch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _Stream:
    """A connection of it."""

    def __init__(self, stream: Any, watch: _Watch) -> None:
        self._stream, self._watch = stream, watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        import httpcore2

        try:
            found: bytes = self._stream.read(max_bytes, self._watch.left(timeout))
        except httpcore2.ReadTimeout:
            self._watch.left(timeout)  # says so if it was the whole request's
            raise
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[start : start + _PIECE], self._watch.left(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> _Stream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._watch.left(timeout)), self._watch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
