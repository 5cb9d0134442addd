"""Exact nearest neighbours beside a bare float32 matmul of the same size: python benchmarks/neighbors.py.

The matmul computes n×m×d multiply-adds in blocks and throws them away, so it bounds from below what any
exhaustive search on this machine can take. Runs alternate and the best of each counts; cosine runs once. Writes
benchmarks/results/neighbors.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from record import keep, where

from pe.nearest import nearest
from pe.nearest.margin import Vectors

SIZES = [  # n, m, d, runs
    (4_000, 400, 784, 9),
    (5_000, 5_000, 3_072, 5),
    (10_000, 10_000, 2_048, 3),
    (50_000, 50_000, 512, 2),
]
NEAR = (4_000, 4_000, 512, 3)


def matmul(queries: Vectors, candidates: Vectors, rows: int = 1024) -> None:
    product = np.empty((rows, len(candidates)), np.float32)
    for start in range(0, len(queries), rows):
        block = queries[start : start + rows]
        np.matmul(block, candidates.T, out=product[: len(block)])


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(queries: Vectors, candidates: Vectors, runs: int) -> str:
    """One row of the table: `runs` of the matmul and of the search, in turn, then one under cosine."""
    works: tuple[Callable[[], object], ...] = (
        lambda: matmul(queries, candidates),
        lambda: nearest(queries, candidates),
    )
    bare, l2 = np.min([[seconds(work) for work in works] for _ in range(runs)], axis=0)
    cosine = seconds(lambda: nearest(queries, candidates, metric="cosine"))
    (n, d), m = queries.shape, len(candidates)
    return (
        f"| {n:,} × {m:,} × {d:,} | {bare:.3f} | {2e-9 * n * m * d / bare:.0f} "
        f"| {l2:.3f} | {l2 / bare:.2f} | {cosine:.3f} | {cosine / bare:.2f} |"
    )


def main() -> None:
    rng = np.random.default_rng(0)
    head = (
        "| n × m × d | matmul s | GFLOP/s | l2 s | l2 / matmul | cosine s | cosine / matmul |\n"
        + "|---"
        + "|--:" * 6
        + "|"
    )
    lines = [
        "# Exact nearest neighbours beside a bare matmul",
        "",
        f"{where()}, faiss {version('faiss-cpu')}. "
        "q = 1; best of alternating runs, one run for cosine; made by `python benchmarks/neighbors.py`.",
        "",
        "Gaussian queries and candidates:",
        "",
        head,
    ]
    for n, m, d, runs in SIZES:
        queries, candidates = (rng.standard_normal((k, d), dtype=np.float32) for k in (n, m))
        lines.append(measure(queries, candidates, runs))
    n, m, d, runs = NEAR
    queries = rng.standard_normal((n, d), dtype=np.float32)
    close = (rng.standard_normal(d) + 1e-5 * rng.standard_normal((m, d))).astype(np.float32)
    last = [
        "",
        "Candidates that differ by 1e-5, where float32 decides nothing and every query is searched in float64:",
        "",
    ]
    lines += [*last, head, measure(queries, close, runs)]
    keep("neighbors.md", "\n".join(lines))


if __name__ == "__main__":
    main()
