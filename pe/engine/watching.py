"""The live page's server: for this machine alone, behind a secret address, read-only but for one button."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from typing import Any, Self

from pe.engine.status import is_writer, status_of, waits_of, writer_of
from pe.errors import PEError, RunError
from pe.planning.parts import price_of
from pe.report.live import LivePage, Pieces
from pe.store.places import RECIPE
from pe.store.run import Run

HOST = "127.0.0.1"
EVERY = 0.5
"""Seconds after which a run is read again, while somebody watches."""
RESTS = 10
"""After a reading, none begins for this many times as long as it took: the run needs the processors."""
QUIET = 15.0
"""Seconds of silence after which a comment is sent to a page, so that a closed connection is noticed."""
STREAMS = 16
"""Pages that may follow the run at once."""
LAST_WORDS = 3.0
"""Most seconds that a server waits at its end for its pages to get the last state of the run."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = (
    "default-src 'none'; script-src 'nonce-{}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class Feed:
    """The pieces of the page, read no more often than every EVERY seconds, however many pages follow the run.

    Attributes:
        page: makes the pieces.
    """

    page: LivePage
    _lock: Lock = field(default_factory=Lock, init=False)
    _next: float = field(default=0.0, init=False)
    _has_failed: bool = field(default=False, init=False)
    _pieces: Pieces = field(default_factory=dict, init=False)
    _stopping: set[int] = field(default_factory=set, init=False)

    def pieces(self, fresh: bool = False) -> Pieces:
        """Return the pieces, read now if `fresh`, else perhaps a moment ago; earlier ones if the run cannot be read."""
        with self._lock:
            began = time.monotonic()
            if fresh or began >= self._next:
                self._read()
                self._next = began + max(EVERY, RESTS * (time.monotonic() - began))
            return self._pieces

    def _read(self) -> None:
        page, run = self.page, self.page.run
        try:
            running, _ = writer_of(run)
            status = None
            waits = waits_of(run) if running else ""
            if page.confidential:
                status = status_of(run, page.plan, price_of(page.recipe), page.recipe.privacy.delta).to_dict()
            self._pieces = {"fault": ""} | page.pieces(running, waits, status)
            self._has_failed = False
        except (PEError, OSError, ValueError) as error:
            if self._has_failed:  # else a file was just being replaced
                reason = f" ({escape(str(error))})" if page.confidential else ""
                self._pieces |= {"fault": f"The run cannot be read just now{reason}: `pe status` says why."}
            self._has_failed = True

    def stop(self) -> str:
        """Ask the process that writes the run to stop, once; return a sentence for the page."""
        running, pid = writer_of(self.page.run)
        if not running:
            return "The run does not go on: there is nothing to stop."
        if pid in self._stopping:
            return "It was asked to stop already: it does when the requests under way are answered."
        if pid is None or not is_writer(self.page.run, pid):
            return "The process that writes the run is not one of this machine: stop it where it runs."
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError as error:
            return f"Process {pid} cannot be asked to stop ({error.strerror}): stop it where it runs."
        self._stopping.add(pid)
        return "It stops when the requests under way are answered. To go on later: pe run RUN."


class LiveServer(ThreadingHTTPServer):
    """Serves the page of one run at `address`, in threads of its own, until it is closed."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise RunError(f"Port {port} cannot be used ({error.strerror}): name another with --port.") from error
        self.page, self.feed, self.token = page, Feed(page), secrets.token_urlsafe(24)
        self.closing, self._streams = Event(), Semaphore(STREAMS)
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names by which a browser may call this server; any other may be a foreign page's (DNS rebinding)."""
        return tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    @property
    def address(self) -> str:
        """The page's address; whoever knows the address may read the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @contextmanager
    def stream(self) -> Iterator[bool]:
        """Yield True if one more page may follow the run; it keeps its place until the block ends."""
        free = self._streams.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._streams.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away; any other error is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """End, after every page has been sent the last state of the run, or after LAST_WORDS seconds."""
        self.closing.set()
        deadline = time.monotonic() + LAST_WORDS
        for _ in range(STREAMS):
            self._streams.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """One request; whatever does not come from the page itself is refused, in words that tell nothing."""

    server: LiveServer
    server_version, sys_version, timeout = "pe", "", 30

    def do_GET(self) -> None:
        """Send the page, or its events."""
        place = self._place()
        if place == "":
            nonce = secrets.token_urlsafe(16)
            self._answer(200, self.server.page.page(nonce), "text/html", _POLICY.format(nonce))
        elif place == "events":
            self._follow()
        elif place is not None:
            self._answer(404, "Not found.")

    def do_POST(self) -> None:
        """Stop the run: the only thing that can be asked for."""
        place = self._place()
        if place == "stop" and self.headers.get("Origin") == f"http://{self.headers['Host']}":
            self._answer(200, self.server.feed.stop())
        elif place is not None:
            self._answer(403, "Refused.")

    def _place(self) -> str | None:
        """Return the path below the token; None: the request was refused."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        _, token, *rest = [*self.path.split("/"), ""][:4]
        if host not in self.server.hosts:
            self._answer(403, f"Refused: this page is at {' or '.join(self.server.hosts)} alone.")
        elif origin is not None and origin != f"http://{host}":
            self._answer(403, "Refused.")
        elif not compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()) or not rest[1:]:
            self._answer(404, "Not found.")
        else:
            return rest[0]
        return None

    def _follow(self) -> None:
        """Send server-sent events: each holds the pieces of the page that have changed, at first all."""
        with self.server.stream() as free:
            if not free:
                self._answer(503, "Too many pages follow this run.")
                return
            self._begin(200, "text/event-stream")
            self.wfile.write(b"retry: 1000\n\n")
            last_pieces, last_time, last = dict[str, str](), time.monotonic(), False
            with suppress(OSError):  # the page was closed
                while not last:
                    last = self.server.closing.wait(EVERY if last_pieces else 0)
                    pieces = self.server.feed.pieces(fresh=last)
                    new_pieces = {name: html for name, html in pieces.items() if last_pieces.get(name) != html}
                    if new_pieces or time.monotonic() - last_time > QUIET:
                        line = f"data: {json.dumps(new_pieces)}\n\n" if new_pieces else ": still here\n\n"
                        self.wfile.write(line.encode())
                        last_time = time.monotonic()
                    last_pieces = pieces

    def _answer(self, status: int, text: str, kind: str = "text/plain", policy: str = "default-src 'none'") -> None:
        self._begin(status, kind, policy)
        with suppress(OSError):
            self.wfile.write(text.encode())

    def _begin(self, status: int, kind: str, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy, **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Log nothing: a line would hold the token."""


def serve(folder: Path, *, confidential: bool, port: int, tell: Callable[[str], None], end: Event) -> None:
    """Serve the live page of the run in `folder`, which need not be there yet, until `end` is set.

    The `confidential` page holds times, too. `tell` gets the address; port 0 means any free port.
    """
    while not (folder / RECIPE).is_file():
        if end.wait(EVERY):
            return
    with LiveServer(LivePage(Run.open(folder), confidential), port) as server:
        tell(server.address)
        end.wait()
