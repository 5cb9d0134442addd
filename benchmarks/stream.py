"""Up to 10^8 private records vote for 10^4 candidates: time and memory of one histogram's clean votes.

    python benchmarks/stream.py [--records N …]

Vectors of 64 dimensions, 10 labels, q = 1, each record a privacy unit of its own. The vectors are made up where the
voting code reads them, as from a memory map, so that no disk is measured; making them is timed apart. All else is what
a run does (`InThisProcess.count_votes`). Each size runs in a process of its own. Writes results/stream.md.
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
from pe.private_work import AT_ONCE, InThisProcess

DIMENSION, LABELS, CANDIDATES = 64, 10, 10_000
CLASSES = tuple(f"c{i}" for i in range(LABELS))


class MadeUp:
    """Private vectors, float32 (n, 64), made when a range of rows is read.

    Args:
        records: n.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, records: int) -> None:
        self.shape = records, DIMENSION
        self.nbytes = 4 * records * DIMENSION
        self.seconds = 0.0

    def __getitem__(self, rows: slice) -> np.ndarray:
        started = time.perf_counter()
        made = np.random.default_rng(rows.start).standard_normal((rows.stop - rows.start, DIMENSION), np.float32)
        self.seconds += time.perf_counter() - started
        return made


def measure(records: int) -> dict[str, float]:
    """Seconds of the votes, without those of making the vectors up, and the process's most memory."""
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((CANDIDATES, DIMENSION), np.float32)
    of = np.arange(CANDIDATES, dtype=np.int32) % LABELS
    vectors = MadeUp(records)
    labels = np.resize(np.arange(LABELS, dtype=np.int32), records)
    private = PrivateEmbeddings(vectors, labels, np.arange(records), CLASSES)  # type: ignore[arg-type]
    started = time.perf_counter()
    votes = InThisProcess().count_votes(private, candidates, of, 1, Voting())
    seconds = time.perf_counter() - started - vectors.seconds
    assert votes.sum() == records
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"records": records, "seconds": seconds, "made": vectors.seconds, "peak": peak}


def row(found: dict[str, float]) -> str:
    rate = found["records"] / found["seconds"]
    of_labels = 12 * found["records"] / 2**30
    return (
        f"| {found['records']:,} | {found['seconds']:.0f} | {rate:,.0f} | {found['peak']:.2f} | {of_labels:.2f} "
        f"| {found['made']:.0f} |"
    )


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
    head = "| records | voting, s | records a second | most memory, GB | labels and units, GB | making vectors up, s |"
    text = [
        f"# Up to {max(arguments.records):,} private records vote for {CANDIDATES:,} candidates",
        "",
        f"{where()}. 64 dimensions, {LABELS} labels, q = 1; one histogram's clean votes by a run's code, shards of "
        f"{AT_ONCE / 2**20:.0f} MB one after the other, in one process. Each record is compared with the "
        f"{CANDIDATES // LABELS:,} candidates of its label. `python benchmarks/stream.py`",
        "",
        head,
        "|" + "--:|" * head.count(" |"),
        *map(row, found),
        "",
        "The vectors that a process holds do not grow with the records; labels (4 bytes each) and units (8 bytes) do.",
    ]
    keep("stream.md", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
