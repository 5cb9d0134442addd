"""Threads of one core each share the queries: the same votes, and all libraries' threads are as they were."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pe.nearest import decide
from pe.nearest.cpu import FaissSearch, one_product_thread
from tests.nearest.reference import naive
from tests.nearest.test_gpu import problem
from tests.nearest.test_nearest import KINDS, METRICS


@pytest.fixture(autouse=True)
def three_cores(monkeypatch):
    monkeypatch.setattr(decide, "_SHARE", 8)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    yield
    assert faiss.omp_get_max_threads() == 3
    faiss.omp_set_num_threads(before)


def count_calls(monkeypatch):
    knn, calls = faiss.knn, []
    monkeypatch.setattr(
        faiss, "knn", lambda x, c, k: (calls.append((len(x), faiss.omp_get_max_threads())), knn(x, c, k))[1]
    )
    return calls


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_threads_that_share_the_queries_change_no_vote(kind, metric):
    queries, candidates = problem(kind, n=40)
    answer = decide.Decider(candidates, 2, metric, lambda placed: [FaissSearch(placed)])(queries)
    np.testing.assert_array_equal(answer, naive(queries, candidates, 2, metric))


@pytest.mark.parametrize(("queries", "calls"), [(40, [(13, 1), (13, 1), (14, 1)]), (23, [(23, 3)])])
def test_a_thread_takes_many_queries_or_none(queries, calls, monkeypatch):
    made = count_calls(monkeypatch)
    rows = np.random.default_rng(0).standard_normal((queries, 12)).astype(np.float32)
    found = decide.Decider(rows, 1, "l2", lambda placed: [FaissSearch(placed)])(rows)
    assert sorted(made) == calls
    np.testing.assert_array_equal(found[:, 0], np.arange(queries))


def product_threads() -> set[int]:
    """Threads that products of NumPy take from here on."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def in_use() -> set[int]:
    """Threads that faiss and products of NumPy take from here on."""
    return {faiss.omp_get_max_threads(), *product_threads()}


def test_who_shares_takes_one_core_and_all_are_given_back(monkeypatch):
    inside, outside, called = [], in_use(), FaissSearch.__call__
    monkeypatch.setattr(FaissSearch, "__call__", lambda self, x, k: (inside.extend(in_use()), called(self, x, k))[1])
    rows = np.random.default_rng(0).standard_normal((40, 12)).astype(np.float32)
    np.testing.assert_array_equal(
        decide.Decider(rows, 1, "l2", lambda placed: [FaissSearch(placed)])(rows)[:, 0], np.arange(40)
    )
    assert set(inside) == {1}
    assert in_use() == outside


def test_the_last_of_several_searches_lifts_the_limit():
    with threadpool_limits(2, user_api="blas"):
        with one_product_thread():
            with one_product_thread():
                assert product_threads() == {1}
            assert product_threads() == {1}
        assert product_threads() == {2}


def test_no_block_of_queries_is_small(monkeypatch):
    monkeypatch.setattr(decide, "_ROWS", 30)
    monkeypatch.setattr(decide, "_SHARE", 512)
    made = count_calls(monkeypatch)
    rows = np.random.default_rng(0).standard_normal((46, 12)).astype(np.float32)
    decide.Decider(rows, 1, "l2", lambda placed: [FaissSearch(placed)])(rows)
    assert made == [(23, 3), (23, 3)]
