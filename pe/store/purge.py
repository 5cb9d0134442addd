"""Deleting a run's confidential side."""

from __future__ import annotations

from pathlib import Path

import yaml

from pe.data.remote import is_remote
from pe.errors import BAD_FILES, RunError
from pe.store.certified import read_certificate, reissue
from pe.store.durable import sync, write_durably
from pe.store.lock import RunLock
from pe.store.places import FULL_RECIPE, PURGED
from pe.store.publish import level_times, put_back
from pe.store.run import Run

_NOTE = (
    "All that was confidential in this run was deleted by `pe purge`.\n"
    "`pe extend` and `pe evaluate` make confidential/ anew; another `pe purge` deletes it.\n"
)


def purge(run: Run) -> None:
    """Delete `confidential/` of a finished run, and record, once all is deleted, that it was done.

    With it goes the list of unreadable private files beside the data, which a refused start may have left.

    Export, certificate and report work as before; noise can no longer be drawn, nor the private
    embeddings used again. What a crash interrupts is finished by another call. Deleting removes names: what
    a disk, its snapshots and backups still hold is not this software's to erase.

    Raises:
        RunError: the run is not finished, was purged before, is being written, or a file cannot be deleted.
    """
    read_certificate(run.folder)
    if run.confidential.is_symlink():
        raise RunError(f"{run.confidential} is a link: delete what it points to, and the link, by hand.")
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged before, or is an export.")
    path = run.confidential / "lock"
    with RunLock(path):
        try:
            put_back(run.folder)
            _delete_list(run.folder / FULL_RECIPE)
            _delete(run, path)
            write_durably(run.folder / PURGED, _NOTE.encode())
            reissue(run.folder, [PURGED])
            path.unlink()
            run.confidential.rmdir()
            sync(run.folder)
            level_times(run.folder)
        except OSError as error:
            raise RunError(f"{error.filename or run.confidential} is not deleted: {error.strerror}.") from error


def _delete_list(recipe: Path) -> None:
    """Delete `<data>.bad-files.txt` of the data that a run's whole recipe names."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.is_file() else {}
    place = content.get("private", {}).get("path")
    if place is not None and not is_remote(place):
        data = Path(place).resolve()
        listed = data.with_name(BAD_FILES.format(data.name))
        if listed.exists():
            listed.unlink()


def _delete(run: Run, lock: Path) -> None:
    """Delete, durably, everything confidential but the lock.

    The recipe goes first, and without it a run is not resumed: a half-deleted journal must never be gone on
    with, because the charges that it has forgotten would be drawn anew.
    """
    (run.folder / FULL_RECIPE).unlink(missing_ok=True)
    sync(run.confidential)
    for path in sorted(run.confidential.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            sync(path)
            path.rmdir()
        elif path != lock:
            path.unlink()
    sync(run.confidential)
