"""Bytes only save work: they bound distances from below, and a search by them gives the same votes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from pe.nearest import byte_search, decide, faiss_backend, margin, nearest, rounding, sketch
from pe.nearest.byte_search import ByteSearch
from pe.nearest.faiss_backend import FaissSearch, faiss_searches
from pe.nearest.rounding import LARGEST, Rounding, fit_rounding, has_products, margins, multiply
from pe.nearest.sieve import SieveSearch
from pe.nearest.threads import Threads
from tests.nearest.reference import naive
from tests.nearest.sketched import by_bytes, random_axes, small_blocks
from tests.nearest.test_independence import REMOVALS, _flipped
from tests.nearest.test_independence import _near_copies as near_copies
from tests.nearest.test_nearest import KINDS, METRICS
from tests.nearest.test_sketches import Unkind, low_rank, squared
from tests.nearest.test_torch_backend import problem


@pytest.fixture(autouse=True)
def in_small_blocks(monkeypatch):
    small_blocks(monkeypatch)


def whole_squares(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.square(x.astype(np.int64)[:, None] - c.astype(np.int64)).sum(axis=2)


@pytest.mark.parametrize("d", [1, 2, 12, 300])
def test_bounds_from_bytes_do_not_exceed_the_distances(d):
    """For vectors anywhere, rounded as badly as can be, cut, tiny and nearly equal."""
    rng = np.random.default_rng(1)
    anywhere = rng.standard_normal((8, d))
    fine = Rounding.of(anywhere[:4].astype(np.float32))
    halves = fine.scale * np.outer(np.arange(-4, 4) + 0.4999 * np.resize([1, -1], 8), np.ones(d))
    rows = np.concatenate([anywhere, halves, 1e3 * anywhere, 1e-6 * anywhere, anywhere + 1e-7]).astype(np.float32)
    given = fine(rows)
    between = fine.scale**2 * whole_squares(given.whole, given.whole)
    e, excess, true = given.apart, given.excess, squared(rows, rows)
    lengths = np.sqrt(given.norms**2 - excess)
    apart = np.add.outer(e, e)
    lost = np.add.outer(excess, excess) + 2 * (np.outer(lengths, e) + np.outer(e, given.norms))
    reach = np.add.outer(*[np.linalg.norm(rows.astype(np.float64), axis=1)] * 2) ** 2
    assert (margin.rounded(between, apart, lost) <= true + 2.0**-40 * reach).all()
    for less in ((0.99 * apart, lost), (apart, lost - 0.01 * np.abs(lost))):
        assert (margin.rounded(between, *less) > true + 2.0**-40 * reach).any()  # no smaller margin would do
    at_most = [np.tile(one, (len(rows), 1)).T for one in margins(given, given)]
    assert (at_most[0] >= apart).all()
    assert (at_most[1] >= lost).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_the_answer_does_not_depend_on_how_distances_err(kind, metric):
    queries, candidates = problem(kind)
    answer = decide.Decider(candidates, 2, metric, by_bytes(2, Unkind().pairwise))(queries)
    np.testing.assert_array_equal(answer, naive(queries, candidates, 2, metric))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_the_answer_does_not_depend_on_how_numbers_are_rounded(kind, monkeypatch):
    """Not to the nearest whole number, but to either of the two beside it."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(np, "rint", lambda values: np.floor(values + rng.random(values.shape, np.float32)))
    queries, candidates = problem(kind)
    np.testing.assert_array_equal(
        decide.Decider(candidates, 2, "l2", by_bytes(2))(queries), naive(queries, candidates, 2)
    )


BROKEN = {
    "none": lambda e, f, lost: (0 * e, lost - lost),
    "half": lambda e, f, lost: ((e + f) / 2, lost / 2),
    "of queries alone": lambda e, f, lost: (e, lost),
    "of candidates alone": lambda e, f, lost: (0 * e + f, lost),
    "none for the products": lambda e, f, lost: (e + f, lost - lost),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_margin_that_is_too_small_gives_wrong_votes(broken, monkeypatch):
    """The tests here can fail: each of these leaves out candidates that are nearest."""
    rng = np.random.default_rng(0)
    # on one line, where all that rounding loses adds up; two far ones make it coarse
    candidates, queries = (np.outer(rng.uniform(-0.05, 0.05, n), np.ones(6)).astype(np.float32) for n in (200, 60))
    candidates[:2] = [[4] * 6, [-4] * 6]

    def right():
        answer = decide.Decider(candidates, 1, "l2", by_bytes(1))(queries)
        return np.array_equal(answer, naive(queries, candidates, 1))

    assert right()
    margin_of = BROKEN[broken]
    monkeypatch.setattr(byte_search, "margins", lambda x, c: margin_of(x.apart, c.apart.max(), margins(x, c)[1]))
    assert not right()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_whoever_is_left_out_is_as_far_as_the_search_says(kind):
    queries, candidates = problem(kind, n=40, m=100)
    frame = decide.Frame.around(candidates, "l2")
    placed, radii = (each[:2] for each in zip(frame.place(queries), frame.place(candidates), strict=True))
    (x, c) = (one[radius < 2.0**58] for one, radius in zip(placed, radii, strict=True))
    found = by_bytes(2)(c)[0](x, 17)
    true = squared(x, c)
    true[
        np.arange(len(x))[:, None], np.where(np.isfinite(found.distances), found.positions, found.positions[:, :1])
    ] = np.inf
    assert (found.last <= true.min(axis=1) * (1 + 1e-5)).all()


def test_removing_records_leaves_all_other_votes_alone(monkeypatch):
    def search(queries, candidates):
        return decide.Decider(candidates, 1, "l2", by_bytes(1, threads=Threads(lambda: 2)))(queries)

    queries, candidates = near_copies(0, 300, 784)
    assert _flipped(search, queries[:60], candidates, [np.array([i]) for i in (0, 31, 59)]) == 0
    monkeypatch.setattr(decide, "_SHARE", 64)
    rng = np.random.default_rng(0)
    queries, candidates = (rng.standard_normal((n, 8)).astype(np.float32) for n in (400, 60))
    assert _flipped(search, queries, candidates, REMOVALS) == 0


def test_a_query_with_too_many_left_goes_to_the_next_search(monkeypatch):
    """Of candidates in a ball, seen from far, bytes that stand for the ball do not tell which is nearest."""
    monkeypatch.setattr(byte_search, "GIVE_UP", 0.2)
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((300, 8)).astype(np.float32)
    queries = np.concatenate([candidates[:40] + np.float32(1e-4), 1e3 * rng.standard_normal((10, 8))])
    queries = queries.astype(np.float32)
    called, asked = FaissSearch.__call__, []
    monkeypatch.setattr(FaissSearch, "__call__", lambda self, x, k: (asked.append(len(x)), called(self, x, k))[1])
    answer = decide.Decider(candidates, 1, "l2", lambda c: [*by_bytes(1)(c), FaissSearch(c)])(queries)
    np.testing.assert_array_equal(answer, naive(queries, candidates, 1))
    assert asked == [10]


@pytest.mark.skipif(not has_products(), reason="this processor has no fast products of bytes")
@pytest.mark.parametrize("shape", [(1, 3, 5), (7, 64, 76), (512, 4096, 68), (100, 96, 2356)])
def test_products_of_bytes_are_exact(shape):
    rng = np.random.default_rng(0)
    n, m, d = shape
    x, c = (rng.choice([-LARGEST, LARGEST, 1], (rows, d), p=[0.1, 0.8, 0.1]).astype(np.int8) for rows in (n, m))
    given = multiply(torch.from_numpy(x), torch.from_numpy(c))
    np.testing.assert_array_equal(given.numpy(), (x.astype(np.float64) @ c.T.astype(np.float64)).astype(np.int32))


class TestRule:
    rows = np.random.default_rng(0).standard_normal((3000, 64)).astype(np.float32)

    @pytest.fixture(autouse=True)
    def worth_a_try(self, monkeypatch):
        monkeypatch.setattr(rounding, "_LEAST", 0)
        monkeypatch.setattr(rounding, "has_products", lambda: True)

    def test_rows_apart_are_rounded(self):
        fitted = fit_rounding(self.rows, 1)
        assert fitted is not None
        assert fitted == Rounding.of(self.rows)
        assert [type(one) for one in faiss_searches(self.rows)] == [ByteSearch, FaissSearch]

    def test_rows_near_few_axes_get_a_sketch_and_no_bytes(self, monkeypatch):
        monkeypatch.setattr(sketch, "_LEAST", 0)
        kinds = [type(one) for one in faiss_searches(low_rank(1500, 400, 20, 0.02))]
        assert kinds == [SieveSearch, FaissSearch]

    @pytest.mark.parametrize(("cost", "taken"), [(0.3, SieveSearch), (0.7, ByteSearch)])
    def test_where_both_promise_to_save_work_the_cheaper_searches(self, cost, taken, monkeypatch):
        fitted = sketch.Sketch(random_axes(64, 16), cost)
        monkeypatch.setattr(faiss_backend, "fit_sketch", lambda *_: fitted)
        assert [type(one) for one in faiss_searches(self.rows)] == [taken, FaissSearch]

    def test_few_rows_too_many_neighbours_or_dimensions_are_not(self, monkeypatch):
        assert fit_rounding(self.rows, 200) is None
        monkeypatch.setattr(rounding, "_WIDEST", 63)
        assert fit_rounding(self.rows, 1) is None
        monkeypatch.undo()
        assert fit_rounding(self.rows, 1) is None

    def test_where_torch_has_yet_to_be_loaded_there_must_be_more_of_them(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "torch")
        assert fit_rounding(self.rows, 1) is None
        assert "torch" not in sys.modules

    @pytest.mark.parametrize("far", [1e5, 1e12])
    def test_rows_that_bytes_cannot_tell_apart_are_not(self, far):
        rows = self.rows.copy()
        rows[0] *= far
        assert fit_rounding(rows, 1) is None

    @pytest.mark.parametrize("rows", [np.zeros((1500, 40)), np.full((1500, 40), 1e17), np.eye(1500, 40)])
    def test_degenerate_rows_do_not_break_it(self, rows):
        fit_rounding(rows.astype(np.float32), 1)

    @pytest.mark.parametrize("lacking", ["instructions", "list of them", "torch", "exact products", "nothing"])
    def test_where_the_machine_lacks_something_the_next_search_gives_the_same_votes(
        self, lacking, monkeypatch, tmp_path
    ):
        monkeypatch.setattr(rounding, "has_products", has_products)
        listed = tmp_path / "cpuinfo"
        monkeypatch.setattr(rounding, "_CPUINFO", listed)
        if lacking != "list of them":
            listed.write_text("flags: sse2" if lacking == "instructions" else "flags: sse2 avx512_vnni avx512bw")
        if lacking == "torch":
            monkeypatch.setattr(rounding, "find_spec", lambda _name: None)
        wrong = int(lacking == "exact products")
        monkeypatch.setattr(rounding, "multiply", lambda x, c: (x.long() @ c.T.long()) - wrong)
        called, used = ByteSearch.__call__, []
        monkeypatch.setattr(ByteSearch, "__call__", lambda self, x, k: (used.append(len(x)), called(self, x, k))[1])
        votes = nearest(self.rows[::-1][:50], self.rows, 2, backend="faiss")
        assert used == ([50] if lacking == "nothing" else [])
        monkeypatch.setattr(faiss_backend, "fit_rounding", lambda *_: None)
        np.testing.assert_array_equal(votes, nearest(self.rows[::-1][:50], self.rows, 2, backend="faiss"))
