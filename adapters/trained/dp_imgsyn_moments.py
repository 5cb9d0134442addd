"""Moments of each channel that enters a GroupNorm layer of DP-ImgSyn's classifier.

Of one image: the mean of each channel over its places, and the mean of its square. Of the private images: the noisy
sum of these vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_COMMON = 0.95
"""Share of the public images whose vectors are not cut."""

LEAST_VARIANCE = 1e-6
"""The floor of a channel's variance, in the aligned images and in their target."""


@dataclass(frozen=True, eq=False)
class Scale:
    """Public factors that bring moments to a norm of about 1, from the classifier's view of public images.

    Attributes:
        factors: float64 (2·d,), of the means, then of the mean squares; one for each layer.
    """

    factors: Vector

    @classmethod
    def of(cls, means: Vector, squares: Vector, widths: tuple[int, ...]) -> Scale:
        """Take public images' moments, float64 (m, d): layers weigh the same, most norms lie below 1."""
        by_layer = [np.split(each, np.cumsum(widths)[:-1], axis=1) for each in (means, squares)]
        both = [np.hstack(parts) for parts in zip(*by_layer, strict=True)]
        sizes = np.array([np.sqrt(np.square(part).sum(axis=1).mean()) for part in both])
        per_layer = 1 / (np.maximum(sizes, 1e-12) * math.sqrt(len(widths)))
        factors = np.tile(np.repeat(per_layer, widths), 2)
        norms = np.linalg.norm(np.hstack([means, squares]) * factors, axis=1)
        return cls(factors / max(float(np.quantile(norms, _COMMON)), 1e-12))


def clipped(vector: Vector) -> Vector:
    """Cut a vector to an L2 norm of 1; return zero for one that is not finite."""
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    norm = float(np.linalg.norm(vector))
    return vector if norm <= 1 else vector / norm


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of a whole set of images.

    Attributes:
        means: float64 (d,), of each channel.
        deviations: float64 (d,), standard deviations, at least the root of a small floor.
    """

    means: Vector
    deviations: Vector

    @classmethod
    def of_sum(cls, noisy: npt.NDArray[np.int64], scale: Scale, grid: int, declared_size: int) -> Moments:
        """Divide the noisy sum by the DECLARED size; negative variances become the floor. Post-processing."""
        means, squares = np.split(noisy / (grid * declared_size) / scale.factors, 2)
        return cls(means, np.sqrt(np.maximum(squares - means**2, LEAST_VARIANCE)))
