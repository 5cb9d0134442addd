"""Lower bounds on distances, from few dimensions: coordinates on the candidates' principal axes, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pe.nearest.margin import FLOAT32, FLOAT64, NOT_SQUARE, Arithmetic, Reals, Vectors, gamma

GIVE_UP = 1 / 16
"""Part of the candidates: a query whose sketch leaves more is left to the whole product."""

_AXES = (32, 64, 128)  # how many a sketch may keep
_LEAST = 3 * 2**32  # terms in the products of all candidates with all: below, a sketch costs more than it saves
_FITTED = 512, 4096  # candidates that axes are fitted on: an eighth of all, but at least and at most so many
_FAR = 2.0**16  # a radius beyond which candidates, of a median radius of 1, are no guide
_LOOKED_AT, _SPREAD = 256, 128  # candidates looked at first; directions over which they may spread
_TRIED, _AMONG = 64, 2048  # candidates searched among others, at least, to see how many a sketch leaves
_ALONE = 16  # what a term of a distance computed alone costs, in terms of a product of many
_EACH = 15_000  # terms that it costs besides to pick such a pair, and to keep its distance
_LOOK = 60  # terms that looking through the products costs, per pair
_GAIN = 0.65  # largest part of the whole product's cost for which a sketch is taken
_ROWS = 128  # vectors sketched together


@dataclass(frozen=True, eq=False)
class Sketch:
    """x ↦ (Vᵀx, |x − VVᵀx|): distances of sketches are at most those of the vectors (7 of pe/nearest/margin.py).

    Attributes:
        axes: V, float64, d×r with r < d; |VᵀV − 1| ≤ NOT_SQUARE.
        cost: of a search by such sketches, as part of that of the whole product, as foreseen.
    """

    axes: Reals
    cost: float = 0.0

    @property
    def arithmetic(self) -> Arithmetic:
        """How distances of sketches, computed in float32, stand for those of the vectors."""
        return Arithmetic(FLOAT32, axes=self.axes.shape[1])

    def __call__(self, vectors: Vectors) -> Vectors:
        """The sketches of these rows, n×(r + 1): computed in float64, rounded to float32."""
        r = self.axes.shape[1]
        sketches = np.empty((len(vectors), r + 1), np.float32)
        for start in range(0, len(vectors), _ROWS):
            rows = vectors[start : start + _ROWS].astype(np.float64)
            along = rows @ self.axes
            left = np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", along, along)
            sketches[start : start + _ROWS, :r] = along
            sketches[start : start + _ROWS, r] = np.sqrt(np.maximum(left, 0))
        return sketches


def fit_sketch(candidates: Vectors, q: int) -> Sketch | None:
    """The sketch that makes the search of the q nearest cheapest, as candidates searched among candidates tell.

    None where the product of all dimensions is cheaper. Nothing but candidates is looked at.
    """
    m, d = candidates.shape
    sizes = [r for r in _AXES if 2 * r < d]
    if not sizes or m * m * d < _LEAST or q > GIVE_UP * m:
        return None
    axes = _principal_axes(candidates, sizes[-1]) if _spread(candidates) <= _SPREAD else None
    if axes is None:
        return None
    sketch = Sketch(axes)
    costs = _costs(candidates, sketch, sizes, q)
    best = min(sizes, key=lambda r: costs[r])
    axes = np.ascontiguousarray(sketch.axes[:, :best])
    rounding = best * gamma(d, FLOAT64)  # of the product that follows
    orthonormal = np.linalg.norm(axes.T @ axes - np.eye(best)) + rounding < NOT_SQUARE
    return Sketch(axes, costs[best]) if costs[best] <= _GAIN and orthonormal else None


def _spread(candidates: Vectors) -> float:
    """Over how many directions, if evenly, candidates would spread to be as alike as a few of them are: (Σλ)² / Σλ².

    λ are the squared lengths of the principal axes, Σλ² the mean squared product of two different candidates.
    """
    few = _sample(candidates, _LOOKED_AT)
    squares = np.square(few @ few.T, dtype=np.float64)
    lengths = np.sqrt(squares.diagonal())
    return float(lengths.sum() ** 2 / max(squares.sum() - squares.trace(), 1e-300))


def _principal_axes(candidates: Vectors, count: int) -> Reals | None:
    """About the first principal axes of a sample, longest first, by subspace iteration; None if it is too small."""
    sample = _sample(candidates, min(max(len(candidates) // 8, _FITTED[0]), _FITTED[1]))
    if len(sample) < count:
        return None
    span = sample.T @ np.random.default_rng(0).standard_normal((len(sample), count), dtype=np.float32)
    for _ in range(2):
        span = sample.T @ (sample @ _turned(span))
    return np.linalg.qr(_turned(span).astype(np.float64))[0]


def _sample(candidates: Vectors, count: int) -> Vectors:
    """At most so many of the candidates, evenly spaced, without those far out."""
    sample = candidates[:: -(-len(candidates) // count)]
    return np.asarray(sample[np.abs(sample).max(axis=1) < _FAR])


def _turned(span: Vectors) -> Vectors:
    """Vectors of length 1, about at right angles, in the space of the columns: the longest of it first.

    By the columns' products with each other, a third of the time of a decomposition of `span` itself.
    """
    squares, turn = np.linalg.eigh((span.T @ span).astype(np.float64))
    scales = np.sqrt(np.maximum(squares[::-1], 1e-12 * squares[-1] + 1e-30))
    return np.asarray(span @ (turn[:, ::-1] / scales).astype(np.float32))


def _costs(candidates: Vectors, sketch: Sketch, sizes: list[int], q: int) -> dict[int, float]:
    """What a search by that many axes costs of one by the whole product, for candidates as queries."""
    m, d = candidates.shape
    tried, among, reach = neighbours_among(candidates, q)
    queries, others = sketch(tried), sketch(among)
    costs = {}
    for r in sizes:
        left = (_distances(*(_shortened(one, r) for one in (queries, others))) <= reach).mean(axis=1)
        given_up = left > GIVE_UP
        alone = (_ALONE + _EACH / d) * np.minimum(left, GIVE_UP).mean()
        costs[r] = float((r + _LOOK) / d + 4 * r / m + alone + given_up.mean())
    return costs


def neighbours_among(candidates: Vectors, q: int) -> tuple[Vectors, Vectors, Vectors]:
    """Some candidates, others, and the squared distance of each of the first to its q-th nearest of the others."""
    m = len(candidates)
    tried, among = candidates[:: -(-m // _TRIED)], candidates[:: max(1, m // max(_AMONG, m // 16))]
    distances = _distances(tried, among)
    distances[distances <= 2.0**-16 * np.median(distances)] = np.inf  # itself, and what all but equals it
    return tried, among, np.partition(distances, q - 1, axis=1)[:, q - 1, None]


def _shortened(sketches: Vectors, count: int) -> Vectors:
    """The sketches that the first `count` axes alone would give."""
    return np.hstack([sketches[:, :count], np.sqrt(np.square(sketches[:, count:]).sum(axis=1, keepdims=True))])


def _distances(queries: Vectors, candidates: Vectors) -> Vectors:
    """Squared distances of all pairs, n×m, as good as float32 products are."""
    squares = np.square(queries).sum(axis=1)[:, None] + np.square(candidates).sum(axis=1)
    return np.asarray(squares - 2 * (queries @ candidates.T))
