"""The answer equals a brute-force search in float64, on whatever data."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe.errors import MissingDependency, RecipeError
from pe.nearest import decide, exact, nearest, search
from tests.nearest.reference import naive
from tests.nearest.unkind import Unkind

METRICS = ["l2", "cosine"]
BACKENDS = ["faiss", "torch"]


def _gaussian(rng, n, m, d):
    return rng.standard_normal((n, d)), rng.standard_normal((m, d))


def _near_copies(rng, n, m, d):
    return rng.standard_normal((n, d)), rng.standard_normal(d) + 1e-5 * rng.standard_normal((m, d))


def _offset(rng, n, m, d):
    return 1e3 + rng.standard_normal((n, d)), 1e3 + rng.standard_normal((m, d))


def _last_bit(rng, n, m, d):
    candidates = np.repeat(rng.standard_normal((1, d)), m, axis=0).astype(np.float32)
    flipped = rng.integers(d, size=m)
    candidates[np.arange(m), flipped] = np.nextafter(candidates[np.arange(m), flipped], np.float32(9))
    return rng.standard_normal((n, d)), candidates


def _pixels(rng, n, m, d):
    return rng.integers(0, 2, (n, d)), rng.integers(0, 2, (m, d))


def _huge(rng, n, m, d):
    return 1e30 * rng.standard_normal((n, d)), 1e30 * rng.standard_normal((m, d))


def _tiny(rng, n, m, d):
    return 1e-30 * rng.standard_normal((n, d)), 1e-30 * rng.standard_normal((m, d))


def _all_magnitudes(rng, n, m, d):
    def draw(k):
        return rng.standard_normal((k, d)) * 10.0 ** rng.integers(-38, 38, (k, 1))

    return draw(n), draw(m)


def _some_huge(rng, n, m, d):
    queries, candidates = _gaussian(rng, n, m, d)
    queries[::7] *= 1e32
    candidates[::5] *= 1e30
    return queries, candidates


def _duplicates(rng, n, m, d):
    candidates = rng.standard_normal((m, d))
    candidates[m // 3 :] = candidates[rng.integers(m // 3, size=m - m // 3)]
    return rng.standard_normal((n, d)), candidates


def _on_candidates(rng, n, m, d):
    candidates = rng.standard_normal((m, d))
    return candidates[rng.integers(m, size=n)] + 1e-7 * rng.standard_normal((n, d)), candidates


def _not_finite(rng, n, m, d):
    queries, candidates = _gaussian(rng, n, m, d)
    queries[1::5, 0], queries[2::5, -1], queries[3::5, 1] = np.nan, np.inf, -np.inf
    candidates[::4, 0], candidates[1::4, -1] = np.nan, np.inf
    return queries, candidates


def _zeros(rng, n, m, d):
    queries, candidates = _gaussian(rng, n, m, d)
    queries[::3], candidates[1::4], candidates[3::4, 0] = 0, 0, -0.0
    return queries, candidates


def _one_cone(rng, n, m, d):
    queries, candidates = _offset(rng, n, m, d)
    return queries * rng.uniform(0.1, 9, (n, 1)), candidates * rng.uniform(0.1, 9, (m, 1))


KINDS = [
    _gaussian, _near_copies, _offset, _last_bit, _pixels, _huge, _tiny, _all_magnitudes, _some_huge, _duplicates,
    _on_candidates, _not_finite, _zeros, _one_cone,
]  # fmt: skip


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
@pytest.mark.parametrize(("d", "q"), [(1, 1), (9, 3), (64, 1)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_naive_search(kind, metric, d, q, backend):
    queries, candidates = (a.astype(np.float32) for a in kind(np.random.default_rng(d), 12, 40, max(d, 2)))
    queries, candidates = queries[:, :d], candidates[:, :d]
    with np.errstate(all="raise", under="ignore"):
        answer = nearest(queries, candidates, q, metric=metric, backend=backend)
    assert answer.dtype == np.int64
    np.testing.assert_array_equal(answer, naive(queries, candidates, q, metric))


ENTRIES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.00001,
    0.99999,
    2.0,
    3.0,
    255.0,
    1e-5,
    1e-20,
    1e-45,
    1e19,
    1e30,
    -3e38,
    np.nan,
    np.inf,
]


@st.composite
def problems(draw):
    n, m, d = draw(st.integers(0, 6)), draw(st.integers(1, 40)), draw(st.integers(1, 9))
    entries = draw(st.lists(st.sampled_from(ENTRIES) | st.floats(width=32), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.choice(np.array(entries, np.float32), (n + m, d))
    return values[:n], values[n:], draw(st.integers(1, m)), draw(st.sampled_from(METRICS))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=150)
@given(problem=problems())
def test_equals_naive_search_on_any_floats(backend, problem):
    queries, candidates, q, metric = problem
    found = nearest(queries, candidates, q, metric=metric, backend=backend)
    np.testing.assert_array_equal(found, naive(queries, candidates, q, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_the_exact_pass_alone_equals_naive_search(kind, metric, monkeypatch):
    """All rows, in small blocks of candidates, as if float32 had decided none."""
    monkeypatch.setattr(exact, "_ROWS", 7)
    monkeypatch.setattr(exact, "_BLOCK", 16 * 8)
    monkeypatch.setattr(
        decide.Decider,
        "_decide",
        lambda self, search, queries, placed, radii, rows: (
            np.zeros((len(rows), self.q), np.int64),
            np.zeros(len(rows), bool),
        ),
    )
    queries, candidates = (a.astype(np.float32) for a in kind(np.random.default_rng(3), 20, 50, 8))
    np.testing.assert_array_equal(nearest(queries, candidates, 3, metric=metric), naive(queries, candidates, 3, metric))


def _unkindly(kind, metric, q=2):
    """Whether a search over the unkind backend equals the naive one."""
    queries, candidates = (a.astype(np.float32) for a in kind(np.random.default_rng(5), 25, 50, 12))
    queries, candidates = queries[np.isfinite(queries).all(axis=1)], candidates[np.isfinite(candidates).all(axis=1)]
    candidates = candidates[np.sort(np.unique(candidates, axis=0, return_index=True)[1])]
    answer = decide.Decider(candidates, q, metric, lambda placed: [Unkind(placed)])(queries)
    return np.array_equal(answer, naive(queries, candidates, q, metric))


@pytest.mark.parametrize("spare", [0, 3, 15])
@pytest.mark.parametrize("metric", METRICS)
def test_the_answer_does_not_depend_on_how_the_backend_errs(metric, spare, monkeypatch):
    monkeypatch.setattr(decide, "_SPARE", spare)
    assert all(_unkindly(kind, metric) for kind in KINDS)


@pytest.mark.parametrize("share", [0, 0.3])
def test_with_a_smaller_margin_it_does(share, monkeypatch):
    """The test above can fail: it refuses a bound of a third of what is proven, or none."""
    monkeypatch.setattr(exact, "gamma", lambda d, roundoff: share * d * roundoff)
    assert not all(_unkindly(kind, "l2") for kind in KINDS)


@pytest.mark.parametrize("metric", METRICS)
def test_large_problem_in_high_dimension_equals_float64_brute_force(metric):
    rng = np.random.default_rng(1)
    candidates = rng.standard_normal((600, 700)).astype(np.float32)
    queries = (candidates[:300] + 0.3 * rng.standard_normal((300, 700))).astype(np.float32)
    rows, columns = np.divmod(np.arange(300 * 600), 600)
    distances = exact.settle(queries, candidates, rows, columns, metric).reshape(300, 600)
    expected = np.argsort(distances, axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(nearest(queries, candidates, 2, metric=metric), expected)


def test_many_neighbours():
    queries, candidates = (a.astype(np.float32) for a in _pixels(np.random.default_rng(0), 5, 400, 12))
    for q in (85, 150, 400):
        np.testing.assert_array_equal(nearest(queries, candidates, q), naive(queries, candidates, q))


def test_where_nothing_is_certain_every_query_is_searched_exactly(monkeypatch):
    """As with more dimensions than the bound is proven for."""
    assert exact.gamma(2**22, exact.FLOAT32) == exact.gamma(2**22, exact.FLOAT64) == np.inf
    monkeypatch.setattr(exact, "gamma", lambda d, roundoff: np.inf)
    queries, candidates = (a.astype(np.float32) for a in _not_finite(np.random.default_rng(0), 20, 50, 6))
    for metric in METRICS:
        np.testing.assert_array_equal(
            nearest(queries, candidates, 2, metric=metric), naive(queries, candidates, 2, metric)
        )


def test_vectors_of_equal_keys_are_told_apart(monkeypatch):
    keys = search._keys
    monkeypatch.setattr(search, "_keys", lambda candidates: (keys(candidates)[0] % 2, keys(candidates)[1]))
    queries, candidates = (a.astype(np.float32) for a in _duplicates(np.random.default_rng(0), 20, 60, 3))
    np.testing.assert_array_equal(nearest(queries, candidates, 2), naive(queries, candidates, 2))


class TestEdges:
    def test_the_only_candidate_is_zero(self):
        queries = np.array([[0, 0], [1, 0], [np.nan, 1]], np.float32)
        for metric in METRICS:
            assert nearest(queries, np.zeros((2, 2), np.float32), metric=metric).tolist() == [[0], [0], [-1]]

    def test_a_query_that_is_not_finite_casts_no_vote(self):
        queries = np.array([[np.nan, 0], [0, np.inf], [1, 1]], np.float32)
        assert nearest(queries, np.eye(2, dtype=np.float32), 2).tolist() == [[-1, -1], [-1, -1], [0, 1]]

    def test_no_finite_candidate_no_votes(self):
        candidates = np.array([[np.nan, 0], [np.inf, 0]], np.float32)
        assert nearest(np.ones((3, 2), np.float32), candidates).tolist() == [[-1]] * 3

    def test_fewer_distinct_candidates_than_q_leave_no_vote(self):
        candidates = np.array([[0, 1], [-0.0, 1], [0, 1], [5, 5]], np.float32)
        assert nearest(np.zeros((1, 2), np.float32), candidates, 3).tolist() == [[0, 3, -1]]

    def test_ties_go_to_the_lowest_index(self):
        corners = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]], np.float32)
        assert nearest(np.zeros((1, 2), np.float32), corners, 4).tolist() == [[0, 1, 2, 3]]

    def test_a_zero_vector_is_at_a_right_angle_to_every_vector(self):
        candidates = np.array([[0, 0], [-1, 0.1], [1, 1]], np.float32)
        queries = np.array([[0, 0], [2, -1], [-1, -1]], np.float32)
        assert nearest(queries, candidates, 3, metric="cosine").tolist() == [[0, 1, 2], [2, 0, 1], [1, 0, 2]]

    def test_no_queries(self):
        assert nearest(np.empty((0, 4), np.float32), np.ones((3, 4), np.float32), 2).shape == (0, 2)

    def test_memory_mapped_and_strided_arrays(self, tmp_path):
        rng = np.random.default_rng(0)
        values = rng.standard_normal((40, 6)).astype(np.float32)
        np.save(tmp_path / "v.npy", values)
        mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
        expected = naive(values[::2, ::3], values[1::2, ::3], 2)
        np.testing.assert_array_equal(nearest(mapped[::2, ::3], mapped[1::2, ::3], 2), expected)

    def test_inputs_are_not_changed(self):
        rng = np.random.default_rng(0)
        queries, candidates = (rng.standard_normal((9, 4)).astype(np.float32) for _ in "ab")
        before = queries.copy(), candidates.copy()
        for metric in METRICS:
            nearest(queries, candidates, metric=metric)
        np.testing.assert_array_equal([queries, candidates], before)


class TestMistakes:
    good = np.ones((4, 3), np.float32)

    @pytest.mark.parametrize(
        ("queries", "candidates", "options", "says"),
        [
            (good.astype(np.float64), good, {}, "float32 queries, not float64"),
            (good, good.tolist(), {}, "float32 candidates, not list"),
            (good[0], good, {}, "queries as rows"),
            (good[:, :0], good[:, :0], {}, "d ≥ 1"),
            (good[:, :2], good, {}, "2 dimensions and candidates 3"),
            (good, good, {"q": 5}, "q = 5 neighbours of 4 candidates"),
            (good, good, {"q": 0}, "q = 0"),
            (good, good, {"q": 1.5}, "q = 1.5"),
            (good, good[:0], {}, "q = 1 neighbours of 0"),
            (good, good, {"metric": "cosin"}, "did you mean 'cosine'"),
            (good, good, {"backend": "fais"}, "did you mean 'faiss'"),
        ],
    )
    def test_end_in_one_sentence(self, queries, candidates, options, says):
        with pytest.raises(RecipeError, match=says) as caught:
            nearest(queries, candidates, **options)
        assert "\n" not in str(caught.value)

    def test_no_message_tells_how_many_records_there_are(self):
        with pytest.raises(RecipeError) as caught:
            nearest(np.ones((98765, 2), np.float32), self.good)
        assert "98765" not in str(caught.value)

    def test_a_missing_backend_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "faiss", None)
        with pytest.raises(MissingDependency, match=r"faiss, which is not installed: .*\[cpu\]'"):
            nearest(self.good, self.good, backend="faiss")
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingDependency, match=r"torch, which is not installed: .*\[embeddi"):
            nearest(self.good, self.good, backend="torch")
        with pytest.raises(MissingDependency, match=r"pip install .*\[cpu\]"):
            nearest(self.good, self.good)


def test_importing_loads_neither_faiss_nor_torch():
    code = "import sys, pe.nearest; sys.exit(bool({'faiss', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", [_gaussian, _last_bit, _pixels], ids=lambda kind: kind.__name__.strip("_"))
def test_memory_does_not_grow_with_the_number_of_pairs(kind):
    """3,000 × 3,000 pairs are 36 MB in float32; and in _last_bit and _pixels float32 decides nearly nothing."""
    queries, candidates = (a.astype(np.float32) for a in kind(np.random.default_rng(0), 6000, 3000, 8))
    peaks = []
    for n in (3000, 6000):
        tracemalloc.start()
        nearest(queries[:n], candidates)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3000 * 3000
