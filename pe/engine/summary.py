"""What a run came to, in a few numbers for its owner."""

from __future__ import annotations

from typing import Any

from pe.store.run import Run
from pe.store.writer import read_journal


def summary(run: Run) -> dict[str, Any]:
    """epsilon, delta, images (synthetic ones), api_calls, run (its directory) of a finished run."""
    certificate = run.guarantee
    with read_journal(run) as journal:
        calls = journal.totals().calls
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "images": len(run.synthetic),
        "api_calls": calls,
        "run": str(run.folder),
    }
