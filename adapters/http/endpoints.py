"""Several endpoints that give the same answers: each request goes to the one with the fewest under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from adapters.http.client import HTTPClient
from adapters.http.faults import Fault
from adapters.http.gate import Gate
from adapters.http.policy import Outcome, Policy

if TYPE_CHECKING:
    import httpx2

Result = TypeVar("Result")

REST = 10.0
"""Seconds that an endpoint which did not answer is left alone while another does."""


class Endpoints:
    """Servers of one kind behind several addresses, under one policy; each has its own connections and gate.

    Args:
        urls: their addresses, at least one.
        key: sent to each as a bearer token; empty: none is sent.
        concurrency: requests at once, at the most, to each.
        timeout: seconds to connect, and between two bytes.
        tries: how often a request is made, at whichever, before it counts as failed.
    """

    def __init__(self, urls: Sequence[str], *, key: str, concurrency: int, timeout: float, tries: int) -> None:
        self._places = [
            _Place(HTTPClient(url, key=key, concurrency=concurrency, timeout=timeout), Gate(concurrency))
            for url in urls
        ]
        name = ", ".join(urlsplit(url).netloc for url in urls)
        self._policy = Policy(name, concurrency=concurrency * len(urls), tries=tries, secret=key)
        self._choosing = Lock()

    def post_bytes(
        self, path: str, content: bytes, kind: str, read: Callable[[httpx2.Response], Result]
    ) -> Outcome[Result]:
        """POST `content`, of the content type `kind`; see `Policy.call_one_of`.

        Raises:
            Rejected: see `Policy.call_one_of`.
        """
        return self._call(lambda client: client.post_bytes(path, content, kind), read)

    def get(self, path: str, read: Callable[[httpx2.Response], Result]) -> Outcome[Result]:
        """GET; see `Policy.call_one_of`.

        Raises:
            Rejected: see `Policy.call_one_of`.
        """
        return self._call(lambda client: client.get(path), read)

    def _call(
        self, ask: Callable[[HTTPClient], httpx2.Response], read: Callable[[httpx2.Response], Result]
    ) -> Outcome[Result]:
        def choose() -> tuple[Gate, Callable[[], httpx2.Response]]:
            place = self._chosen()
            return place.gate, lambda: self._asked(place, ask)

        return self._policy.call_one_of(choose, read)

    def _chosen(self) -> _Place:
        """The place with the fewest requests chosen for it, those that rest last; the request counts from now on."""
        with self._choosing:
            now = time.monotonic()
            place = min(self._places, key=lambda each: (each.rests_until > now, each.under_way))
            place.under_way += 1
            return place

    def _asked(self, place: _Place, ask: Callable[[HTTPClient], httpx2.Response]) -> httpx2.Response:
        try:
            return ask(place.client)
        except Fault as fault:
            if fault.heals:
                place.rests_until = time.monotonic() + (REST if fault.wait is None else fault.wait)
            raise
        finally:
            with self._choosing:
                place.under_way -= 1


class _Place:
    """One address."""

    def __init__(self, client: HTTPClient, gate: Gate) -> None:
        self.client, self.gate = client, gate
        self.under_way = 0
        self.rests_until = 0.0
