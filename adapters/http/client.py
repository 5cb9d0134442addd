"""Concurrent: pooled, bounded, with TLS verified; keys from the environment; nothing follows a redirect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import finalize

from adapters.http.faults import Fault
from pe.errors import MissingDependency, RecipeError

if TYPE_CHECKING:
    import httpx2

Made = TypeVar("Made")
Content = dict[str, Any] | bytes | None

MAX_BYTES = 2**28
"""Most bytes of one response that are read; 256 MiB hold ten PNG files of 8 megapixels."""


def key_of(name: str | None) -> str:
    """The key that the environment variable `name` holds; empty for an endpoint that wants none.

    Raises:
        RecipeError: the variable is not set.
    """
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise RecipeError(f"key_env: the environment variable {name} is not set: export your key in it.")
    return key


class OnFirstUse(Generic[Made]):
    """A value that is made when it is first asked for, once for all threads.

    Args:
        make: makes it; when it fails, the next one who asks tries again.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make, self._making = make, Lock()
        self._made: Made | None = None

    def get(self) -> Made:
        """The value."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made


def open_client(concurrency: int, timeout: float) -> httpx2.Client:
    """A pool of connections that follows no redirect and reads at most MAX_BYTES of a response.

    Args:
        concurrency: connections, at the most.
        timeout: seconds to connect, and between two bytes.

    Raises:
        MissingDependency: httpx2 is not installed.
    """
    try:
        import httpx2
    except ImportError as error:
        raise MissingDependency.of("httpx2", "http", "Calling an endpoint") from error

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._stream:
                size += len(part)
                if size > MAX_BYTES:
                    raise httpx2.ReadError(f"the response is larger than {MAX_BYTES} bytes")
                yield part

        def close(self) -> None:
            self._stream.close()

    class Transport(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            response = super().handle_request(request)
            response.stream = Bounded(response.stream)
            return response

    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    transport = Transport(limits=limits, retries=0)
    return httpx2.Client(transport=transport, timeout=httpx2.Timeout(timeout), follow_redirects=False)


class HTTPClient:
    """Requests to endpoints without a library of their own.

    Args:
        base_url: where the endpoint is.
        key: sent as a bearer token; empty: none is sent.
        concurrency: connections, at the most.
        timeout: seconds to connect, and between two bytes.
    """

    def __init__(self, base_url: str, *, key: str = "", concurrency: int = 8, timeout: float = 180.0) -> None:
        self._base = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = open_client(concurrency, timeout)
        finalize(self, self._client.close)

    def ask(self, path: str, content: Content = None, kind: str = "") -> httpx2.Response:
        """The response to a GET, or to a POST of `content`: a mapping as JSON, bytes as of the content type `kind`.

        Raises:
            Fault: none came, or one with an error status.
        """
        import httpx2

        raw = isinstance(content, bytes)
        body: dict[str, Any] = {"content": content} if raw else {"json": content}
        method, headers = "GET" if content is None else "POST", self._headers | ({"Content-Type": kind} if raw else {})
        try:
            response = self._client.request(method, f"{self._base}{path}", headers=headers, **body)
        except httpx2.TransportError as error:
            raise Fault(f"{type(error).__name__}: {error}") from error
        check_redirect(response.status_code, response.headers.get("location", ""))
        if response.status_code >= 400:
            raise Fault.of_response(response.status_code, response.headers, response.content)
        return response


def object_of(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object that a response holds.

    Raises:
        Fault: it holds something else.
    """
    try:
        found = response.json()
    except (ValueError, RecursionError) as error:  # nested too deep
        raise Fault.of_response(response.status_code, {}, response.content[:4096]) from error
    if not isinstance(found, dict):
        raise Fault("the answer is not a JSON object", response.status_code)
    return found


def check_redirect(status: int, location: str) -> None:
    """Refuse to be sent elsewhere: the key goes to the host that the recipe names, and to no other.

    Raises:
        Fault: the status is a redirect.
    """
    if 300 <= status < 400:
        raise Fault(f"it redirects to {location.split('?')[0]!r}: name that as base_url if you trust it", 400)
