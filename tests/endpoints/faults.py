"""Faults that an endpoint's server can be told to have, below the route that would answer."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]

TRANSPORT = (
    *("429 seconds", "429 milliseconds", "429 date", "429", "500", "503 html", "other json"),
    *("slow", "dropped"),
)
"""What the policy retries."""

CONTENT = ("truncated base64", "wrong size", "fewer", "more", "duplicated", "refusal")
"""What comes in an answer; the route makes these itself."""

_ERROR = b'{"error": {"message": "scripted", "type": "server_error", "code": "scripted"}}'
_BODIES = {
    "422": (422, _ERROR, b"application/json"),
    "500": (500, _ERROR, b"application/json"),
    "503 html": (
        503,
        b"<html><title>503</title><body>Service <b>unavailable</b></body></html>",
        b"text/html",
    ),
    "other json": (502, b'["bad", "gateway"]', b"application/json"),
    "html": (200, b"<html><body>Please log in to the proxy</body></html>", b"text/html"),
}


class Script:
    """Which request has which fault: a seeded share of them, or the next ones in a list."""

    def __init__(self, *, share=0.0, faults=(), first=()):
        self._random, self._share, self._faults = random.Random(7), share, faults
        self._first = list(first)
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.bearers: set[str] = set()
        self.requests: list[dict[str, Any]] = []
        self.delivered = 0

    def next(self):
        with self._lock:
            fault = ""
            if self._first:
                fault = self._first.pop(0)
            elif self._faults and self._random.random() < self._share:
                fault = self._random.choice(self._faults)
            self.seen[fault] += 1
            return fault


async def fail(fault, send):
    """Answer with a transport fault, "429 800" being one that asks for 800 ms; False if `fault` is
    none of them.
    """
    if fault.startswith("429"):
        soon = datetime.now(UTC) + timedelta(seconds=1)
        headers = {
            "429 seconds": [(b"retry-after", b"0")],
            "429 milliseconds": [(b"retry-after-ms", b"40")],
            "429 date": [(b"retry-after", format_datetime(soon, usegmt=True).encode())],
        }.get(fault, [(b"retry-after-ms", fault[4:].encode())] if fault[4:].isdigit() else [])
        await respond(send, 429, _ERROR, headers)
    elif fault in _BODIES:
        status, body, kind = _BODIES[fault]
        await respond(send, status, body, kind=kind)
    elif fault == "slow":
        await asyncio.sleep(60)  # the client leaves before
    elif fault == "dropped":
        headers = [(b"content-type", b"application/json"), (b"content-length", b"10000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"data": [', "more_body": True})
        raise ConnectionAbortedError("the server goes away in mid-body, as told")
    else:
        return False
    return True


async def lost(message):
    """Sends nothing: a request was heeded, and its answer is lost."""
    raise ConnectionAbortedError("the answer is lost, as told")


async def respond(
    send,
    status,
    body,
    headers=None,
    kind=b"application/json",
):
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", kind), *(headers or [])],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
