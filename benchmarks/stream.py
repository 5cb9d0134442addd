"""Up to 10^8 private records vote for 10^4 candidates: time and memory of one histogram's clean votes.

    python benchmarks/stream.py [--records N …]

Vectors of 64 dimensions, 10 labels, q = 1, each record a privacy unit of its own. The vectors are windows into one row
of random numbers, so that no disk is measured. All else is what a run does (`InThisProcess.count_votes`). Each size
runs in a process of its own. Writes results/stream.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from record import keep, where

from pe.histogram import Voting
from pe.private.embeddings import PrivateEmbeddings
from pe.private_work import InThisProcess

DIMENSION, LABELS, CANDIDATES = 64, 10, 10_000
CLASSES = tuple(f"c{i}" for i in range(LABELS))


def measure(records: int) -> dict[str, float]:
    """Seconds of the votes, and the process's most memory."""
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((CANDIDATES, DIMENSION), np.float32)
    of = np.arange(CANDIDATES, dtype=np.int32) % LABELS
    numbers = rng.standard_normal(records + DIMENSION - 1, np.float32)
    vectors = np.lib.stride_tricks.sliding_window_view(numbers, DIMENSION)
    labels = np.resize(np.arange(LABELS, dtype=np.int32), records)
    private = PrivateEmbeddings(vectors, labels, np.arange(records), CLASSES)
    started = time.perf_counter()
    votes = InThisProcess().count_votes(private, candidates, of, 1, Voting())
    seconds = time.perf_counter() - started
    assert votes.sum() == records
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"records": records, "seconds": seconds, "peak": peak}


def row(found: dict[str, float]) -> str:
    rate, given = found["records"] / found["seconds"], 16 * found["records"] / 2**30
    return f"| {found['records']:,} | {found['seconds']:.0f} | {rate:,.0f} | {found['peak']:.2f} | {given:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10**7, 3 * 10**7, 10**8])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    found = []
    for records in arguments.records:
        command = [sys.executable, str(Path(__file__).resolve()), "--one", str(records)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    head = "| records | voting, s | records a second | most memory, GB | labels, units and numbers, GB |"
    text = [
        f"# Up to {max(arguments.records):,} private records vote for {CANDIDATES:,} candidates",
        "",
        f"{where()}. 64 dimensions, {LABELS} labels, q = 1; one histogram's clean votes by a run's code, in one "
        f"process. Each record is compared with the {CANDIDATES // LABELS:,} candidates of its label. "
        "`python benchmarks/stream.py`",
        "",
        head,
        "|" + "--:|" * head.count(" |"),
        *map(row, found),
        "",
        "The vectors that a process holds do not grow with the records; labels (4 bytes each), units (8 bytes) and the "
        "numbers that the vectors are windows into (4 bytes) do.",
    ]
    keep("stream.md", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
