"""Precision, recall, density and coverage: where one set lies in the k-NN balls of the other.

Improved precision and recall: Kynkäänniemi et al. (2019); density and coverage: Naeem et al. (2020).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.evaluation.frechet import Reals

Vectors = npt.NDArray[np.floating]

NEIGHBORS = 5
_ROWS = 1024


@dataclass(frozen=True)
class Manifold:
    """How two sets lie in each other. Balls are around each vector and reach to its k-th neighbour in its own set.

    Attributes:
        precision: share of generated vectors inside some real vector's ball: are they realistic?
        recall: share of real vectors inside some generated vector's ball: is everything real there?
        density: real balls that a generated vector lies in, over k; may exceed 1.
        coverage: share of real vectors whose ball holds a generated one.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def manifold(real: Vectors, generated: Vectors, k: int = NEIGHBORS) -> Manifold:
    """Precision, recall, density and coverage of `generated` (m×d) in `real` (n×d), in float64, block by block.

    A vector on the rim of a ball is outside, as in the authors' `prdc`.

    Raises:
        ValueError: k or fewer vectors in a set.
    """
    if min(len(real), len(generated)) <= k:
        raise ValueError(f"{k} neighbours need {k + 1} vectors or more of each set.")
    centre = real.mean(axis=0, dtype=np.float64)
    r, g = (_with_squares(vectors.astype(np.float64) - centre) for vectors in (real, generated))
    real_radii, generated_radii = _radii(r, k), _radii(g, k)
    inside = np.zeros(len(generated), np.int64)
    recalled = covered = 0
    for rows, distances in _blocks(r, g):
        within = distances < real_radii[rows, None]
        inside += within.sum(axis=0)
        covered += int(within.any(axis=1).sum())
        recalled += int((distances < generated_radii).any(axis=1).sum())
    return Manifold(float((inside > 0).mean()), recalled / len(real), float(inside.mean()) / k, covered / len(real))


def _with_squares(vectors: Reals) -> tuple[Reals, Reals]:
    return vectors, np.square(vectors).sum(axis=1)


def _radii(vectors: tuple[Reals, Reals], k: int) -> Reals:
    """Squared distance of each vector to its k-th neighbour in its own set, itself left out."""
    radii = np.empty(len(vectors[0]))
    for rows, distances in _blocks(vectors, vectors):
        distances[np.arange(len(distances)), rows] = np.inf
        radii[rows] = np.partition(distances, k - 1, axis=1)[:, k - 1]
    return radii


def _blocks(x: tuple[Reals, Reals], y: tuple[Reals, Reals]) -> Iterator[tuple[npt.NDArray[np.int64], Reals]]:
    """Squared distances of some rows of x to all of y: (the rows, distances)."""
    for start in range(0, len(x[0]), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(x[0])))
        distances = x[1][rows, None] + y[1] - 2 * (x[0][rows] @ y[0].T)
        yield rows, np.maximum(distances, 0)
