"""Private files at fault, all told at once to their owner. Confidential: every word of it names private files."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pe.data.remote import RemotePath
from pe.errors import BAD_FILES, BadTable, PrivateDataError, printable

SHOWN = 20
"""Most files at fault that the console names."""


def refusal(faults: Sequence[str], several: str, remedy: str) -> PrivateDataError:
    """The error that tells of all `faults`: the first in its sentence, if there are more the first SHOWN as notes.

    Args:
        faults: one sentence for each file, one or more.
        several: what they are if they are several: 'private records cannot be read'.
        remedy: a sentence, with {it} for them.
    """
    if len(faults) == 1:
        return PrivateDataError(f"{faults[0]} {remedy.format(it='it')}")
    error = PrivateDataError(f"{len(faults):,} {several}; the first: {faults[0]} {remedy.format(it='them')}")
    error.faults = tuple(map(printable, faults))
    for fault in error.faults[:SHOWN]:
        error.add_note(fault)
    if len(faults) > SHOWN:
        error.add_note(f"… and {len(faults) - SHOWN:,} more.")
    return error


@contextmanager
def as_private() -> Iterator[None]:
    """A table that cannot be read inside becomes a PrivateDataError."""
    try:
        yield
    except BadTable as error:
        raise PrivateDataError(str(error)) from error


@contextmanager
def listing(place: Path | RemotePath | None) -> Iterator[None]:
    """Where more files are at fault than are shown, list all in `<data>.bad-files.txt` beside the data at `place`.

    Only its owner can read that file. Nothing is written where the data have no place on this machine.
    """
    try:
        yield
    except PrivateDataError as error:
        if isinstance(place, Path) and len(error.faults) > SHOWN:
            error.add_note(_write(place.resolve(), error.faults))
        raise


def _write(data: Path, faults: Sequence[str]) -> str:
    """Write the list; return where it is, or why it is not there."""
    path = data.with_name(BAD_FILES.format(data.name))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{fault}\n" for fault in faults)
        temporary.replace(path)
    except OSError as error:
        return f"{path}, which is to list them all, cannot be written: {error.strerror}."
    return f"All of them are listed in {path}; as confidential as the data, it may be deleted."


def place_in(files: Sequence[object], ends: Sequence[int], noun: str = "Row") -> Callable[[int], str]:
    """What names a record's place ('Row 7 of a.parquet') in files that are read one after another.

    Args:
        files: their paths.
        ends: the number of records up to the end of each file that was read so far; it may grow.
        noun: what a record is called.
    """

    def where(index: int) -> str:
        file = bisect_right(ends, index)
        return f"{noun} {index - (ends[file - 1] if file else 0) + 1:,} of {files[file]}"

    return where
