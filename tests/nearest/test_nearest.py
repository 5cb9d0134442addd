"""The answer equals a brute-force search in float64, on whatever data."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe.errors import MissingDependency, RecipeError
from pe.nearest import decide, exact, nearest
from tests.nearest.reference import Unkind, naive

METRICS = ["l2", "cosine"]
BACKENDS = ["faiss", "torch"]


KINDS = (
    *(
        "gaussian",
        "near copies",
        "offset",
        "one cone",
        "last bit",
        "pixels",
        "all magnitudes",
        "some huge",
    ),
    *("duplicates", "not finite", "zeros"),
)
OF_ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def rows(kind, seed, n, m, d):
    """Queries and candidates."""
    rng = np.random.default_rng(seed)
    x, c = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    if (
        kind == "near copies"
    ):  # candidates that differ by about 1e-5, less than float32 resolves from the queries
        c = c[:1] + 1e-5 * c
    elif kind == "offset":
        x, c = 1e3 + x, 1e3 + c
    elif kind == "one cone":
        x, c = (1e3 + x) * rng.uniform(0.1, 9, (n, 1)), (1e3 + c) * rng.uniform(0.1, 9, (m, 1))
    elif kind == "last bit":
        c, flipped = np.repeat(c[:1], m, axis=0).astype(np.float32), rng.integers(d, size=m)
        c[np.arange(m), flipped] = np.nextafter(c[np.arange(m), flipped], np.float32(9))
    elif kind == "pixels":
        x, c = x > 0, c > 0
    elif kind == "all magnitudes":
        x, c = (a * 10.0 ** rng.integers(-38, 38, (len(a), 1)) for a in (x, c))
    elif kind == "some huge":
        x[::7] *= 1e32
        c[::5] *= 1e30
    elif kind == "duplicates":
        c[m // 3 :] = c[rng.integers(m // 3, size=m - m // 3)]
    elif kind == "not finite":
        x[1::5, 0], x[2::5, -1], x[3::5, 1] = np.nan, np.inf, -np.inf
        c[::4, 0], c[1::4, -1] = np.nan, np.inf
    elif kind == "zeros":
        x[::3], c[1::4], c[3::4, 0] = 0, 0, -0.0
    return x.astype(np.float32), c.astype(np.float32)


def problem(kind, seed=5, n=25, m=60, d=12):
    """Queries and distinct candidates, all finite."""
    queries, candidates = rows(kind, seed, n, m, d)
    queries, candidates = (
        queries[np.isfinite(queries).all(axis=1)],
        candidates[np.isfinite(candidates).all(axis=1)],
    )
    return queries, candidates[np.sort(np.unique(candidates, axis=0, return_index=True)[1])]


def check(queries, candidates, q, metric="l2", **options):
    found = nearest(queries, candidates, q, metric=metric, **options)
    np.testing.assert_array_equal(found, naive(queries, candidates, q, metric))


@pytest.mark.parametrize("metric", METRICS)
@OF_ALL_KINDS
@pytest.mark.parametrize(("d", "q"), [(1, 1), (9, 3)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_naive_search(kind, metric, d, q, backend):
    queries, candidates = rows(kind, d, 12, 40, max(d, 2))
    with np.errstate(all="raise", under="ignore"):
        check(queries[:, :d], candidates[:, :d], q, metric, backend=backend)


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
]


@st.composite
def problems(draw):
    n, m, d = draw(st.integers(0, 6)), draw(st.integers(1, 40)), draw(st.integers(1, 9))
    any_of = st.sampled_from([*ENTRIES, np.nan, np.inf]) | st.floats(width=32)
    entries = draw(st.lists(any_of, min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.choice(np.array(entries, np.float32), (n + m, d))
    return values[:n], values[n:], draw(st.integers(1, m)), draw(st.sampled_from(METRICS))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=100)
@given(problem=problems())
def test_equals_naive_search_on_any_floats(backend, problem):
    check(*problem, backend=backend)


def unkindly(kind, metric):
    """Whether a search over the unkind backend equals the naive one."""
    queries, candidates = problem(kind, m=50)
    answer = decide.Decider(candidates, 2, metric, Unkind)(queries)
    return np.array_equal(answer, naive(queries, candidates, 2, metric))


@pytest.mark.parametrize("spare", [0, 3, 15])
@pytest.mark.parametrize("metric", METRICS)
def test_the_answer_does_not_depend_on_how_the_backend_errs(metric, spare, monkeypatch):
    monkeypatch.setattr(decide, "_SPARE", spare)
    assert all(unkindly(kind, metric) for kind in KINDS)


def test_where_nothing_is_certain_every_query_is_searched_exactly(monkeypatch):
    """As with more dimensions than the bound is proven for."""
    assert exact.gamma(2**22, exact.FLOAT32) == exact.gamma(2**22, exact.FLOAT64) == np.inf
    monkeypatch.setattr(exact, "gamma", lambda d, roundoff: np.inf)
    for metric in METRICS:
        check(*rows("not finite", 0, 20, 50, 6), 2, metric)


GOOD = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("queries", "candidates", "options", "says"),
    [
        (GOOD.astype(np.float64), GOOD, {}, "float32 queries, not float64"),
        (np.ones((98765, 2), np.float32), GOOD, {}, "2 dimensions and candidates 3"),
        (GOOD, GOOD, {"q": 5}, "5 neighbours are asked for, but there are 4 candidates"),
        (GOOD, GOOD, {"q": 1.5}, r"1\.5 neighbours"),
    ],
)
def test_mistakes_end_in_one_sentence(queries, candidates, options, says):
    with pytest.raises(RecipeError, match=says) as caught:
        nearest(queries, candidates, **options)
    assert "\n" not in str(caught.value)
    assert "98765" not in str(caught.value)  # how many records there are


def test_a_missing_backend_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependency, match=r"faiss, which is not installed: .*\[cpu\]'"):
        nearest(GOOD, GOOD, backend="faiss")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[cpu\]"):
        nearest(GOOD, GOOD)


@pytest.mark.parametrize("kind", ["gaussian", "pixels"])
def test_memory_does_not_grow_with_the_number_of_pairs(kind):
    """3,000 × 3,000 pairs are 36 MB in float32; and of pixels float32 decides nearly nothing."""
    queries, candidates = rows(kind, 0, 6000, 3000, 8)
    peaks = []
    for n in (3000, 6000):
        tracemalloc.start()
        nearest(queries[:n], candidates)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3000 * 3000
