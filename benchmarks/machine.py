"""What this machine can do at most: products, memory, hashing, disk.

    python benchmarks/machine.py

Seconds of the processor on one core, the least of several tries, so that other work disturbs little; for the disk
seconds of the clock. Memory that is set for the first time is tried once. Writes results/machine.md.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable

import numpy as np
from record import keep, where
from threadpoolctl import threadpool_limits

SIDE = 4096  # of the matrices
NUMBERS = 2**27  # of the arrays: half a gigabyte


def seconds(work: Callable[[], object], tries: int = 5, clock: Callable[[], float] = time.process_time) -> float:
    """The least of so many tries."""
    found = []
    for _ in range(tries):
        started = clock()
        work()
        found.append(clock() - started)
    return min(found)


def written(data: np.ndarray) -> None:
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.write(data.data)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    left = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    product, array = np.empty_like(left), np.empty(NUMBERS, np.float32)
    gigabytes = array.nbytes / 1e9
    first = seconds(lambda: array.fill(1), 1)
    other = np.zeros_like(array)
    other.fill(0)
    with threadpool_limits(1):
        took = seconds(lambda: np.matmul(left, left, out=product))
    rows = [("product of float32 matrices", f"{2e-9 * SIDE**3 / took:.0f} GFLOP/s")]
    rows += [
        (name, f"{gigabytes / took:.1f} GB/s")
        for name, took in (
            ("memory copied", seconds(lambda: np.copyto(other, array))),
            ("memory set for the first time", first),
            ("memory set again", seconds(lambda: array.fill(1))),
            ("SHA-256", seconds(lambda: hashlib.sha256(array.data), 2)),
            ("CRC-32, as .npz files have it", seconds(lambda: zlib.crc32(array.data), 2)),
            ("a file written and synced", seconds(lambda: written(array), 1, time.perf_counter)),
        )
    ]
    lines = [f"| {name} | {value} |" for name, value in rows]
    head = ["# What this machine can do at most", "", f"{where()}. `python benchmarks/machine.py`", ""]
    keep("machine.md", "\n".join([*head, "| work, on one core | at most |", "| --- | ---: |", *lines]))


if __name__ == "__main__":
    main()
