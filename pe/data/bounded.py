"""Read a small file whole, and refuse a large one before it takes memory."""

from __future__ import annotations

from pathlib import Path

from pe.errors import DamagedFile

MOST = 2**27
"""Bytes of the largest file that is read whole: a certificate of 800,000 files has as many."""


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """Return the content of a file.

    Raises:
        DamagedFile: the file has more than `most` bytes.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise DamagedFile(
            f"{path} has more than {most:,} bytes, which no such file has: restore it from a copy."
        )
    return content
