"""Whether public samples lie apart from the private records: by their places on disk, without reading a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pe.errors import RecipeError

Identity = tuple[int, int]
"""Device and inode: the same for a file or folder under all its names."""


def check_apart(private: Path, public: Iterable[Path], noun: str = "images") -> None:
    """Refuse public samples that are, hold, lie in or share a file with the private records' place.

    Symbolic links, hard links and folders that are mounted twice are recognised. Names and inodes are read, and no
    file's content.

    Args:
        private: the folder or file of private records.
        public: the folders and files that public samples are read from; they need not exist yet.
        noun: what messages call the samples.

    Raises:
        RecipeError: they are not apart.
    """
    for path in public:
        if meeting := _meeting(private, path):
            raise RecipeError(
                f"The public {noun} {path} {meeting}: name {noun} that hold no private record, or, if these records "
                "are published, set privacy.pool_overlaps: declared in the recipe."
            )


def _meeting(private: Path, public: Path) -> str:
    """How the two places meet, in words; empty: they are apart."""
    ours, theirs = _chain(private), _chain(public)
    own = ours[0]
    if own is not None and own in theirs:
        return f"are the private records {private}" if own == theirs[0] else f"lie in the private records {private}"
    if theirs[0] is not None and theirs[0] in ours:
        return f"contain the private records {private}"
    linked = set()
    for path in _below(public):
        if own is not None and path.is_symlink() and own in _chain(path):
            return f"link to the private records by {path}"
        linked |= _hard_link(path)
    if linked:  # else there is no need to look through the private folder
        for path in _below(private):
            if _hard_link(path) & linked:
                return f"share a file with the private records, {path}"
    return ""


def _chain(path: Path) -> list[Identity | None]:
    """What `path` is, links followed, and then each folder above it; None where nothing is there."""
    real = path.resolve()
    return [_identity(one) for one in (real, *real.parents)]


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _below(path: Path) -> Iterator[Path]:
    """Everything below a folder; or the file itself."""
    if not path.is_dir():
        yield path
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))


def _hard_link(path: Path) -> set[Identity]:
    """The identity of a file that has several names; empty for all else."""
    try:
        status = path.stat()
    except OSError:
        return set()
    return {(status.st_dev, status.st_ino)} if status.st_nlink > 1 and not path.is_dir() else set()
