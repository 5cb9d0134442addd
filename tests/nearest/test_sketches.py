"""Sketches only save work: they bound distances from below, and a search by them gives the same votes."""

from __future__ import annotations

import numpy as np
import pytest

from pe.nearest import decide, faiss_backend, margin, nearest, sieve, sketch
from pe.nearest.faiss_backend import FaissSearch
from pe.nearest.sieve import SieveSearch
from pe.nearest.sketch import Sketch, fit_sketch
from tests.nearest.reference import naive
from tests.nearest.sketched import by_sketches, random_axes
from tests.nearest.test_independence import REMOVALS, _flipped
from tests.nearest.test_independence import _near_copies as near_copies
from tests.nearest.test_nearest import KINDS, METRICS
from tests.nearest.test_torch_backend import problem


def squared(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.square(x.astype(np.float64)[:, None] - c.astype(np.float64)).sum(axis=2)


def low_rank(n: int, d: int, rank: int, noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    axes = np.random.default_rng(99).standard_normal((rank, d))
    return (rng.standard_normal((n, rank)) @ axes + noise * rng.standard_normal((n, d))).astype(np.float32)


@pytest.fixture(autouse=True)
def never_given_up(monkeypatch):
    monkeypatch.setattr(sieve, "GIVE_UP", 1.0)
    monkeypatch.setattr(sieve, "_COLUMNS", 16)


@pytest.mark.parametrize(("d", "r"), [(2, 1), (12, 4), (300, 128), (2048, 64)])
def test_sketches_are_no_farther_apart_than_their_vectors(d, r):
    """Up to the proven error: for vectors anywhere, along the axes, at right angles to them, and nearly equal ones."""
    axes = random_axes(d, r)
    rng = np.random.default_rng(1)
    anywhere = rng.standard_normal((5, d))
    along = rng.standard_normal((5, r)) @ axes.T
    across = anywhere - anywhere @ axes @ axes.T
    rows = np.concatenate([anywhere, along, across, 1e3 * anywhere, anywhere + 1e-6, along + 1e-3 * across])
    rows = rows.astype(np.float32)
    sketches = Sketch(axes)(rows)
    reach = np.add.outer(*[np.linalg.norm(rows.astype(np.float64), axis=1)] * 2) ** 2
    excess = (squared(sketches, sketches) - squared(rows, rows)) / reach
    assert excess.max() <= Sketch(axes).arithmetic.slack(d)
    assert Sketch(axes).arithmetic.slack(d) < 1e-3  # and that error is small


class Unkind:
    """Distances alone, and products of sketches, as inexact as their bounds allow."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def pairwise(self, queries, candidates, rows, columns):
        x, c = queries[rows].astype(np.float64), candidates[columns].astype(np.float64)
        reach = np.linalg.norm(x, axis=1) + np.linalg.norm(c, axis=1)
        share = 0.99 * (x.shape[1] + 3) * margin.FLOAT32 * reach**2
        return np.maximum(np.square(x - c).sum(axis=1) + share * self.sign(share), 0).astype(np.float32)

    def products(self, candidates, queries, out):
        c, x = candidates.astype(np.float64), queries.astype(np.float64)
        reach = np.add.outer(np.linalg.norm(c[:, :-1], axis=1), np.linalg.norm(x[:-1], axis=0))
        share = 0.49 * (len(x) + 2) * margin.FLOAT32 * reach**2
        out[:] = c @ x + share * self.sign(share)
        return out

    def sign(self, like):
        return self.rng.choice([-1, 1], like.shape)


def unkindly(kind, metric, monkeypatch, q=2):
    """Whether an unkind search by sketches equals the naive one."""
    queries, candidates = problem(kind)
    unkind = Unkind()
    monkeypatch.setattr(sieve, "_products", unkind.products)
    answer = decide.Decider(candidates, q, metric, by_sketches(q, unkind.pairwise))(queries)
    return np.array_equal(answer, naive(queries, candidates, q, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_the_answer_does_not_depend_on_how_products_and_distances_err(kind, metric, monkeypatch):
    assert unkindly(kind, metric, monkeypatch)


def test_with_a_smaller_margin_it_does(monkeypatch):
    monkeypatch.setattr(margin, "gamma", lambda d, roundoff: 0.3 * d * roundoff)
    assert not all(unkindly(kind, "l2", monkeypatch) for kind in KINDS)


@pytest.mark.parametrize("broken", ["axes too long", "what is left added, not subtracted", "one bound for all"])
def test_a_bound_that_is_none_gives_wrong_votes(broken, monkeypatch):
    """The tests here can fail: each of these prunes candidates that are nearest."""
    whole = Sketch.__call__

    def called(self, vectors):
        sketches = whole(self, vectors)
        if broken == "axes too long":
            sketches[:, :-1] *= 1.3
        elif broken == "what is left added, not subtracted":
            sketches[:, -1] *= np.where(np.arange(len(sketches)) % 2, 1, -1)
        else:
            sketches[:, -1] = np.arange(len(sketches)) % 7
        return sketches

    queries, candidates = problem(KINDS[0], n=60, m=200)

    def right():
        answer = decide.Decider(candidates, 1, "l2", by_sketches(1))(queries)
        return np.array_equal(answer, naive(queries, candidates, 1))

    assert right()
    monkeypatch.setattr(Sketch, "__call__", called)
    assert not right()


def test_removing_records_leaves_all_other_votes_alone():
    queries, candidates = near_copies(0, 300, 784)

    def search(queries, candidates):
        return decide.Decider(candidates, 1, "l2", by_sketches(1))(queries)

    assert _flipped(search, queries[:60], candidates, [np.array([i]) for i in (0, 31, 59)]) == 0
    queries, candidates = low_rank(400, 32, 4, 0.01), low_rank(300, 32, 4, 0.01, seed=1)
    assert _flipped(search, queries, candidates, REMOVALS) == 0


def test_a_query_with_too_many_left_goes_to_the_next_search(monkeypatch):
    """Of candidates about a plane, seen from far at a right angle to it, no coordinates in it tell which is nearest."""
    monkeypatch.setattr(sieve, "GIVE_UP", 0.2)
    candidates = low_rank(300, 24, 2, 0.3)
    axes = np.linalg.qr(np.random.default_rng(99).standard_normal((2, 24)).T)[0]
    away = np.random.default_rng(0).standard_normal((10, 24))
    away -= away @ axes @ axes.T
    queries = np.concatenate([candidates[:40] + np.float32(1e-4), 1e2 * away]).astype(np.float32)
    called, asked = FaissSearch.__call__, []
    monkeypatch.setattr(FaissSearch, "__call__", lambda self, x, k: (asked.append(len(x)), called(self, x, k))[1])
    answer = decide.Decider(
        candidates,
        1,
        "l2",
        lambda placed: [SieveSearch(placed, Sketch(axes), 1, faiss_backend.pairwise), FaissSearch(placed)],
    )(queries)
    np.testing.assert_array_equal(answer, naive(queries, candidates, 1))
    assert asked == [10]


class TestFit:
    @pytest.fixture(autouse=True)
    def worth_a_try(self, monkeypatch):
        monkeypatch.setattr(sketch, "_LEAST", 0)

    def test_rows_near_few_axes_get_a_sketch(self):
        fitted = fit_sketch(low_rank(1500, 400, 20, 0.02), 1)
        assert fitted is not None
        assert fitted.axes.shape == (400, 32)
        np.testing.assert_allclose(fitted.axes.T @ fitted.axes, np.eye(32), atol=margin.NOT_SQUARE)

    @pytest.mark.parametrize("q", [1, 200])
    def test_rows_all_over_the_place_or_too_many_neighbours_get_none(self, q):
        rows = low_rank(1500, 400, 20, 0.02) if q > 1 else np.random.default_rng(0).standard_normal((1500, 400))
        assert fit_sketch(rows.astype(np.float32), q) is None

    def test_rows_all_over_the_place_are_refused_before_axes_are_fitted(self, monkeypatch):
        monkeypatch.setattr(sketch, "_principal_axes", lambda *_: pytest.fail("axes were fitted"))
        noise = np.random.default_rng(0).standard_normal((1500, 400)).astype(np.float32)
        for length in (1, 1e-12, 1e4):
            assert fit_sketch(np.float32(length) * noise, 1) is None

    def test_few_or_narrow_rows_get_none(self, monkeypatch):
        assert fit_sketch(low_rank(1500, 64, 4, 0.01), 1) is None
        monkeypatch.undo()
        assert fit_sketch(low_rank(1500, 400, 20, 0.02), 1) is None

    @pytest.mark.parametrize("rows", [np.zeros((1500, 400)), np.full((1500, 400), 1e17), np.eye(1500, 400)])
    def test_degenerate_rows_do_not_break_it(self, rows):
        fit_sketch(rows.astype(np.float32), 1)

    def test_it_is_what_searches_and_changes_no_vote(self, monkeypatch):
        candidates, queries = low_rank(1500, 400, 20, 0.02), low_rank(200, 400, 20, 0.02, seed=1)
        called, used = SieveSearch.__call__, []
        monkeypatch.setattr(SieveSearch, "__call__", lambda self, x, k: (used.append(len(x)), called(self, x, k))[1])
        found = nearest(queries, candidates, 2, backend="faiss")
        assert used == [200]
        monkeypatch.setattr(faiss_backend, "fit_sketch", lambda *_: None)
        np.testing.assert_array_equal(found, nearest(queries, candidates, 2, backend="faiss"))
        assert used == [200]
