"""Precision, recall, density and coverage of generated vectors among real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import Float64Array, Int64Array
from pe.data.samples import slices
from pe.plugins.protocols import Vectors

NEIGHBORS = 5
_ROWS = 1024


@dataclass(frozen=True)
class Manifold:
    """Precision, recall, density and coverage of real and generated vectors.

    They tell how the vectors lie in each other's balls.

    A vector's ball reaches to its k-th neighbour in its own set. Precision and recall: Kynkäänniemi
    et al. (2019); density and coverage: Naeem et al. (2020).
    """

    precision: (
        float  # share of generated vectors inside some real vector's ball: are they realistic?
    )
    # share of real vectors inside some generated vector's ball: is everything real there?
    recall: float
    density: (
        float  # mean number of real balls that a generated vector lies in, over k; may exceed 1
    )
    coverage: float  # share of real vectors whose ball holds a generated one


def manifold(real: Vectors, synthetic: Vectors, k: int = NEIGHBORS) -> Manifold:
    """Compare `synthetic` (m, d) with `real` (n, d) in float64.

    A ball excludes its rim, as in the authors' `prdc`.
    """
    if min(len(real), len(synthetic)) <= k:
        raise ValueError(f"{k} neighbours need {k + 1} vectors or more of each set.")
    # near the origin, squared distances computed by products lose the fewest digits
    centre = real.mean(axis=0, dtype=np.float64)
    both = (vectors.astype(np.float64) - centre for vectors in (real, synthetic))
    r, g = ((vectors, np.square(vectors).sum(axis=1)) for vectors in both)
    real_radii = _radii(r, k)
    generated_radii = _radii(g, k)
    inside = np.zeros(len(synthetic), np.int64)
    recalls = covers = 0
    for rows, distances in _blocks(r, g):
        within = distances < real_radii[rows, None]
        inside += within.sum(axis=0)
        covers += int(within.any(axis=1).sum())
        recalls += int((distances < generated_radii).any(axis=1).sum())
    return Manifold(
        float((inside > 0).mean()),
        recalls / len(real),
        float(inside.mean()) / k,
        covers / len(real),
    )


def _radii(vectors: tuple[Float64Array, Float64Array], k: int) -> Float64Array:
    """Return the squared distance of each vector to its k-th nearest other vector of the set."""
    radii = np.empty(len(vectors[0]))
    for rows, distances in _blocks(vectors, vectors):
        distances[np.arange(len(distances)), rows] = np.inf
        radii[rows] = np.partition(distances, k - 1, axis=1)[:, k - 1]
    return radii


def _blocks(
    x: tuple[Float64Array, Float64Array], y: tuple[Float64Array, Float64Array]
) -> Iterator[tuple[Int64Array, Float64Array]]:
    """Yield blocks of rows of x, as indices, with their squared distances to all rows of y."""
    for part in slices(len(x[0]), _ROWS):
        distances = x[1][part, None] + y[1] - 2 * (x[0][part] @ y[0].T)
        yield np.arange(len(x[0]))[part], np.maximum(distances, 0)
