"""Authenticate requests to an endpoint by a renewable key, Basic auth or headers.

The recipe holds no secret.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from adapters.http.faults import Fault, one_line, without
from adapters.http.settings import Connection
from pe.errors import RecipeError

if TYPE_CHECKING:
    import httpx2

LONGEST_COMMAND = 120.0
"""Seconds that `key_command` may take."""

SHORTEST = 4
"""Characters of the shortest secret that is redacted: a shorter one may be part of any word."""


class Credentials:
    """The key and the headers of an endpoint, shared by all its workers.

    `key_file` is read before each request; while it cannot be read, the last key is sent. When the
    endpoint refuses the key, the file is read or the command run again, and the request is made
    once more if that brings another key.

    The key is sent in the header `header`, in `Authorization` after the word `scheme`; None: a
    library sends the key.

    Raises:
        RecipeError: a file, a program or an environment variable that a setting names is not there.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        header: str | None = "Authorization",
        scheme: str = "Bearer",
    ) -> None:
        self._config = connection
        self._header = header
        self._scheme = scheme
        self._renewing = Lock()
        self._headers = {
            name: value_of(f"headers_env.{name}", variable)
            for name, variable in (connection.headers_env or {}).items()
        }
        self._secrets = set(self._headers.values())
        self._key = self._read_key()

    @property
    def key(self) -> str:
        """The current key. Empty if no key is sent."""
        with self._renewing:
            if self._config.key_file is not None:
                with suppress(RecipeError):  # it is being written: the last key is sent
                    self._key = self._read_key()
            return self._key

    def sign(self, request: httpx2.Request) -> str:
        """Put the key and the headers in a request, in place of a library's key. Return the key."""
        key = self.key
        if self._header is not None:
            for name in ("Authorization", "api-key"):
                request.headers.pop(name, None)
            if key:
                bare = self._header != "Authorization" or self._config.basic_auth_env is not None
                request.headers[self._header] = key if bare else f"{self._scheme} {key}"
        request.headers.update(self._headers)
        return key

    def auth(self) -> httpx2.Auth:
        """Return these credentials as httpx takes them.

        A request whose key is refused is repeated with a new one.
        """
        import httpx2

        credentials = self

        class Renewing(httpx2.Auth):
            def auth_flow(
                self, request: httpx2.Request
            ) -> Generator[httpx2.Request, httpx2.Response, None]:
                key = credentials.sign(request)
                response = yield request
                if credentials._header is None or response.status_code not in (401, 403):
                    return
                response.read()
                fault = Fault.of(response)
                if credentials.renew(fault, key):
                    credentials.sign(request)
                    yield request

        return Renewing()

    def renew(self, fault: Fault, key: str) -> bool:
        """Read the key again if `fault` says that `key` was refused.

        Return True if there is another key now.
        """
        if fault.status not in (401, 403) or fault.refusal or not self._config.key_expires:
            return False
        with self._renewing:
            if self._key == key:
                self._key = self._read_key()
            return self._key != key

    def hide(self, *secrets: str) -> None:
        """Have `clean` redact these secrets, too."""
        self._secrets |= set(secrets) - {""}

    def clean(self, words: str) -> str:
        """Return a message with every known secret redacted.

        Secrets shorter than SHORTEST characters stay.
        """
        for secret in sorted(self._secrets, key=len, reverse=True):
            words = without(secret, words) if len(secret) >= SHORTEST else words
        return words

    def _read_key(self) -> str:
        """Read and return the key, and have `clean` redact it from messages."""
        config = self._config
        if config.key_file is not None:
            key = _of_file(config.key_file)
        elif config.key_command is not None:
            key = _of_command(config.key_command)
        elif config.basic_auth_env is not None:
            pair = value_of("basic_auth_env", config.basic_auth_env)
            if ":" not in pair:
                raise RecipeError(
                    f"basic_auth_env: the environment variable {config.basic_auth_env} has no "
                    "colon. Export user:password in it."
                )
            self.hide(pair, pair.partition(":")[2])
            key = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            key = "" if config.key_env is None else value_of("key_env", config.key_env)
        self.hide(key.removeprefix("Basic "))
        return key


def check_key(connection: Connection) -> None:
    """Raise RecipeError if the key, or a header, cannot be read.

    With `key_command` nothing is read yet.
    """
    if connection.key_command is None:
        Credentials(connection)


def value_of(setting: str, variable: str) -> str:
    """Read the environment variable that a setting names.

    Raise RecipeError if it is not set, or cannot stand in a header.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise RecipeError(
            f"{setting}: the environment variable {variable} is not set. Export your key in it."
        )
    return _sendable(value, f"{setting}: the environment variable {variable}")


def _of_file(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is no text")
        raise RecipeError(f"key_file: {path} cannot be read ({why}). Put the key in it.") from None
    return _sendable(key, f"key_file: {path}")


def _of_command(command: list[str]) -> str:
    name = f"key_command: '{command[0]}'"
    try:
        result = subprocess.run(  # noqa: S603  # the recipe names it, and other people's runs must name it again
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=LONGEST_COMMAND,
            check=False,
        )
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{name} cannot be run ({error}). Name a program and its arguments."
        ) from error
    except subprocess.TimeoutExpired:
        raise RecipeError(
            f"{name} gave no key within {LONGEST_COMMAND:g} s. Try it in a terminal."
        ) from None
    if result.returncode:
        words = one_line(result.stderr.decode("utf-8", "replace")) or "without a word"
        raise RecipeError(
            f"{name} ended with status {result.returncode} ({words}). Try it in a terminal."
        )
    return _sendable(result.stdout.decode("utf-8", "replace").strip(), f"{name}: what it printed")


def _sendable(key: str, where: str) -> str:
    if not key or not key.isascii() or not key.isprintable():
        raise RecipeError(f"{where} is not one line of printable ASCII, which a key is.")
    return key
