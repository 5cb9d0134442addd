"""From a search in float32 to the exact answer.

Near-ties are settled, and queries that stay open are searched in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from pe.data.arrays import BoolArray, Float32Array, Float64Array, FloatArray, Int64Array
from pe.data.samples import slices
from pe.errors import RecipeError
from pe.nearest import exact
from pe.nearest.exact import FLOAT32, Metric, Vectors

_SAMPLE = 256  # candidates that the frame is taken from
_CHUNK = 2**16  # elements placed at a time: they stay in the cache
_SPARE = 15  # candidates retrieved beyond q: near-ties up to this many cost no second search
_ROWS = 4096  # queries searched together
_OPEN = 512  # queries that are compared with all candidates together, in float64
_SHARE = 512  # queries for each core from which threads share them
_BLOCK = 2**23  # most elements of a block of queries
_FAR = 2.0**58  # a radius in the frame from which a squared distance could overflow float32

Read = Callable[[Int64Array], Vectors]
"""A function: ascending positions ↦ the queries at these positions."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The frame of float32 arithmetic: x ↦ (x − centre)·scale, after normalising under cosine.

    No answer depends on the frame; it decides only how often float32 suffices.
    """

    metric: Metric
    centre: Float64Array  # (d,)
    scale: float  # a power of two, at most 2⁶⁴

    @classmethod
    def around(cls, candidates: Vectors, metric: Metric) -> Frame:
        """Return the frame whose centre is the median of some 256 candidates.

        Their median distance to it is about 1 in the frame. Medians, rather than means, keep a few
        enormous candidates from costing all others their precision.
        """
        sample = exact.lift(candidates[:: -(-len(candidates) // _SAMPLE)], metric)
        centre = np.median(sample, axis=0)
        norms = np.sqrt(np.square(sample - centre).sum(axis=1))
        norms = norms[norms > 0]
        scale = (
            2.0 ** float(np.clip(-np.round(np.log2(np.median(norms))), -126, 64))
            if norms.size
            else 1.0
        )
        return cls(metric, centre, scale)

    def place(self, vectors: Vectors) -> tuple[Vectors, Float64Array]:
        """Return the rows in the frame, float32, and their radii (bounds on the norms).

        A radius is infinite where float32 overflows.
        """
        rows = np.empty(vectors.shape, np.float32)
        step = max(1, _CHUNK // vectors.shape[1])
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for part in slices(len(vectors), step):
                rows[part] = (exact.lift(vectors[part], self.metric) - self.centre) * self.scale
            return rows, exact.radius(rows, FLOAT32)


class Neighbours(NamedTuple):
    """The answer of a search for n queries."""

    # computed squared distances of k distinct candidates per query, n×k, in any order
    distances: Float32Array
    positions: Int64Array  # the indices of those candidates, n×k
    # a lower bound, for each query, on the computed squared distances to candidates not returned, n
    last: FloatArray


@dataclass(frozen=True)
class Threads:
    """The number of threads, `count()` ≥ 1, that share the queries of a search, each on one core.

    `one_core()` is a context to enter while several threads search. It yields the function that
    each calls first.
    """

    count: Callable[[], int]
    one_core: Callable[[], AbstractContextManager[Callable[[], object]]]


ALONE = Threads(lambda: 1, lambda: nullcontext(lambda: None))
"""One thread: for a search that spreads over the cores by itself, or runs on a GPU."""


class Search(Protocol):
    """A backend's search over m candidates in float32. Its sums are in any order, fused or not.

    pe/nearest/exact.py bounds the error of its distances.
    """

    threads: Threads  # the threads that may search at once

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """Return the k ≤ m candidates that seem nearest to each query."""


class SharedSearch:
    """One search on several devices, each with a copy of the candidates and a share of the queries.

    `around()` is a context that is entered while the devices search.
    """

    threads = ALONE  # it begins one for each device

    def __init__(
        self,
        searches: Sequence[Search],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._searches = searches
        self._around = around

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """Return the k candidates nearest to each query by computed squared distance."""
        shares = np.array_split(queries, min(len(queries), len(self._searches)))
        with self._around(), ThreadPoolExecutor(len(shares)) as pool:
            parts = list(pool.map(lambda search, share: search(share, k), self._searches, shares))
        return Neighbours(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@contextmanager
def failure_in_a_sentence(
    library: str,
    shape: tuple[int, ...],
    place: str,
) -> Iterator[None]:
    """Turn a device's error into a RecipeError.

    The library's own words may tell how many queries there are.
    """
    try:
        yield
    except RuntimeError as error:
        if "no kernel image" in str(error):
            why = "it is built for other GPUs"
            remedy = f"install a build of {library} for this one"
        else:
            why = f"{type(error).__name__}, as a rule for want of memory"
            remedy = "lower evolution.population"
        raise RecipeError(
            f"The neighbour search by {library} among {shape[0]:,} candidates of {shape[1]:,} "
            f"dimensions failed on {place} ({why}): {remedy}, or hide the GPUs by "
            "CUDA_VISIBLE_DEVICES= to search on the CPU."
        ) from error


class Decider:
    """Decides the exact q nearest of m ≥ q candidates, which are finite and distinct.

    Candidates too far out for float32 (radius in the frame ≥ 2⁵⁸) are not searched: an answer
    counts only if they are provably farther. Under cosine the zero vector is not searched either,
    because its distance to every vector is known.
    """

    def __init__(
        self,
        candidates: Vectors,
        q: int,
        metric: Metric,
        backend: Callable[[Vectors], Search],
    ) -> None:
        self.candidates = candidates
        self.q = q
        self.metric = metric
        self.frame = Frame.around(candidates, metric)
        rows, radii = self.frame.place(candidates)
        zero = exact.has_no_direction(candidates, metric)
        near = (radii < _FAR) & ~zero
        self.zero = np.flatnonzero(zero)  # at most one: candidates are distinct
        self.reachable = np.flatnonzero(near)
        self.radii = radii[near]
        self.search = backend(rows if near.all() else rows[near])

    def __call__(
        self,
        queries: Vectors,
        places: Int64Array | None = None,
    ) -> Int64Array:
        """Return the q nearest candidates of each query, or of each at `places`, n×q.

        Queries that are not finite have −1.
        """
        read = partial(_read, queries, places)
        rows = np.arange(len(queries) if places is None else len(places))
        answer = np.full((len(rows), self.q), -1, np.int64)
        step = max(1, min(_ROWS, _BLOCK // max(queries.shape[1], 8 * (self.q + _SPARE))))
        if len(self.reachable):  # all blocks first: few rows take as long as many
            rows = self._search(read, answer, rows, step)
        for part in slices(len(rows), min(step, _OPEN)):
            at = rows[part]
            block = read(at)
            zero = exact.has_no_direction(block, self.metric)
            finite = np.isfinite(block).all(axis=1)
            answer[at[zero]] = np.arange(self.q)  # at right angles to all candidates: all tie
            rest = finite & ~zero
            answer[at[rest]] = exact.exact_nearest(
                block[rest],
                self.candidates,
                self.q,
                self.metric,
                self.frame.centre,
            )
        return answer

    def _search(
        self,
        read: Read,
        answer: Int64Array,
        rows: Int64Array,
        step: int,
    ) -> Int64Array:
        """Write the answers that the search decides, and return the rows that it leaves open."""
        threads = self.search.threads.count()
        if len(rows) < threads * _SHARE:
            threads = 1
        each = -(
            -len(rows) // (threads * max(min(step, _SHARE), step // threads))
        )  # blocks of a thread
        blocks = [
            block for block in np.array_split(rows, max(1, threads * each)) if len(block)
        ]  # none of them small
        work = partial(self._block, read, answer)
        if threads == 1:
            return np.concatenate([rows[:0], *map(work, blocks)])
        with (
            self.search.threads.one_core() as begin,
            ThreadPoolExecutor(threads, initializer=begin) as pool,
        ):
            return np.concatenate(list(pool.map(work, blocks)))

    def _block(
        self,
        read: Read,
        answer: Int64Array,
        rows: Int64Array,
    ) -> Int64Array:
        """Do the work of `_search` for one block. The answer of a row depends on no other row."""
        queries = read(rows)
        rows_in_frame, radii = self.frame.place(queries)
        at = np.flatnonzero((radii < _FAR) & ~exact.has_no_direction(queries, self.metric))
        is_open = np.ones(len(rows), bool)
        if len(at):
            nearest, certain = self._decide(queries, rows_in_frame[at], radii[at], at)
            answer[rows[at[certain]]] = nearest[certain]
            is_open[at[certain]] = False
        return rows[is_open]

    def _decide(
        self,
        queries: Vectors,
        rows_in_frame: Vectors,
        radii: Float64Array,
        rows: Int64Array,
    ) -> tuple[Int64Array, BoolArray]:
        """Return the q nearest of the candidates retrieved for queries[rows], and sure rows.

        A row is sure if no other candidate can be nearer.
        """
        columns, approximate, error, beyond = self._retrieve(rows_in_frame, radii)
        n = len(rows)
        q = self.q
        unit = self.frame.scale**2
        nearest = np.full((n, q), -1, np.int64)
        if columns.shape[1] < q:
            return nearest, np.zeros(n, bool)
        farthest = np.partition(approximate + error, q - 1, axis=1)[:, q - 1]
        # whoever may be among the q nearest of those retrieved
        window = approximate - error <= farthest[:, None]
        clear = (window.sum(axis=1) == 1) & (farthest < beyond)  # one contender: nothing to settle
        nearest[clear, 0] = columns[clear, window[clear].argmax(axis=1)]
        window[clear] = False

        at, slots = np.nonzero(window)
        pairs = columns[at, slots]
        distances = exact.settle(queries, self.candidates, rows[at], pairs, self.metric)
        best, best_columns = exact.merge(np.full((n, q), np.inf), nearest, at, pairs, distances)
        nearest[~clear] = best_columns[~clear]
        farthest[~clear] = best[~clear, -1] * unit
        return nearest, (farthest < beyond) & (radii + np.sqrt(farthest) < _FAR / 2)

    def _retrieve(
        self,
        rows_in_frame: Vectors,
        radii: Float64Array,
    ) -> tuple[Int64Array, Float64Array, Float64Array, Float64Array]:
        """Return candidates, their squared distances and error bounds, n×k, and `beyond`, n.

        `beyond` is a lower bound on the squared distances of all others.
        """
        n, d, k = *rows_in_frame.shape, min(self.q + _SPARE, len(self.reachable))
        distances, positions, last = self.search(rows_in_frame, k)
        columns = self.reachable[positions]
        approximate = distances.astype(np.float64)
        error = exact.gamma(d, FLOAT32) * (radii[:, None] + self.radii[positions]) ** 2
        beyond = exact.unseen(last.astype(np.float64), radii, float(self.radii.max()), d)
        if k == len(self.reachable):
            beyond[:] = np.inf
        if self.zero.size:
            columns = np.hstack([columns, np.full((n, 1), self.zero[0])])
            approximate = np.hstack(
                [approximate, np.full((n, 1), exact.NO_DIRECTION * self.frame.scale**2)]
            )
            error = np.hstack([error, np.zeros((n, 1))])
        return columns, approximate, error, beyond


def _read(queries: Vectors, places: Int64Array | None, rows: Int64Array) -> Vectors:
    """Return the queries at `rows`, ascending (if given, at places[rows]).

    They are copied only if they are not consecutive.
    """
    rows = rows if places is None else places[rows]
    if rows[-1] - rows[0] == len(rows) - 1:
        return np.ascontiguousarray(queries[rows[0] : rows[-1] + 1])
    return np.ascontiguousarray(queries[rows])
