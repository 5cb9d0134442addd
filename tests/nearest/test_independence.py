"""A record's vote depends on that record and the candidates alone; and the tests here can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest

from pe.nearest import decide, exact, nearest
from tests.nearest.unkind import Unkind

RECORDS = 400


def _near_copies(seed: int, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Records anywhere; candidates that differ by about 1e-5, less than float32 resolves from there."""
    rng = np.random.default_rng(seed)
    candidates = rng.standard_normal(d) + 1e-5 * rng.standard_normal((m, d))
    return rng.standard_normal((RECORDS, d)).astype(np.float32), candidates.astype(np.float32)


def _flipped(search: Callable, queries: np.ndarray, candidates: np.ndarray, removed: list[np.ndarray]) -> int:
    """Votes of other records that change when records are removed, summed over the removals."""
    votes = search(queries, candidates)
    return sum(
        int((search(np.delete(queries, gone, axis=0), candidates) != np.delete(votes, gone, axis=0)).any(axis=1).sum())
        for gone in removed
    )


def _unkind(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Over a backend in which a record's rounding depends on how many stand before it, as far as the bound allows."""
    return decide.Decider(candidates, 1, "l2", lambda placed: [Unkind(placed)])(queries)


# one record at either end, in the middle and at the edges of blocks; many; all but one
REMOVALS = [np.array([i]) for i in (0, 1, 15, 16, 17, 31, 200, 399)] + [
    np.arange(0, 400, 2),
    np.arange(16),
    np.arange(1, 400),
    np.delete(np.arange(400), 399),
]


@pytest.mark.parametrize(("m", "d"), [(1000, 512), (300, 784)])
def test_removing_records_leaves_all_other_votes_alone(m, d, monkeypatch):
    monkeypatch.setattr(decide, "_ROWS", 64)
    monkeypatch.setattr(exact, "_ROWS", 16)
    queries, candidates = _near_copies(0, m, d)
    assert _flipped(nearest, queries[:100], candidates, [np.array([i]) for i in (0, 15, 16, 63, 64, 99)]) == 0


def test_whatever_the_rounding_of_the_search_depends_on():
    assert _flipped(_unkind, *_near_copies(0, 50, 64), REMOVALS) == 0


def test_removing_records_flips_others_without_the_margin(monkeypatch):
    """It is the margin that protects them, not the rest of the search."""
    monkeypatch.setattr(exact, "gamma", lambda d, roundoff: 0.0)
    assert _flipped(_unkind, *_near_copies(0, 50, 64), REMOVALS) > 0


def test_order_blocks_and_threads_change_nothing(monkeypatch):
    queries, candidates = _near_copies(1, 300, 784)
    queries = queries[:100]
    votes = nearest(queries, candidates, 2)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_array_equal(nearest(queries[order], candidates, 2), votes[order])
    for places in (np.arange(7, 61), np.flatnonzero(order % 3), order[:0]):
        np.testing.assert_array_equal(nearest(queries, candidates, 2, places=places), votes[places])
    threads = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(1)
        monkeypatch.setattr(decide, "_ROWS", 33)
        monkeypatch.setattr(exact, "_ROWS", 5)
        monkeypatch.setattr(exact, "_BLOCK", 784 * 41)
        np.testing.assert_array_equal(nearest(queries, candidates, 2), votes)
    finally:
        faiss.omp_set_num_threads(threads)


def _in_memory() -> int:
    """Bytes of mapped files that this process holds."""
    return 1024 * int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells it nowhere else")
def test_queries_in_a_file_are_in_memory_only_while_their_block_is_read(tmp_path):
    table = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(2000, 4096))
    table[:] = np.random.default_rng(0).standard_normal(4096, dtype=np.float32)
    del table
    queries = np.load(tmp_path / "x.npy", mmap_mode="r")
    nearest(queries[:1], queries[:1].copy())  # loads the library
    before = _in_memory()
    nearest(queries, queries[:3].copy(), places=np.arange(0, 2000, 2))
    assert _in_memory() - before < queries.nbytes / 2
