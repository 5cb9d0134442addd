"""The bound on a whole request: a server that sends a byte now and then holds no worker for ever."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import finalize

from adapters.http.credentials import Credentials
from adapters.http.faults import LOOKED_AT, Fault, body_words
from adapters.http.settings import Connection
from pe.errors import MissingDependency, RecipeError
from pe.plugins.protocols import Failed

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


# Concurrent: pooled, bounded, with TLS verified; proxies of the environment; nothing follows a redirect.


Made = TypeVar("Made")
Content = dict[str, Any] | bytes | None

MAX_BYTES = 2**28
"""Most bytes of one response that are read, as they are unpacked; 256 MiB hold ten PNG files of 8 megapixels."""

LONGEST_NUMBER = 40
"""Digits of a whole number that is read; a longer one is none (Python reads some 4,000)."""


class OnFirstUse(Generic[Made]):
    """A value that is made when it is first asked for, once for all threads.

    Args:
        make: makes it; when it fails, the next one who asks tries again.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make, self._making = make, Lock()
        self._made: Made | None = None

    @property
    def made(self) -> Made | None:
        """The value, if it was asked for."""
        return self._made

    def get(self) -> Made:
        """The value."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made


def open_client(connection: Connection, concurrency: int, credentials: Credentials | None = None) -> httpx2.Client:
    """A pool of connections that follows no redirect and reads at most MAX_BYTES of a response, in bounded time.

    It heeds HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

    Args:
        connection: how it is reached.
        concurrency: connections, at the most.
        credentials: put into every request; without them no certificate of the client's is shown either.

    Raises:
        MissingDependency: httpx2 is not installed.
        RecipeError: the environment names a proxy or certificate authorities that cannot be used.
    """
    try:
        import httpx2
    except ImportError as error:
        raise MissingDependency.of("httpx2", "http", "Calling an endpoint") from error

    tls = trusted_authorities()
    if credentials is not None and connection.client_cert is not None:
        _show(tls, connection.client_cert, connection.client_key)
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    try:
        client = httpx2.Client(
            verify=tls,
            limits=limits,
            timeout=connection.timeout,
            follow_redirects=False,
            event_hooks={"request": [] if credentials is None else [credentials.sign], "response": [bound_size]},
        )
    except (ImportError, ValueError, httpx2.InvalidURL):  # whose words may hold a proxy's password
        raise RecipeError(
            "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names no proxy that can be used: write http://host:port, or install "
            "the package socksio for socks5://host:port."
        ) from None
    bound_requests(client, connection.deadline)
    return client


def bound_size(response: httpx2.Response) -> None:
    """Let at most MAX_BYTES of a response be read, as it is unpacked."""
    import httpx2

    unpacked = response.iter_bytes

    def bounded(chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        try:
            for part in unpacked(chunk_size):
                size += len(part)
                if size > MAX_BYTES:
                    raise Fault(f"the answer is larger than {MAX_BYTES} bytes", response.status_code)
                yield part
        except httpx2.DecodingError as error:
            raise Fault(f"the answer cannot be unpacked: {error}", response.status_code) from error

    response.iter_bytes = bounded  # type: ignore[method-assign]  # which `read` calls


def trusted_authorities() -> ssl.SSLContext:
    """The certificate authorities of SSL_CERT_FILE or SSL_CERT_DIR, else of REQUESTS_CA_BUNDLE, else the system's.

    Raises:
        RecipeError: the variable names nothing that holds certificates.
    """
    import httpx2

    name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE") if os.environ.get(name)), "")
    bundle = os.environ.get(name, "")
    if name == "SSL_CERT_DIR" and not Path(bundle).is_dir():
        raise RecipeError(f"SSL_CERT_DIR: {bundle} is no folder: name one with certificates, or unset the variable.")
    try:
        if name != "REQUESTS_CA_BUNDLE":
            return httpx2.create_ssl_context()
        folder = Path(bundle).is_dir()
        return ssl.create_default_context(cafile=None if folder else bundle, capath=bundle if folder else None)
    except OSError as error:  # ssl.SSLError is one
        raise RecipeError(
            f"{name or 'TLS'}: no certificates can be read from {bundle or 'the system'} ({error.strerror or error}): "
            "name a file of certificates in PEM format, or unset the variable."
        ) from error


def _show(tls: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Show this certificate to whoever asks for one."""
    try:
        tls.load_cert_chain(certificate, key, password="")  # never ask a terminal
    except OSError as error:  # ssl.SSLError is one
        raise RecipeError(
            f"client_cert: {certificate} with the key of {key or certificate} cannot be used "
            f"({error.strerror or error}): name PEM files that belong together, the key without a password."
        ) from error


class HTTPClient:
    """Requests to endpoints without a library of their own.

    Attributes:
        pool: of its connections.

    Args:
        base_url: where the endpoint is.
        connection: how it is reached.
        concurrency: connections, at the most.
        credentials: who asks.
    """

    def __init__(self, base_url: str, connection: Connection, concurrency: int, credentials: Credentials) -> None:
        self._base = base_url.rstrip("/")
        self.pool = open_client(connection, concurrency, credentials)
        finalize(self, self.pool.close)

    def ask(self, path: str, content: Content = None, kind: str = "") -> httpx2.Response:
        """The response to a GET, or to a POST of `content`: a mapping as JSON, bytes as of the content type `kind`.

        Raises:
            Fault: none came, or one with an error status.
        """
        raw = isinstance(content, bytes)
        body: dict[str, Any] = {"content": content} if raw else {"json": content}
        method, headers = "GET" if content is None else "POST", {"Content-Type": kind} if raw else {}
        return respond(self.pool, method, f"{self._base}{path}", headers=headers, **body)

    def post(self, path: str, **request: Any) -> httpx2.Response:
        """The response to a POST of what `respond` takes; what is raised: see `ask`."""
        return respond(self.pool, "POST", f"{self._base}{path}", **request)


def respond(client: httpx2.Client, method: str, url: str, **request: Any) -> httpx2.Response:
    """The response to one request.

    Args:
        client: asks.
        method: GET or POST.
        url: of whom.
        request: its headers and content, form or files, as `httpx2.Client.request` takes them.

    Raises:
        Fault: none came, or one with an error status.
    """
    import httpx2

    try:
        response = client.request(method, url, **request)
    except httpx2.TransportError as error:
        raise Fault.of_transport(error) from error
    check_redirect(response.status_code, response.headers.get("location", ""))
    if response.status_code >= 400:
        raise Fault.of_response(response.status_code, response.headers, response.content)
    return response


def object_of(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object that a response holds; see `read_json`.

    Raises:
        Fault: it holds something else.
    """
    try:
        charset = response.encoding if response.charset_encoding else None
        content = read_json(response.content, charset)
    except (ValueError, RecursionError) as error:  # nested too deep
        raise Fault.of_response(response.status_code, {}, response.content) from error
    if not isinstance(content, dict):
        raise Fault("the answer is not a JSON object", response.status_code)
    return content


def fetched(url: str, get: Callable[[], httpx2.Response], kept: dict[str, bytes]) -> bytes | Failed:
    """Return the bytes behind an image's address, or a Failed if it is gone for good.

    Args:
        url: the address.
        get: asks for it.
        kept: what earlier tries of the same request have fetched.

    Raises:
        Fault: a later try may bring it.
    """
    if url not in kept:
        try:
            response = get()
            if response.headers.get("content-type", "").startswith("text/"):  # a portal's page
                words, _ = body_words(response.content[:LOOKED_AT])
                raise Fault(f"a page in place of an image: {words}")
        except Fault as fault:
            if not (fault.heals or fault.untrusted):
                return Failed(f"an image could not be fetched: {fault}")
            fault.words = f"an image could not be fetched: {fault.words}"
            raise
        kept[url] = response.content
    return kept[url]


def read_json(content: bytes, charset: str | None = None) -> Any:
    """Read JSON; bytes that are no text become lone surrogates, and too large whole numbers None.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    encoding = json.detect_encoding(content)
    text = content.decode(charset if charset and encoding == "utf-8" else encoding, "surrogateescape")
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= LONGEST_NUMBER else None)


def check_redirect(status: int, location: str) -> None:
    """Refuse to be sent elsewhere: the key goes to the host that the recipe names, and to no other.

    Raises:
        Fault: the status is a redirect.
    """
    if 300 <= status < 400:
        raise Fault(f"it redirects to {location.split('?')[0]!r}: name that address in the recipe if you trust it", 400)
