"""The shareable side of a finished run, published as fresh copies, whose times do not tell how long work took.

A file's birth time cannot be set. Files that were made as the run went on would tell how long the embedding and each
histogram took, which depends on the private records.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pe.store.durable import TEMPORARY, sync, writing
from pe.store.lock import folder_lock
from pe.store.places import CONFIDENTIAL, RECIPE

_STAGED = f"{CONFIDENTIAL}/published{TEMPORARY}"
_REPLACED = f"{CONFIDENTIAL}/replaced"


def publish(folder: Path) -> None:
    """Replace every shareable file and folder of a run by a fresh copy, in the order of their names; level all times.

    All copies are made and synced first, so the disk needs room for the shareable side once more. Links stay links.

    Guarantee: birth and change times of the copies follow from the moment of the call and from their names and sizes;
    inode numbers are new. After a crash at any instant, `put_back` makes the run whole.

    Args:
        folder: the run's directory, locked by this process.

    Raises:
        RunError: the operating system refused a write, for lack of room or otherwise. The run can be resumed.
    """
    staged, replaced = folder / _STAGED, folder / _REPLACED
    with writing(folder), folder_lock(folder):  # no report or certificate changes meanwhile
        names = sorted(path.name for path in _shareable(folder) if path.suffix != TEMPORARY)
        try:
            staged.mkdir()
            for name in names:
                _copy(folder / name, staged / name, _began(folder))
            sync(staged)
            replaced.mkdir()
            for name in names:
                _replace(folder / name, staged / name, replaced)
            sync(folder)
            shutil.rmtree(replaced)
        finally:
            shutil.rmtree(staged, ignore_errors=True)  # copies alone lie there
    level_times(folder)


def put_back(folder: Path) -> None:
    """Move the folders that a killed `publish` left without a successor back into the run; delete the others.

    Raises:
        OSError: the operating system refused.
    """
    replaced = folder / _REPLACED
    if not replaced.is_dir():
        return
    for path in sorted(replaced.iterdir()):
        if not (folder / path.name).exists():
            path.replace(folder / path.name)
    sync(folder)
    shutil.rmtree(replaced)
    sync(replaced.parent)


def level_times(folder: Path) -> None:
    """Set the times of a run's directory, and of all in it that may be shared, to when the run began, in whole seconds.

    Raises:
        RunError: the operating system refused.
    """
    with writing(folder):
        began = _began(folder)
        for top in _shareable(folder):
            inside = top.rglob("*") if top.is_dir() and not top.is_symlink() else ()
            for path in (*inside, top):
                os.utime(path, (began, began), follow_symlinks=False)
        os.utime(folder, (began, began))
    level_confidential(folder)


def level_confidential(folder: Path) -> None:
    """Set the times of `confidential/` itself, which anybody who sees the run can read, to when the run began.

    To be called after the last write into it: a journal that is closed removes files.

    Raises:
        RunError: the operating system refused.
    """
    path = folder / CONFIDENTIAL
    with writing(folder):
        began = _began(folder)
        if path.is_dir() and path.stat().st_mtime_ns != began * 10**9 and not os.statvfs(path).f_flag & os.ST_RDONLY:
            os.utime(path, (began, began))


def _began(folder: Path) -> int:
    return int((folder / RECIPE).stat().st_mtime)


def _shareable(folder: Path) -> list[Path]:
    """What lies at the top of a run's directory and may be shared."""
    return [path for path in folder.iterdir() if path.name != CONFIDENTIAL]


def _copy(source: Path, target: Path, began: int) -> None:
    """Copy a file by blocks, a folder with all it holds in the order of names, or a link as a link; durably."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name, began)
    else:
        shutil.copyfile(source, target)
    shutil.copymode(source, target)
    os.utime(target, (began, began))
    sync(target)


def _replace(final: Path, copy: Path, replaced: Path) -> None:
    """Put `copy` in the place of `final`: a file at once, a folder after `final` was moved into `replaced`."""
    if final.is_dir() and not final.is_symlink():
        final.replace(replaced / final.name)
        sync(replaced)
    copy.replace(final)
