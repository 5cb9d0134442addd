"""Files that are whole or absent: written to a temporary name, synced, renamed, and the folder synced."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pe.errors import RunError

TEMPORARY = ".part"
Piece = bytes | memoryview
"""Of a file, one after another."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into a sentence: what was committed before stands, and the run can go on.

    Raises:
        RunError: the operating system refused a write below `path`.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror or error}): see to the disk, then `pe resume` goes on."
        ) from error


@contextmanager
def durable_file(path: Path, by_way_of: Path | None = None) -> Iterator[BinaryIO]:
    """A file to be written, which appears at `path`, whole and durable, when the block ends.

    Args:
        path: where.
        by_way_of: the folder, on the same file system, in which it lies until then; default: its own.
    """
    temporary = (by_way_of or path.parent) / (path.name + TEMPORARY)
    with writing(path):
        temporary.unlink(missing_ok=True)  # never written through a link that somebody left there
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)


def write_durably(path: Path, data: bytes | list[Piece], by_way_of: Path | None = None) -> str:
    """Put `data` at `path`, durable when this returns; return its SHA-256 (hexadecimal). See `durable_file`."""
    digest = hashlib.sha256()
    with durable_file(path, by_way_of) as file:
        for piece in [data] if isinstance(data, bytes) else data:
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def publish_folder(temporary: Path, final: Path) -> None:
    """Make the folder `temporary`, its files complete, appear durably under the name `final`."""
    with writing(final):
        for path in (temporary, *temporary.rglob("*")):
            sync(path)
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
        sync(final.parent)


def remove_unfinished(folder: Path) -> None:
    """Delete, durably, what a writer that was killed left under temporary names anywhere below `folder`."""
    for path in sorted(folder.rglob(f"*{TEMPORARY}"), reverse=True):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the names in a folder durable, or the content of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 (hexadecimal) of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
