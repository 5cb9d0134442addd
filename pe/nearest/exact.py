"""The float64 distance that decides a vote, and how far a float32 one can be from it: the proof.

The squared distance of a pair is computed from its two float32 vectors by element-wise IEEE
operations and a sum whose order is spelled out (`_fold`), so its bits depend on the pair alone: not
on the other pairs, the block they came in, the number of threads or the BLAS.

Notation. u is the unit roundoff of the arithmetic (2⁻²⁴ in float32, 2⁻⁵³ in float64) and γ_k = k·u
/ (1 − k·u). A product of k factors (1 + δ) or 1/(1 + δ) with |δ| ≤ u lies within 1 ± γ_k, and (1 +
γ_j)(1 + γ_k) ≤ 1 + γ_{j+k}. x and c are query and candidate, D = |x − c|² their true squared
distance. Both are placed before the search: x' = s·(x − μ) and c' likewise, with a public centre μ
and a power of two s, so that D' = |x' − c'|² should be s²·D. a = |x'| and b = |c'| are their radii.

1. The kernel, given x' and c', in any order of summation, with fused operations or without:
   expanded, |x'|² + |c'|² − 2x'·c', each of the d terms x_k², c_k², 2x_k·c_k meets at most d + 3
   roundings, so the error is at most γ_{d+3} Σ(|x_k| + |c_k|)² ≤ γ_{d+3} (a + b)²; direct, Σ(x_k −
   c_k)², it is at most γ_{d+2} D' ≤ γ_{d+2} (a + b)². Cutting a negative result to 0 brings it
   nearer to D' ≥ 0.
2. The placing: each component of s·(x − μ) is off by at most u of itself (s is exact), so the
   vector x' − c' is off by at most u(1 + 2u)(a + b), and its square by at most 3u(a + b)².
3. Settled distances (`settle`) are float64 themselves: off by at most γ_{3+log₂d} D, in float64.

Together: |computed − s²·settled| ≤ γ_{d+32} (a + b)² for d < 2²², as d + 3 + 3 + (3 + 22) < d + 32.

4. Underflow. A float32 operation may lose up to 2⁻¹²⁶ absolutely, even where subnormals are
   flushed; s ≤ 2⁶⁴ makes that at most 2⁻⁶² per component. With every radius padded by p = √d·2⁻³⁶
   the bound grows by γ·4p(a + b) + γ·4p² ≥ 4√d·2⁻⁶⁰(a + b) + 4d²·2⁻⁹⁶, more than those losses can
   move a squared distance. In float64 nothing made from float32 values underflows.
5. Radii are computed too: `radius` returns r with |x'| ≤ r, and r ≤ (1 + 2γ)·|s(x − μ)| + 2p, γ =
   γ_{d+32} ≤ ¼.

The computed distance of a candidate that a search did not return is unknown, but not below L, which
the search tells. `unseen` turns this into a lower bound on the distance to every candidate not
returned, however large its radius. Let g = γ_{d+32} be the factor of (a + b)², and ρ = (1 + 2g)(a +
√L) + 2p. A candidate with r ≤ ρ is, by the bound above, at least L − g(a + ρ)² away. One with r > ρ
has, by 5, |s(c − μ)| > a + √L, so its distance exceeds L. Likewise one with r ≥ R, not searched
because R² is out of float32's reach, has |s(c − μ)| > R/2: its distance exceeds T where a + √T <
R/2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pe.data.arrays import BoolArray, Float32Array, Float64Array, FloatArray, Int64Array
from pe.data.samples import slices

Vectors = Float32Array

FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53

Metric = Literal["l2", "cosine"]

NO_DIRECTION = 2.0
"""Squared distance, under cosine, of a zero vector to every vector, as if at a right angle
to it."""

_PAIRS = 2**18  # elements settled at a time: two float64 arrays that stay in the cache
_BLOCK = 2**22  # most elements of a block of candidates in the exact search


def gamma(dimensions: int, roundoff: float) -> float:
    """Return γ_{d+32} of the proof above, a hair enlarged.

    It is infinite (nothing is certain) where the proof does not reach.
    """
    k = (dimensions + 32) * roundoff
    return 1.001 * k / (1 - k) if k < 0.2 and dimensions < 2**22 else float("inf")


def pad(dimensions: int, roundoff: float) -> float:
    """Return the margin that each radius gets for underflow (4 of the proof)."""
    return float(dimensions**0.5 * 2.0**-36) if roundoff > FLOAT64 else 0.0


def radius(vectors: FloatArray, roundoff: float) -> Float64Array:
    """Return an upper bound on the norm of each row, float64.

    It is infinite for NaN, on overflow, or beyond the proof's reach.
    """
    dimensions = vectors.shape[1]
    if not np.isfinite(gamma(dimensions, roundoff)):
        return np.full(len(vectors), np.inf)
    squares = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    bound = np.sqrt(squares) * (1 + gamma(dimensions, roundoff)) + pad(dimensions, roundoff)
    return np.where(np.isfinite(bound), bound, np.inf)


def unseen(
    last: Float64Array,
    query_radius: Float64Array,
    largest: float,
    dimensions: int,
) -> Float64Array:
    """Return a lower bound on each query's squared distance to candidates that were not returned.

    See above: `last` is L, `query_radius` a, and `largest` the largest radius that was searched.
    """
    slack = gamma(dimensions, FLOAT32)
    reach = (1 + 2 * slack) * (query_radius + np.sqrt(np.maximum(last, 0))) + 2 * pad(
        dimensions,
        FLOAT32,
    )
    return last - slack * (query_radius + np.minimum(largest, reach)) ** 2


def _fold(values: Float64Array) -> Float64Array:
    """Return the sum of each row, always in the same order.

    The upper half is added to the lower one until one entry is left.
    """
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        values[:, : width - half] += values[:, half:width]
        width = half
    return values[:, 0]


def lift(vectors: Vectors, metric: Metric) -> Float64Array:
    """Return the rows in float64, under cosine divided by their norms.

    Zero rows stay zero.
    """
    wide = vectors.astype(np.float64)
    if metric == "cosine":
        norms = np.sqrt(_fold(wide**2))
        wide /= np.where(norms > 0, norms, 1.0)[:, None]
    return wide


def has_no_direction(vectors: FloatArray, metric: Metric) -> BoolArray:
    """True for rows that have no direction: zero vectors under cosine, none under l2."""
    if metric == "l2":
        return np.zeros(len(vectors), bool)
    return np.asarray(~vectors.any(axis=1))


def settle(
    queries: Vectors,
    candidates: Vectors,
    rows: Int64Array,
    columns: Int64Array,
    metric: Metric,
) -> Float64Array:
    """Return the deciding squared distance of each pair (queries[rows[p]], candidates[columns[p]]).

    The answer is float64. All vectors must be finite. Memory is bounded: pairs are settled a few at
    a time.
    """
    distances = np.empty(len(rows))
    step = max(1, _PAIRS // queries.shape[1])
    for part in slices(len(rows), step):
        x = lift(queries[rows[part]], metric)
        c = lift(candidates[columns[part]], metric)
        none = has_no_direction(x, metric) | has_no_direction(c, metric)
        x -= c
        x *= x
        distances[part] = np.where(none, NO_DIRECTION, _fold(x))
    return distances


def exact_nearest(
    queries: Vectors,
    candidates: Vectors,
    q: int,
    metric: Metric,
    centre: Float64Array,
) -> Int64Array:
    """Return the q candidates nearest to each query by settled distance: int64, n×q.

    Ties go to the lowest index. All vectors must be finite. Blocks of candidates are compared in
    float64; pairs that might be among the q nearest, by the bound of the proof above, are settled.
    Memory holds the distances of all queries to one block, so hand over few queries at a time.
    `centre` is a point near the candidates; it changes the speed, never the answer.
    """
    n, d = queries.shape
    x, x_radius, x_zero = _centre(queries, metric, centre)
    best = np.full((n, q), np.inf)
    nearest = np.full((n, q), -1, np.int64)
    step = max(1, min(4096, _BLOCK // d))
    for part in slices(len(candidates), step):
        c, c_radius, c_zero = _centre(candidates[part], metric, centre)
        approximate = np.square(x).sum(axis=1)[:, None] + np.square(c).sum(axis=1) - 2 * (x @ c.T)
        approximate[x_zero] = NO_DIRECTION
        approximate[:, c_zero] = NO_DIRECTION
        # Who is surely farther than the q nearest so far need not be settled.
        error = gamma(d, FLOAT64) * (x_radius[:, None] + c_radius) ** 2
        reach = best[:, -1]
        if len(c) >= q:
            reach = np.minimum(reach, np.partition(approximate + error, q - 1, axis=1)[:, q - 1])
        rows, columns = np.nonzero(approximate - error <= reach[:, None])
        columns += part.start
        distances = settle(queries, candidates, rows, columns, metric)
        best, nearest = merge(best, nearest, rows, columns, distances)
    return nearest


def _centre(
    vectors: Vectors,
    metric: Metric,
    centre: Float64Array,
) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Return centred rows, their radii, and which rows have no direction."""
    wide = lift(vectors, metric) - centre
    return wide, radius(wide, FLOAT64), has_no_direction(vectors, metric)


def merge(
    best: Float64Array,
    nearest: Int64Array,
    rows: Int64Array,
    columns: Int64Array,
    distances: Float64Array,
) -> tuple[Float64Array, Int64Array]:
    """Return distances and indices, n×q, of each row's q nearest, in order.

    They are chosen among the q that it had and new pairs (rows, columns).
    """
    n, q = best.shape
    rows = np.concatenate([np.repeat(np.arange(n), q), rows])
    columns = np.concatenate([nearest.ravel(), columns])
    distances = np.concatenate([best.ravel(), distances])
    order = np.lexsort((columns, distances, rows))
    starts = np.searchsorted(rows[order], np.arange(n))
    first = order[starts[:, None] + np.arange(q)]
    return distances[first], columns[first]
