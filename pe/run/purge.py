"""Deleting a run's confidential side."""

from __future__ import annotations

import shutil

from pe.errors import RunError
from pe.run.directory import Run
from pe.run.durable import sync, write_durably
from pe.run.export import reissue
from pe.run.lock import RunLock

PURGED = "purged.txt"
_NOTE = "The confidential side of this run was deleted by `pe purge`.\n"


def purge(run: Run) -> None:
    """Delete `confidential/` of a finished run, and record that it was done.

    Export, certificate and report work as before; noise can no longer be drawn, nor the private
    embeddings used again. Deleting removes names: what a disk, its snapshots and backups still hold is
    not this software's to erase.

    Raises:
        RunError: the run is not finished, was purged before, or another process writes it.
    """
    run.guarantee  # noqa: B018 (raises for a run that is not finished)
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged before.")
    with RunLock(run.confidential / "lock"):
        write_durably(run.folder / PURGED, _NOTE.encode())
        reissue(run)
        shutil.rmtree(run.confidential)
        sync(run.folder)
