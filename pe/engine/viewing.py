"""The server of `pe view`.

It serves this machine alone, behind a secret address, and is read-only but for one button.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlencode

from pe.engine.status import is_writer, status_of, waits_of, writer_of
from pe.errors import RunError
from pe.planning.parts import price_of
from pe.report.compare import compare, comparison_page, runs_page
from pe.report.live import LivePage, Pieces
from pe.report.pages import internal_report, shareable_report
from pe.report.render import Link, link_page
from pe.store.places import CERTIFICATE, CONFIDENTIAL, RECIPE
from pe.store.run import Run

HOST = "127.0.0.1"
EVERY = 0.5
"""Seconds after which a run is read again, while somebody watches."""
RESTS = 10
"""After a reading, none begins for this many times as long as it took: the run needs the
processors."""
WATCHED = 3.0
"""A page that asked within so many seconds is still open."""
LAST_WORDS = 1.5
"""Seconds for which a server waits at its end, so that open pages ask for the last state of the
run."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = (
    "default-src 'none'; script-src 'nonce-{}'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action {}; frame-ancestors 'none'"
)


def _runs_in(place: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs in it.

    A recipe of somebody's makes no folder a run.
    """
    if not place.is_dir():
        return []

    def is_run(folder: Path) -> bool:
        with suppress(OSError):  # a folder that nobody may read
            return (folder / RECIPE).is_file() and any(
                (folder / name).exists() for name in (CONFIDENTIAL, CERTIFICATE)
            )
        return False

    inside = [place] if is_run(place) else sorted(filter(is_run, place.iterdir()))
    return inside or ([place] if (place / RECIPE).is_file() else [])


def runs_at(places: Sequence[Path]) -> dict[str, Run]:
    """Return the runs at `places` by their names.

    A place is a run or a folder of runs. The later ones of equal names are numbered.

    Raises:
        RunError: a place neither is a run nor holds one.
    """
    runs: dict[str, Run] = {}
    for place in places:
        folders = _runs_in(place)
        if not folders:
            raise RunError(
                f"{place} is not a run, and holds none: name a run, or a folder of runs."
            )
        for run in map(Run, folders):
            same = sum(other.name == run.name for other in runs.values())
            runs[f"{run.name} ({same + 1})" if same else run.name] = run
    return runs


def _state(run: Run) -> str:
    """Return whether a run is running, finished or stopped."""
    if writer_of(run)[0]:
        return "running"
    return "finished" if run.is_finished else "stopped"


@dataclass
class LivePieces:
    """The pieces of a run's page, read at most once in EVERY seconds for all pages together."""

    page: LivePage  # makes the pieces
    _lock: Lock = field(default_factory=Lock, init=False)
    _next: float = field(default=0.0, init=False)
    _has_failed: bool = field(default=False, init=False)
    _pieces: Pieces = field(default_factory=dict, init=False)
    _version: int = field(default=0, init=False)  # raised by every change of a piece
    # piece → the version with its last change
    _changed: dict[str, int] = field(default_factory=dict, init=False)
    _stopping: set[int] = field(default_factory=set, init=False)

    def pieces(self, fresh: bool = False) -> Pieces:
        """Return the pieces, read now if `fresh`, else perhaps a moment ago.

        If the run cannot be read, they are earlier ones.
        """
        with self._lock:
            began = time.monotonic()
            if fresh or began >= self._next:
                self._read()
                self._next = began + max(EVERY, RESTS * (time.monotonic() - began))
            return self._pieces

    def news(self, since: int, fresh: bool = False) -> dict[str, Any]:
        """Return the current version, and the pieces that have changed after version `since`."""
        pieces = self.pieces(fresh)
        with self._lock:
            changed = {
                name: pieces[name] for name, version in self._changed.items() if version > since
            }
            return {"version": self._version, "pieces": changed}

    def _show(self, pieces: Pieces) -> None:
        for name, html in pieces.items():
            if self._pieces.get(name) != html:
                self._version += 1
                self._changed[name] = self._version
        self._pieces = self._pieces | pieces

    def _read(self) -> None:
        page = self.page
        run = self.page.run
        try:
            state = _state(run)
            status = None
            waits = waits_of(run) if state == "running" else ""
            if page.confidential:
                recipe = page.recipe
                found = status_of(run, page.plan, price_of(recipe), recipe.privacy.delta)
                status = found.to_dict()
            self._show({"fault": ""} | page.pieces(state, waits, status))
            self._has_failed = False
        # Whatever is wrong with one run, the pages of the others are served.
        except Exception as error:
            if self._has_failed:  # else a file was just being replaced
                reason = f" ({escape(str(error))})" if page.confidential else ""
                fault = f"The run cannot be read just now{reason}: `pe view RUN --text` says why."
                self._show({"fault": fault})
            self._has_failed = True

    def stop(self) -> str:
        """Ask the process that writes the run to stop, once. Return a sentence for the page."""
        running, pid = writer_of(self.page.run)
        if not running:
            return "The run does not go on: there is nothing to stop."
        if pid in self._stopping:
            return "It was asked to stop already: it does when the requests under way are answered."
        if pid is None or not is_writer(self.page.run, pid):
            return (
                "The process that writes the run is not one of this machine: stop it where it runs."
            )
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError as error:
            return (
                f"Process {pid} cannot be asked to stop ({error.strerror}): stop it where it runs."
            )
        self._stopping.add(pid)
        return "It stops when the requests under way are answered. To go on later: pe run RUN."


class ViewServer(ThreadingHTTPServer):
    """Serves the pages of the runs at `places`, in threads of its own, until it is closed.

    The pages lie below `address`.

    `confidential` pages hold times and internal numbers, too; port 0 means any free port.
    """

    daemon_threads = True

    def __init__(self, places: Sequence[Path], confidential: bool = False, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise RunError(
                f"Port {port} cannot be used ({error.strerror}): name another with --port."
            ) from error
        self.places = places
        self.confidential = confidential
        self.token = secrets.token_urlsafe(24)
        self._feeds = dict[Path, LivePieces]()
        self._lock = Lock()
        self._is_closing = False
        self._asked = -WATCHED  # when a page last asked for news
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def feed(self, run: Run) -> LivePieces:
        """Return the feed of a run's live page."""
        with self._lock:
            if run.folder not in self._feeds:
                self._feeds[run.folder] = LivePieces(LivePage(run, self.confidential))
            return self._feeds[run.folder]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names by which a browser may call this server.

        Any other may be a foreign page's (DNS rebinding).
        """
        return tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    @property
    def address(self) -> str:
        """The address of the page to begin with. Whoever knows the address may read all pages.

        It is one run's page, several runs side by side, or all runs of a folder.
        """
        root = f"http://{HOST}:{self.server_port}/{self.token}/"
        runs = runs_at(self.places)
        if any(run.folder not in self.places for run in runs.values()):
            return root
        if len(runs) > 1:
            return f"{root}compare?{urlencode({'run': list(runs)}, doseq=True)}"
        ((name, run),) = runs.items()
        return f"{root}{quote(name, safe='')}/{'report' if run.is_finished else ''}"

    def news(self, run: Run, since: int) -> dict[str, Any]:
        """Return what is new on a run's live page.

        While the server ends, the run is read once more.
        """
        self._asked = time.monotonic()
        return self.feed(run).news(since, fresh=self._is_closing)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that went away. Any other error is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """End, after open pages had the time to ask for the last state of the run."""
        self._is_closing = True
        if time.monotonic() - self._asked < WATCHED:
            time.sleep(LAST_WORDS)
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """One request.

    Whatever does not come from the page itself is refused, in words that tell nothing.
    """

    server: ViewServer
    server_version = "pe"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Send a page, or what is new on a run's live page."""
        self._reply(self._get)

    def do_POST(self) -> None:
        """Stop a run: the only thing that can be asked for."""
        self._reply(self._post)

    def _reply(self, answer: Callable[[list[str], dict[str, Run]], None]) -> None:
        place = self._place()
        try:
            if place is not None:
                answer(place, runs_at(self.server.places))
        except Exception as error:
            reason = f" ({error})" if self.server.confidential else ""
            self._answer(
                500,
                f"This page cannot be made{reason}: `pe view RUN --text` may say why.",
            )

    def _get(self, place: list[str], runs: dict[str, Run]) -> None:
        server = self.server
        run = runs.get(place[0])
        if place == [""]:
            states = {name: _state(one) for name, one in runs.items()}
            self._send(runs_page(runs, states), forms="'self'")
        elif place == ["compare"]:
            self._compare(runs)
        elif run is None or len(place) != 2:
            self._answer(404, "Not found.")
        elif place[1] == "pieces":
            (since,) = self._query("since")[-1:] or ["0"]
            news = server.news(run, int(since) if since.isdecimal() else 0)
            self._answer(200, json.dumps(news), "application/json")
        elif place[1] == "":
            self._send(server.feed(run).page.page(), self._links(run, "./"))
        elif place[1] == "report" and run.is_finished:
            self._send(shareable_report(run), self._links(run, "report"))
        elif place[1] == "confidential" and server.confidential:
            self._send(internal_report(run), self._links(run, "confidential"))
        else:
            self._answer(404, "Not found.")

    def _compare(self, runs: dict[str, Run]) -> None:
        names = [name for name in self._query("run") if name in runs]
        if len(names) < 2:
            self._answer(400, "A comparison takes at least two runs: go back and mark them.")
            return
        page = comparison_page(compare([runs[name] for name in names]), self.server.confidential)
        links = [Link(f"{quote(name, safe='')}/", name) for name in names]
        self._send(page, [Link("./", "All runs"), *links])

    def _query(self, name: str) -> list[str]:
        return parse_qs(self.path.partition("?")[2]).get(name, [])

    def _post(self, place: list[str], runs: dict[str, Run]) -> None:
        run = runs.get(place[0])
        is_ours = self.headers.get("Origin") == f"http://{self.headers['Host']}"
        if run and place[1:] == ["stop"] and is_ours:
            self._answer(200, self.server.feed(run).stop())
        else:
            self._answer(403, "Refused.")

    def _links(self, run: Run, here: str) -> list[Link]:
        """Return the links to the pages of a run and to all runs.

        The report's is shown once there is one.
        """
        links = [
            Link("../", "All runs"),
            Link("./", "Live", here == "./"),
            Link("report", "Report", here == "report", is_hidden=not run.is_finished),
        ]
        if self.server.confidential and run.confidential.is_dir():
            links.append(Link("confidential", "Confidential report", here == "confidential"))
        return links

    def _place(self) -> list[str] | None:
        """Return the parts of the path below the token. None: the request was refused."""
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        _, token, *rest = [*self.path.partition("?")[0].split("/"), ""]
        if host not in self.server.hosts:
            self._answer(403, f"Refused: this page is at {' or '.join(self.server.hosts)} alone.")
        elif origin is not None and origin != f"http://{host}":
            self._answer(403, "Refused.")
        elif (
            not compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
            or not rest[1:]
        ):
            self._answer(404, "Not found.")
        else:
            return [unquote(part) for part in rest[:-1]]
        return None

    def _send(self, page: str, links: Sequence[Link] = (), forms: str = "'none'") -> None:
        """Send a page with links to others above it.

        The browser may run no scripts in it but ours.
        """
        nonce = secrets.token_urlsafe(16)
        self._answer(200, link_page(page, nonce, links), "text/html", _POLICY.format(nonce, forms))

    def _answer(
        self,
        status: int,
        text: str,
        kind: str = "text/plain",
        policy: str = "default-src 'none'",
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": policy,
            **_HEADERS,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the page was closed
            self.wfile.write(text.encode())

    def log_message(self, *_args: object) -> None:
        """Log nothing: a line would hold the token."""


def serve(
    places: Sequence[Path],
    *,
    confidential: bool,
    port: int,
    tell: Callable[[str], None],
    end: Event,
) -> None:
    """Serve the pages of the runs at `places` until `end` is set.

    A run that is not there yet is waited for. `tell` gets the address. The other arguments are
    those of ViewServer.
    """
    while not all(map(_runs_in, places)):
        if end.wait(EVERY):
            return
    with ViewServer(places, confidential, port) as server:
        tell(server.address)
        end.wait()
