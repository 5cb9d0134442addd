"""A small text file that one process at a time reads and replaces, whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

Write = Callable[[str], None]


@contextmanager
def locked_file(path: Path) -> Iterator[tuple[bytes, Write]]:
    """The file's content (b"" of a new one), and a function that replaces it durably; no other process comes between.

    A new file has mode 0600, and is gone again if nothing is written; an existing one keeps its mode, and a link to it
    stays one.

    Raises:
        OSError: the file cannot be made, read or replaced; what it held before stands.
    """
    with _lock(path) as (file, is_new):
        mode = os.fstat(file.fileno()).st_mode & 0o777
        try:
            yield file.read(), lambda text: _replace(path.resolve(), text, mode)
        finally:
            if is_new and _is(file, path):
                path.resolve().unlink()


@contextmanager
def _lock(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """The file, which no other process replaces meanwhile, and whether it was made here."""
    while True:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is(file, path):
                yield file, is_new and os.fstat(file.fileno()).st_size == 0
                return


def _is(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one of that name: whoever held the lock before may have replaced it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, text: str, mode: int) -> None:
    new = path.with_name(f"{path.name}.part")
    new.unlink(missing_ok=True)
    with new.open("x", encoding="utf-8") as whole:
        os.fchmod(whole.fileno(), mode)
        whole.write(text)
        whole.flush()
        os.fsync(whole.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
