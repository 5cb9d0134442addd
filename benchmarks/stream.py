"""Up to 10^8 private records vote for 10^4 candidates: time and memory of one histogram's clean votes.

    python benchmarks/stream.py [--records N …]

Vectors of 64 dimensions, 10 labels, q = 1; each record a privacy unit of its own, or each unit with 8 records that lie
far apart. The vectors are windows into one row of random numbers, so that no disk is measured. All else is what a run
does (`InThisProcess.count_votes`). Each row of the table is a process of its own, with one thread. Writes
results/stream.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, where

from pe.histogram import Voting
from pe.nearest import describe
from pe.privacy.noise import FINE
from pe.private.embeddings import PrivateEmbeddings
from pe.private_work import InThisProcess

DIMENSION, LABELS, CANDIDATES, TOGETHER = 64, 10, 10_000, 8
CLASSES = tuple(f"c{i}" for i in range(LABELS))


def clocks() -> np.ndarray:
    """Seconds of the wall clock and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(records: int, each: int) -> dict[str, Any]:
    """Seconds of the votes, on the clock and of the processor, and the process's most memory.

    Args:
        records: n.
        each: of how many records a unit has: those that are n / `each` apart.
    """
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((CANDIDATES, DIMENSION), np.float32)
    of = np.arange(CANDIDATES, dtype=np.int32) % LABELS
    numbers = rng.standard_normal(records + DIMENSION - 1, np.float32)
    vectors = np.lib.stride_tricks.sliding_window_view(numbers, DIMENSION)
    labels = np.resize(np.arange(LABELS, dtype=np.int32), records)
    units = np.resize(np.arange(records // each), records)
    private = PrivateEmbeddings(vectors, labels, units, CLASSES)
    grid = 1 if each == 1 else FINE
    started = clocks()
    votes = InThisProcess().count_votes(private, candidates, of, grid, Voting())
    seconds, of_processor = clocks() - started
    assert 0 < votes.sum() <= grid * records
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"records": records, "each": each, "seconds": seconds, "processor": of_processor, "peak": peak}
    return found | {"search": describe("auto")}


def row(found: dict[str, Any]) -> str:
    rate = found["records"] / found["processor"]
    given = 16 * found["records"] / 2**30
    return (
        f"| {found['records']:,} | {found['each']} | {found['seconds']:,.0f} | {found['processor']:,.0f} "
        f"| {rate:,.0f} | {found['peak']:.2f} | {given:.2f} |"
    )


def report(found: list[dict[str, Any]]) -> str:
    head = (
        "| records | records a unit | voting, s | of them the processor's | records a second of the processor "
        "| most memory, GB | labels, units and numbers, GB |"
    )
    lines = [
        f"# Up to {max(one['records'] for one in found):,} private records vote for {CANDIDATES:,} candidates",
        "",
        f"{where()}. One thread; the search is {found[0]['search']}. {DIMENSION} dimensions, {LABELS} labels, q = 1; "
        f"one histogram's clean votes by a run's code, in one process. Each record is compared with the "
        f"{CANDIDATES // LABELS:,} candidates of its label. Where a unit has {TOGETHER} records, they lie far "
        "apart. `python benchmarks/stream.py`",
        "",
        head,
        "|" + "--:|" * (head.count("|") - 1),
        *map(row, found),
        "",
        "The vectors that a process holds do not grow with the records; labels (4 bytes each), units (8 bytes) and the "
        "numbers that the vectors are windows into (4 bytes) do, and where units have several records, the number of "
        "each record's shard (up to 2 bytes).",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10**7, 10**8])
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one)))
        return
    found = []
    alone = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for records, each in product(arguments.records, (1, TOGETHER)):
        command = [sys.executable, str(Path(__file__).resolve()), "--one", str(records), str(each)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=alone).stdout
        found.append(json.loads(answer))
        print(answer, end="", flush=True)
    keep("stream.md", report(found))


if __name__ == "__main__":
    main()
