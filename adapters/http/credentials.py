"""Who asks an endpoint: a key that may be renewed, Basic auth, headers; all from outside the recipe."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from adapters.http.faults import Fault, one_line, without
from adapters.http.settings import Connection
from pe.errors import RecipeError

if TYPE_CHECKING:
    import httpx2

Sent = TypeVar("Sent")

LONGEST_COMMAND = 120.0
"""Seconds that `key_command` may take."""

SHORTEST = 4
"""Characters of a secret that messages are searched for."""


class Credentials:
    """What tells an endpoint who asks, for all workers.

    A key of `key_file` is read again when the file changes; while a changed file cannot be read, the key that it held
    is sent. Either that, or the command, is asked again when the endpoint refuses the key.

    Args:
        connection: names where the key, and what else is sent, is held.
        header: that the key stands in; None: a library puts the key in itself.
        scheme: before the key in `Authorization`.

    Raises:
        RecipeError: what a setting names is not there.
    """

    def __init__(self, connection: Connection, *, header: str | None = "Authorization", scheme: str = "Bearer") -> None:
        self._given, self._header, self._scheme, self._renewing = connection, header, scheme, Lock()
        self._headers = {
            name: value_of(f"headers_env.{name}", variable) for name, variable in (connection.headers_env or {}).items()
        }
        self._secrets = set(self._headers.values())
        self._version = self._file_version()
        self._key = self._take(self._found())

    @property
    def key(self) -> str:
        """As it is now; empty: none is sent."""
        with self._renewing:
            version = self._file_version()
            if version not in (None, self._version):
                with suppress(RecipeError):  # half written: the next request looks again
                    self._key, self._version = self._take(self._found()), version
            return self._key

    def sign(self, request: httpx2.Request) -> None:
        """Put in what is sent, in place of the key that a library has put there."""
        if self._header is not None:
            for name in ("Authorization", "api-key"):
                request.headers.pop(name, None)
            if key := self.key:
                bare = self._header != "Authorization" or self._given.basic_auth_env is not None
                request.headers[self._header] = key if bare else f"{self._scheme} {key}"
        request.headers.update(self._headers)

    def ask(self, send: Callable[[], Sent]) -> Sent:
        """What `send` brings; if the key is refused and there is another one, it is made again, once.

        Raises:
            Fault: `send` brings nothing.
            RecipeError: the key is refused, and none is found in its place.
        """
        key = self.key
        try:
            return send()
        except Fault as fault:
            if fault.status not in (401, 403) or fault.refusal or not self._renewed(key):
                raise
        return send()

    def hide(self, *secrets: str) -> None:
        """Let no message hold these either."""
        self._secrets |= set(secrets) - {""}

    def clean(self, words: str) -> str:
        """`words` without any key; what is shorter than SHORTEST is left, because it may be part of any word."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            words = without(secret, words) if len(secret) >= SHORTEST else words
        return words

    def _renewed(self, refused: str) -> bool:
        """Whether there is another key than the one that was refused."""
        if not self._given.key_expires:
            return False
        with self._renewing:
            if self._key == refused:
                self._version = self._file_version()
                self._key = self._take(self._found())
            return self._key != refused

    def _found(self) -> str:
        given = self._given
        if given.key_file is not None:
            return _of_file(given.key_file)
        if given.key_command is not None:
            return _of_command(given.key_command)
        if given.basic_auth_env is not None:
            pair = value_of("basic_auth_env", given.basic_auth_env)
            if ":" not in pair:
                raise RecipeError(
                    f"basic_auth_env: the environment variable {given.basic_auth_env} has no colon: "
                    "export user:password in it."
                )
            self._secrets |= {pair, pair.partition(":")[2]} - {""}
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return "" if given.key_env is None else value_of("key_env", given.key_env)

    def _take(self, key: str) -> str:
        """Remember a key, so that no message holds it."""
        self._secrets |= {key.removeprefix("Basic ")} - {""}
        return key

    def _file_version(self) -> tuple[int, int, int] | None:
        """Changes when `key_file` does; None: there is no such file, now."""
        if self._given.key_file is None:
            return None
        try:
            found = self._given.key_file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def check_key(connection: Connection) -> None:
    """Read the key, and what else is sent, before there is a request; a command for it is not run yet.

    Raises:
        RecipeError: what a setting names is not there.
    """
    if connection.key_command is None:
        Credentials(connection)


def value_of(setting: str, variable: str) -> str:
    """What the environment variable that a setting names holds.

    Raises:
        RecipeError: it is not set, or cannot stand in a header.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise RecipeError(f"{setting}: the environment variable {variable} is not set: export your key in it.")
    return _sendable(value, f"{setting}: the environment variable {variable}")


def _of_file(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise RecipeError(f"key_file: {path} cannot be read ({error.strerror}): put the key in it.") from None
    except UnicodeDecodeError:
        raise RecipeError(f"key_file: {path} is no text: put the key in it.") from None
    return _sendable(key, f"key_file: {path}")


def _of_command(command: list[str]) -> str:
    name = f"key_command: '{command[0]}'"
    try:
        done = subprocess.run(  # noqa: S603  # the recipe names it, and other people's runs must name it again
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST_COMMAND, check=False
        )
    except (OSError, ValueError) as error:
        raise RecipeError(f"{name} cannot be run ({error}): name a program and its arguments.") from error
    except subprocess.TimeoutExpired:
        raise RecipeError(f"{name} gave no key within {LONGEST_COMMAND:g} s: try it in a terminal.") from None
    if done.returncode:
        words = one_line(done.stderr.decode("utf-8", "replace")) or "without a word"
        raise RecipeError(f"{name} ended with status {done.returncode} ({words}): try it in a terminal.")
    return _sendable(done.stdout.decode("utf-8", "replace").strip(), f"{name}: what it printed")


def _sendable(key: str, where: str) -> str:
    if not key or not key.isascii() or not key.isprintable():
        raise RecipeError(f"{where} is not one line of printable ASCII, which a key is.")
    return key
