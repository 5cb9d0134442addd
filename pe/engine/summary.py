"""What a run came to, in a few numbers for its owner."""

from __future__ import annotations

from typing import Any

from pe.store.run import Run
from pe.store.writer import read_journal


def summary(run: Run) -> dict[str, Any]:
    """epsilon, delta, data_set (the total of all runs), images (synthetic ones), api_calls and run (its directory)."""
    certificate = run.guarantee
    with read_journal(run) as journal:
        calls = journal.totals().calls
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "data_set": certificate["data_set"],
        "images": len(run.synthetic),
        "api_calls": calls,
        "run": str(run.folder),
    }
