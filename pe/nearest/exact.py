"""The distance that decides a vote, pair by pair in float64, and the search that needs nothing else.

The squared distance of a pair is computed from its two float32 vectors by element-wise IEEE operations and a
sum whose order is spelled out (`_fold`), so its bits depend on the pair alone: not on the other pairs, the
block they came in, the number of threads or the BLAS.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.nearest.margin import FLOAT64, Integers, Mask, Reals, Vectors, gamma, radius

Metric = Literal["l2", "cosine"]

NO_DIRECTION = 2.0
"""Squared distance, under cosine, of a zero vector to every vector: that of a right angle."""

_PAIRS = 2**18  # elements settled at a time: two float64 arrays that stay in the cache
_ROWS = 512  # queries compared together in the exact search
_BLOCK = 2**22  # most elements of a block of queries or candidates there


def _fold(values: Reals) -> Reals:
    """The sum of each row, always in the same order: the upper half is added to the lower until one is left."""
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        values[:, : width - half] += values[:, half:width]
        width = half
    return values[:, 0]


def lift(vectors: Vectors, metric: Metric) -> Reals:
    """The rows in float64; under cosine divided by their norms, zero rows staying zero."""
    lifted = vectors.astype(np.float64)
    if metric == "cosine":
        norms = np.sqrt(_fold(lifted**2))
        lifted /= np.where(norms > 0, norms, 1.0)[:, None]
    return lifted


def undirected(vectors: npt.NDArray[np.floating], metric: Metric) -> Mask:
    """Which rows have no direction: zero vectors under cosine, none under l2."""
    if metric == "l2":
        return np.zeros(len(vectors), bool)
    return np.asarray(~vectors.any(axis=1))


def settle(queries: Vectors, candidates: Vectors, rows: Integers, columns: Integers, metric: Metric) -> Reals:
    """The deciding squared distance of each pair (queries[rows[p]], candidates[columns[p]]), float64.

    All vectors must be finite. Memory is bounded: pairs are settled a few at a time.
    """
    distances = np.empty(len(rows))
    step = max(1, _PAIRS // queries.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        x, c = lift(queries[rows[part]], metric), lift(candidates[columns[part]], metric)
        none = undirected(x, metric) | undirected(c, metric)
        x -= c
        x *= x
        distances[part] = np.where(none, NO_DIRECTION, _fold(x))
    return distances


def exact_nearest(queries: Vectors, candidates: Vectors, q: int, metric: Metric, centre: Reals) -> Integers:
    """The q candidates nearest to each query by settled distance, ties to the lowest index: int64, n×q.

    Blocks of candidates are compared in float64; the pairs that might be among the q nearest, by the bound of
    pe/nearest/margin.py, are settled. Memory is that of one block, plus the answer.

    Args:
        queries: finite, n×d.
        candidates: finite, m×d with m ≥ q.
        q: neighbours per query.
        metric: "l2" or "cosine".
        centre: a point near the candidates; it changes the speed, never the answer.
    """
    answer = np.empty((len(queries), q), np.int64)
    step = max(1, min(_ROWS, _BLOCK // queries.shape[1]))
    for start in range(0, len(queries), step):
        block = np.ascontiguousarray(queries[start : start + step])
        answer[start : start + step] = _exact_block(block, candidates, q, metric, centre)
    return answer


def _exact_block(queries: Vectors, candidates: Vectors, q: int, metric: Metric, centre: Reals) -> Integers:
    n, d = queries.shape
    x, x_radius, x_zero = _centre(queries, metric, centre)
    best, chosen = np.full((n, q), np.inf), np.full((n, q), -1, np.int64)
    step = max(1, min(4096, _BLOCK // d))
    for start in range(0, len(candidates), step):
        c, c_radius, c_zero = _centre(candidates[start : start + step], metric, centre)
        approximate = np.square(x).sum(axis=1)[:, None] + np.square(c).sum(axis=1) - 2 * (x @ c.T)
        approximate[x_zero] = NO_DIRECTION
        approximate[:, c_zero] = NO_DIRECTION
        error = gamma(d, FLOAT64) * (x_radius[:, None] + c_radius) ** 2
        reach = best[:, -1]
        if len(c) >= q:
            reach = np.minimum(reach, np.partition(approximate + error, q - 1, axis=1)[:, q - 1])
        rows, columns = np.nonzero(approximate - error <= reach[:, None])
        columns += start
        best, chosen = merge(best, chosen, rows, columns, settle(queries, candidates, rows, columns, metric))
    return chosen


def _centre(vectors: Vectors, metric: Metric, centre: Reals) -> tuple[Reals, Reals, Mask]:
    """Centred rows, their radii, and which rows have no direction."""
    lifted = lift(vectors, metric) - centre
    return lifted, radius(lifted, FLOAT64), undirected(vectors, metric)


def merge(best: Reals, chosen: Integers, rows: Integers, columns: Integers, distances: Reals) -> tuple[Reals, Integers]:
    """The q nearest of each row, in order, from the q it had (n×q) and the new pairs (rows, columns)."""
    n, q = best.shape
    rows = np.concatenate([np.repeat(np.arange(n), q), rows])
    columns = np.concatenate([chosen.ravel(), columns])
    distances = np.concatenate([best.ravel(), distances])
    order = np.lexsort((columns, distances, rows))
    starts = np.searchsorted(rows[order], np.arange(n))
    kept = order[starts[:, None] + np.arange(q)]
    return distances[kept], columns[kept]
