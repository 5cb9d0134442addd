"""Connections to an endpoint: pooled, bounded in size and time, with TLS verified.

No connection follows a redirect.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar
from urllib.parse import urlsplit
from weakref import finalize

from pydantic import Field

from adapters.http.credentials import Credentials
from adapters.http.faults import LOOKED_AT, Fault, Rejected
from adapters.http.retries import Policy
from adapters.http.settings import Connection
from pe.errors import RecipeError
from pe.plugins.devices import import_library

if TYPE_CHECKING:
    import httpx2

Value = TypeVar("Value")

MAX_BYTES = 2**28
"""Most bytes of a response that are read, counted after decompression. 256 MiB hold ten PNG files
of 8 megapixels."""

LONGEST_NUMBER = 40
"""Most digits of a whole number in JSON. A longer one is read as None (Python itself reads some
4,000)."""

_PORTS = {"http": 80, "https": 443}


class OnFirstUse(Generic[Value]):
    """A value that is made at its first use, once for all threads.

    After a failure the next use tries again.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make, self._making = make, Lock()
        self.value: Value | None = None

    def get(self) -> Value:
        """Return the value."""
        with self._making:
            if self.value is None:
                self.value = self._make()
            return self.value


def open_client(
    connection: Connection, concurrency: int, credentials: Credentials | None = None
) -> httpx2.Client:
    """Open a pool of connections through the environment's proxies.

    Without `credentials` neither a key nor a client certificate is sent. Raise RecipeError if a
    proxy or certificate is unusable.
    """
    import_library("httpx2", "http", "Calling an endpoint")
    import httpx2

    tls = _trusted_authorities()
    if credentials is not None and connection.client_cert is not None:
        _load_certificate(
            tls,
            connection.client_cert,
            connection.client_key,
        )
    seconds = connection.deadline

    def note_time(request: httpx2.Request) -> None:
        request.extensions["asked"] = time.monotonic()

    try:
        return httpx2.Client(
            auth=None if credentials is None else credentials.auth(),
            verify=tls,
            limits=httpx2.Limits(
                max_connections=concurrency, max_keepalive_connections=concurrency
            ),
            timeout=min(connection.timeout, seconds),
            follow_redirects=False,
            event_hooks={
                "request": [note_time],
                "response": [lambda response: _bound(response, seconds)],
            },
        )
    except (ImportError, ValueError, httpx2.InvalidURL):  # whose words may hold a proxy's password
        raise RecipeError(
            "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names no proxy that can be used. Write "
            "http://host:port, or install the package socksio for socks5://host:port."
        ) from None


def _bound(response: httpx2.Response, seconds: float) -> None:
    """Bound what is read of a response, in bytes and in time.

    Reading raises beyond MAX_BYTES (decompressed), or `seconds` after the request was sent.

    Of an error's body at least LOOKED_AT bytes are read, and not much more.
    """
    import httpx2

    chunks = response.iter_bytes
    end = response.request.extensions["asked"] + seconds

    def limited_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        try:
            for part in chunks(chunk_size):
                size += len(part)
                if size > MAX_BYTES:
                    raise Fault(
                        f"the answer is larger than {MAX_BYTES} bytes", response.status_code
                    )
                if time.monotonic() > end:
                    raise httpx2.ReadTimeout(f"no whole answer within total_timeout, {seconds:g} s")
                yield part
                if size > LOOKED_AT and response.status_code >= 400:
                    response.close()
                    return
        except httpx2.DecodingError as error:
            raise Fault(f"the answer cannot be unpacked: {error}", response.status_code) from error

    response.iter_bytes = limited_bytes  # type: ignore[method-assign]  # which `read` calls


def _trusted_authorities() -> ssl.SSLContext:
    """Return TLS settings that trust SSL_CERT_FILE or SSL_CERT_DIR, else the system."""
    import httpx2

    try:
        return httpx2.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        raise RecipeError(
            "SSL_CERT_FILE, SSL_CERT_DIR: no certificates can be read "
            f"({error.strerror or error}). Name a file of certificates in PEM format, or a folder "
            "of them, or unset the variable."
        ) from error


def _load_certificate(tls: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Show this certificate to a server that asks for one.

    Raise RecipeError if it cannot be used.
    """
    try:
        tls.load_cert_chain(
            certificate,
            key,
            password="",  # never ask a terminal
        )
    except OSError as error:  # ssl.SSLError is one
        raise RecipeError(
            f"client_cert: {certificate} with the key of {key or certificate} cannot be used "
            f"({error.strerror or error}). Name PEM files that belong together, the key without a "
            "password."
        ) from error


HostName = Annotated[str, Field(pattern=r"^([a-z0-9-]+\.)+[a-z]{2,}$")]
"""A host's name with a dot and an ending of letters, so neither an IP address nor a bare name such
as localhost."""


def why_not_followed(url: str, base: str, hosts: Sequence[str] = ()) -> str:
    """Return why an address is not followed, in a clause, or an empty text if it is.

    Args:
        url: the address.
        base: the endpoint's own; every address with its scheme, name and port is followed.
        hosts: further hosts that are followed, with all their subdomains, by https on port 443.
    """
    place = _place_of(url)
    if place is None:
        return "named an address that is none"
    # Without the path, which may hold a key.
    scheme, name, port = place
    is_listed = any(name == host or name.endswith(f".{host}") for host in hosts)
    if place == _place_of(base) or (is_listed and (scheme, port) == ("https", 443)):
        return ""
    allowed = " or ".join([base, *(f"https://{host}" for host in hosts)])
    return f"named an address at {scheme}://{name}:{port}, and only {allowed} is followed"


def _place_of(url: str) -> tuple[str, str, int | None] | None:
    """Return the scheme, the host and the port of an address.

    Return None for no address, or one that holds a user.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # brackets, a port
        return None
    if "@" in parts.netloc or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port


class HTTPClient:
    """Makes requests to one endpoint.

    The credentials go to the endpoint's addresses, and not to the addresses of images.

    Whoever asks does so under `policy`. The connections are closed when nobody holds the client any
    more. `key_hosts` are further hosts that are asked with the credentials.
    """

    def __init__(
        self,
        base_url: str,
        connection: Connection,
        concurrency: int,
        credentials: Credentials,
        key_hosts: tuple[str, ...] = (),
    ) -> None:
        self.host = urlsplit(base_url).netloc
        self.policy = Policy(
            self.host,
            connection,
            concurrency,
            credentials.clean,
        )
        self.credentials = credentials
        self.pool = open_client(connection, concurrency, credentials)
        self._base = base_url.rstrip("/")
        self._key_hosts = key_hosts
        self._images = open_client(connection, concurrency)
        self.close = finalize(self, _close, self.pool, self._images)

    def ask(self, method: str, where: str, **request: Any) -> httpx2.Response:
        """Make a request and return the response.

        `where` is a path, or an address that the endpoint named.

        Raises:
            Fault: no response came, or one with an error status or a redirect.
            Rejected: the address belongs neither to the endpoint nor to `key_hosts`.
        """
        if where.startswith("/"):
            return respond(
                self.pool,
                method,
                f"{self._base}{where}",
                **request,
            )
        why = why_not_followed(where, self._base, self._key_hosts)
        if why:
            raise Rejected(f"{self.host} {why}, because the key would go there")
        return respond(self.pool, method, where, **request)

    def find(self, where: str) -> dict[str, Any] | None:
        """Return the JSON object at an address, or None if the endpoint answers 404."""
        try:
            return object_of(self.ask("GET", where))
        except Fault as fault:
            if fault.status != 404:
                raise
            return None

    def read(self, url: str) -> httpx2.Response:
        """GET an address without credentials and return the response.

        Raise Fault as `ask` does.
        """
        return respond(self._images, "GET", url)


def _close(*pools: httpx2.Client) -> None:
    for pool in pools:
        pool.close()


def respond(client: httpx2.Client, method: str, url: str, **request: Any) -> httpx2.Response:
    """Make one request through `client` and return the response.

    Raise Fault as `HTTPClient.ask` does.
    """
    import httpx2

    try:
        response = client.request(method, url, **request)
    except httpx2.TransportError as error:
        raise Fault.of_transport(error) from error
    fault = fault_of(response)
    if fault is not None:
        raise fault
    return response


def fault_of(response: httpx2.Response) -> Fault | None:
    """Return the fault of a response with an error status or a redirect.

    Return None for any other response.
    """
    if response.status_code < 300:
        return None
    if response.status_code < 400:
        # The key goes to the host that the recipe names, and to no other.
        where = response.headers.get("location", "").split("?")[0]
        words = f"it redirects to {where!r}: name that address in the recipe if you trust it"
        return Fault(words, response.status_code)
    return Fault.of(response)


def object_of(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object of a response, read by `parse_body`.

    Raise Fault if the response holds something else.
    """
    try:
        charset = response.encoding if response.charset_encoding else None
        content = parse_body(response.content, charset)
    except (ValueError, RecursionError) as error:  # nested too deep
        raise Fault.of(response) from error
    if not isinstance(content, dict):
        raise Fault("the answer is not a JSON object", response.status_code)
    return content


def parse_body(content: bytes, charset: str | None = None) -> Any:
    """Parse JSON, or raise ValueError or RecursionError.

    Bytes that cannot be decoded become lone surrogates.

    Whole numbers of more than LONGEST_NUMBER digits become None.
    """
    encoding: str = json.detect_encoding(content)
    if charset and encoding == "utf-8":
        encoding = charset
    return json.loads(
        content.decode(encoding, "surrogateescape"),
        parse_int=lambda digits: int(digits) if len(digits) <= LONGEST_NUMBER else None,
    )
