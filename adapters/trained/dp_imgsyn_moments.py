"""What a frozen classifier sees of images: the moments of each channel that enters a GroupNorm layer.

Of one image: the mean of each channel over its places, and the mean of its square. Of the private images: the noisy
sum of these vectors, the one release beside the classifier's training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adapters.trained.releases import on_grid, sum_release
from pe.fit.trainer import FIT, PrivateRecords
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release

NAME = f"{FIT}moments"

Vector = npt.NDArray[np.float64]

_COMMON = 0.95
"""Share of the public images whose vectors are not cut."""

LEAST_VARIANCE = 1e-6
"""Of a channel: the floor of what is aligned, and of what it is aligned with."""


@dataclass(frozen=True, eq=False)
class Scale:
    """How the moments become a vector of norm about 1: public, from the classifier's view of public images.

    Attributes:
        factors: float64 (2·d,), of the means, then of the mean squares; one for each layer.
    """

    factors: Vector

    @classmethod
    def of(cls, means: Vector, squares: Vector, widths: tuple[int, ...]) -> Scale:
        """From public images' moments, float64 (m, d): layers weigh the same, most norms lie below 1."""
        both = [np.hstack(parts) for parts in zip(_split(means, widths), _split(squares, widths), strict=True)]
        sizes = np.array([np.sqrt(np.square(part).sum(axis=1).mean()) for part in both])
        per_layer = 1 / (np.maximum(sizes, 1e-12) * math.sqrt(len(widths)))
        factors = np.tile(np.repeat(per_layer, widths), 2)
        norms = np.linalg.norm(np.hstack([means, squares]) * factors, axis=1)
        return cls(factors / max(float(np.quantile(norms, _COMMON)), 1e-12))


def moments_release(budget: Budget, relation: Relation, unit: str) -> Release:
    """The release of the sum, with the least noise that alone meets `budget`: vectors of norm at most 1."""
    sensitivity = 2.0 if Relation(relation) is Relation.REPLACE_ONE else 1.0
    return sum_release(NAME, sensitivity, budget, relation, unit, fractional=True)


def noisy_sum(
    records: PrivateRecords,
    vector: Callable[[npt.NDArray[np.uint8]], Vector],
    length: int,
    release: Release,
    noise: Noise,
) -> npt.NDArray[np.int64]:
    """The noisy sum of the records' clipped vectors, int64 (length,), in the release's grid steps.

    Guarantee: the release's. A record's vector is a function of that record alone (it is seen by itself, to the last
    bit), over ALL layers together it is cut to an L2 norm of 1, and rounded toward zero on the grid: one record more
    moves the clean sum by at most 1, another in its place by at most 2. A vector that holds anything but finite numbers
    counts as zero. The records of larger units are not scaled: the unit must be the record.

    Args:
        records: the private ones; there may be none.
        vector: of one image, uint8 h×w×c: float64 (length,).
        length: of a vector.
        release: its declaration.
        noise: where noise comes from.
    """
    total = np.zeros(length, dtype=np.int64)
    for image in records.samples:
        total += on_grid(clipped(vector(image)), release.grid)
    return total + noise.discrete_gaussian(total.shape, release.scale)


def clipped(vector: Vector) -> Vector:
    """The vector, cut to an L2 norm of 1; zero where it is not finite."""
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    norm = float(np.linalg.norm(vector))
    return vector if norm <= 1 else vector / norm


@dataclass(frozen=True, eq=False)
class Moments:
    """Of a whole set of images.

    Attributes:
        means: float64 (d,), of each channel.
        deviations: float64 (d,), standard deviations, at least the root of a small floor.
    """

    means: Vector
    deviations: Vector

    @classmethod
    def of_sum(cls, noisy: npt.NDArray[np.int64], scale: Scale, grid: int, declared_size: int) -> Moments:
        """From the noisy sum, divided by the DECLARED size; negative variances become the floor. Post-processing."""
        means, squares = np.split(noisy / (grid * declared_size) / scale.factors, 2)
        return cls(means, np.sqrt(np.maximum(squares - means**2, LEAST_VARIANCE)))


def _split(columns: Vector, widths: tuple[int, ...]) -> list[Vector]:
    return np.split(columns, np.cumsum(widths)[:-1], axis=1)
