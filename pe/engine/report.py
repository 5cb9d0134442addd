"""A run's pages on disk."""

from __future__ import annotations

from pathlib import Path

from pe.report.internal import INTERNAL_REPORT, internal_report
from pe.report.shareable import REPORT, shareable_report
from pe.store.certified import reissue
from pe.store.durable import write_durably
from pe.store.places import CERTIFICATE
from pe.store.publish import level_confidential
from pe.store.run import Run


def write_report(folder: Path, *, confidential: bool = False) -> Path:
    """Write the page of the run in `folder`; return where it is.

    The shareable page becomes part of what the certificate covers and `pe export` copies: it is post-processing
    of the run's releases.

    Raises:
        RunError: there is no run, nothing to show, or (for the confidential page) no confidential side.
    """
    run = Run.open(folder)
    if confidential:
        write_durably(folder / INTERNAL_REPORT, internal_report(run).encode())
        level_confidential(folder)
        return folder / INTERNAL_REPORT
    write_durably(folder / REPORT, shareable_report(run).encode())
    if (folder / CERTIFICATE).is_file():
        reissue(run.folder, [REPORT])
    return folder / REPORT
