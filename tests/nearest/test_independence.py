"""A record's vote depends on that record and the candidates alone, whatever blocks and threads;
that can fail.
"""

import faiss
import numpy as np
import pytest

from pe.nearest import decide, exact, nearest
from pe.nearest.by_faiss import FaissSearch
from tests.nearest.reference import Unkind, naive
from tests.nearest.test_nearest import METRICS, OF_ALL_KINDS, problem, rows


def flipped(search, queries, candidates, removed):
    """Votes of other records that change when records are removed, summed over the removals."""
    votes = search(queries, candidates)
    without = [
        (np.delete(queries, gone, axis=0), np.delete(votes, gone, axis=0)) for gone in removed
    ]
    return sum(
        int((search(stay, candidates) != theirs).any(axis=1).sum()) for stay, theirs in without
    )


@pytest.mark.parametrize("margin", [1, 0])
def test_it_is_the_margin_that_protects_them_whatever_the_rounding_depends_on(margin, monkeypatch):
    """Over a backend in which a record's rounding depends on how many stand before it, as far as
    the bound allows.
    """
    gamma = exact.gamma
    monkeypatch.setattr(exact, "gamma", lambda d, roundoff: margin * gamma(d, roundoff))
    removed = [
        *([i] for i in (0, 15, 16, 31, 200, 399)),
        np.arange(0, 400, 2),
        np.arange(16),
        np.arange(1, 400),
    ]

    def unkind(queries, candidates):
        return decide.Decider(candidates, 1, "l2", Unkind)(queries)

    assert (flipped(unkind, *rows("near copies", 0, 400, 50, 64), removed) == 0) == (margin == 1)


def test_order_blocks_and_threads_change_nothing(monkeypatch):
    queries, candidates = rows("near copies", 1, 100, 300, 784)
    votes = nearest(queries, candidates, 2)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_array_equal(nearest(queries[order], candidates, 2), votes[order])
    for places in (np.arange(7, 61), np.flatnonzero(order % 3), order[:0]):
        np.testing.assert_array_equal(nearest(queries, candidates, 2, places=places), votes[places])
    threads = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(1)
        monkeypatch.setattr(decide, "_ROWS", 33)
        monkeypatch.setattr(decide, "_OPEN", 5)
        monkeypatch.setattr(exact, "_BLOCK", 784 * 41)
        np.testing.assert_array_equal(nearest(queries, candidates, 2), votes)
    finally:
        faiss.omp_set_num_threads(threads)


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(decide, "_SHARE", 8)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    yield
    assert faiss.omp_get_max_threads() == 3
    faiss.omp_set_num_threads(before)


def searched(candidates, q=1, metric="l2"):
    return decide.Decider(candidates, q, metric, FaissSearch)


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize("metric", METRICS)
@OF_ALL_KINDS
def test_threads_that_share_the_queries_change_no_vote(kind, metric):
    queries, candidates = problem(kind, n=40)
    np.testing.assert_array_equal(
        searched(candidates, 2, metric)(queries), naive(queries, candidates, 2, metric)
    )
