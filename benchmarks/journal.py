"""What durability costs: the journal's share of the demo's time, and how long a finished run takes to resume.

    python benchmarks/journal.py [--runs N]

The journal is what a run would do without if it could not be resumed: SQLite's transactions, and the chunks' files
written, synced, hashed, read back and deleted. Writes results/journal.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record import keep, where

from pe.dispatch.answers import Answers
from pe.engine.demo.digits import run_demo
from pe.engine.execution import Surroundings
from pe.store.journal import Journal

PE = Path(sys.executable).with_name("pe")
ROWS = ("add_chunks", "add_files", "add_event", "add_charge", "add_release", "totals", "misses", "chunks")
SECONDS = {"rows": 0.0, "files": 0.0}


def timing(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SECONDS[kind] += time.perf_counter() - started

    return wrapped


def measure() -> tuple[float, float, float, float]:
    """Seconds of the demo, of the journal's rows, of the chunks' files, and of resuming the finished run."""
    SECONDS.update(rows=0.0, files=0.0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        demo = run_demo(epsilon=None, seed=None, out=run, surroundings=Surroundings())["seconds"]
        started = time.perf_counter()
        subprocess.run([PE, "resume", run, "--quiet"], check=True, capture_output=True)
        return demo, SECONDS["rows"], SECONDS["files"] - SECONDS["rows"], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for name in ROWS:
        if hasattr(Journal, name):
            setattr(Journal, name, timing("rows", getattr(Journal, name)))
    for name in ("store", "commit", "standing", "forget"):
        setattr(Answers, name, timing("files", getattr(Answers, name)))
    results = [measure() for _ in range(arguments.runs)]
    demo, rows, files, resume = (statistics.median(values) for values in zip(*results, strict=True))
    keep(
        "journal.md",
        f"# What durability costs in the demo\n\n{where()}. Median of {arguments.runs} runs. "
        "`python benchmarks/journal.py`\n\n"
        f"- the demo: {demo:.1f} s\n"
        f"- the journal's rows: {rows:.2f} s, {rows / demo:.1%}\n"
        f"- the chunks' files: {files:.2f} s, {files / demo:.1%}\n"
        f"- both: {(rows + files) / demo:.1%} (target: at most 3 %)\n"
        f"- `pe resume` of the finished run: {resume:.2f} s (target: under 2 s)\n",
    )


if __name__ == "__main__":
    main()
