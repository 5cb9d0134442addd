"""Several endpoints that give the same answers: each request goes to the one with the fewest under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from adapters.http.client import Content, HTTPClient
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.gate import Gate
from adapters.http.policy import CheckStop, Outcome, policy_of
from adapters.http.settings import Connection

if TYPE_CHECKING:
    import httpx2

Result = TypeVar("Result")

REST = 10.0
"""Seconds that an endpoint which did not answer is left alone while another does."""


class Endpoints:
    """Servers of one kind behind several addresses, under one policy; each has its own connections and gate.

    Args:
        urls: their addresses, at least one.
        connection: how each is reached, under the same key.
        concurrency: requests at once, at the most, to each.

    Raises:
        RecipeError: what a setting of the connection names is not there.
    """

    def __init__(self, urls: Sequence[str], connection: Connection, concurrency: int) -> None:
        self._credentials = credentials = Credentials(connection)
        self._places = [
            _Place(HTTPClient(url, connection, concurrency, credentials), Gate(concurrency)) for url in urls
        ]
        name = ", ".join(urlsplit(url).netloc for url in urls)
        self._policy = policy_of(connection, name, concurrency * len(urls), credentials)
        self._choosing = Lock()

    def ask(
        self,
        path: str,
        read: Callable[[httpx2.Response], Result],
        content: Content = None,
        kind: str = "",
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """GET, or POST `content`; see `HTTPClient.ask` and, for `read` and what is raised, `Policy.call_one_of`."""

        def choose() -> tuple[Gate, Callable[[], httpx2.Response]]:
            place = self._chosen()
            return place.gate, lambda: self._asked(place, path, content, kind)

        return self._policy.call_one_of(choose, read, check_stop)

    @property
    def wait(self) -> str:
        """See `Policy.wait`."""
        return self._policy.wait

    def _chosen(self) -> _Place:
        """The place with the fewest requests chosen for it, those that rest last; the request counts from now on."""
        with self._choosing:
            now = time.monotonic()
            place = min(self._places, key=lambda each: (each.rests_until > now, each.under_way))
            place.under_way += 1
            return place

    def _asked(self, place: _Place, path: str, content: Content, kind: str) -> httpx2.Response:
        try:
            return self._credentials.ask(lambda: place.client.ask(path, content, kind))
        except Fault as fault:
            if fault.heals:
                place.rests_until = time.monotonic() + (REST if fault.wait is None else fault.wait)
            raise
        finally:
            with self._choosing:
                place.under_way -= 1


@dataclass(eq=False)
class _Place:
    """One address."""

    client: HTTPClient
    gate: Gate
    under_way: int = 0
    rests_until: float = 0.0
