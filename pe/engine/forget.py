"""A run that has drawn nothing is struck out of its data set's ledger."""

from __future__ import annotations

from pathlib import Path

from pe.engine.private_side import Identity
from pe.errors import RunError
from pe.privacy.data_set import DataSetLedger
from pe.store.releases import JournalReleases
from pe.store.run import Run
from pe.store.writer import RunWriter, has_journal


def forget_run(folder: Path, ledger: DataSetLedger) -> None:
    """Strike the run in `folder` out of `ledger`, durably; if it goes on, it is entered again before it draws.

    Both must say that nothing was drawn: the run's journal, under the run's lock, and the ledger file, which notes when
    a run begins to draw; so neither an older state of the run nor a copy of it serves to strike out what was drawn.

    Raises:
        RunError: the run has drawn noise, lost its journal, is a copy, or is being written.
        PrivacyError: the file does not hold the run, or knows that it has drawn.
    """
    run = Run.open(folder)
    if not has_journal(run):
        raise RunError(f"{folder} has no journal, which alone can tell that nothing was drawn: its entry stays.")
    with RunWriter.reopen(folder) as writer:
        identity = Identity.read(writer)
        if not writer.journal.happened("started"):
            raise RunError(f"{folder} has lost its first journal, so what was drawn is unknown: its entry stays.")
        if drawn := [one.release.name for one in JournalReleases(writer).charged()]:
            raise RunError(f"{folder} has drawn noise for {', '.join(drawn)}, which counts for good: its entry stays.")
        if not identity.is_of(folder):
            raise RunError(f"{folder} is a copy, or was moved to another disk: resume it, or forget the first.")
        ledger.strike(identity.run)
        writer.journal.add_event("struck out of the data set's ledger")
