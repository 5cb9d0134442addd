"""The kernel distance: the unbiased estimate of MMD² with a cubic kernel (Bińkowski et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.evaluation.frechet import Reals

Vectors = npt.NDArray[np.floating]

LARGEST, FEWEST = 1000, 10
"""Vectors of a subset, at the most; subsets, where there are vectors enough for two in each."""


@dataclass(frozen=True)
class KernelDistance:
    """MMD² estimated from disjoint subsets.

    Attributes:
        mean: the estimate; may be a little below 0, since it is unbiased.
        standard_error: of the mean, from the subsets' spread; NaN where there is one subset.
        subsets: their number.
        subset_size: vectors of each set in a subset.
    """

    mean: float
    standard_error: float
    subsets: int
    subset_size: int


def kernel_distance(first: Vectors, second: Vectors) -> KernelDistance:
    """MMD² between the distributions of the rows of `first` (n×d) and `second` (m×d), which must be in random order.

    The subsets are disjoint, so their estimates are independent and the standard error is an honest one: at
    least FEWEST subsets of at most LARGEST, as many as the smaller set holds. (KID's usual 100 subsets overlap
    in small sets, which makes their spread look smaller than it is; the expectation is the same.)

    Raises:
        ValueError: fewer than two rows.
    """
    smaller = min(len(first), len(second))
    if smaller < 2:
        raise ValueError("A kernel distance needs two vectors or more of each set.")
    subsets = max(1, min(smaller // 2, max(FEWEST, smaller // LARGEST)))
    size = min(smaller // subsets, LARGEST)
    parts = (slice(i * size, (i + 1) * size) for i in range(subsets))
    values = [squared_mmd(first[part], second[part]) for part in parts]
    spread = float(np.std(values, ddof=1)) / math.sqrt(subsets) if subsets > 1 else math.nan
    return KernelDistance(float(np.mean(values)), spread, subsets, size)


def squared_mmd(first: Vectors, second: Vectors) -> float:
    """The unbiased estimate of MMD² from the rows of `first` (n×d) and `second` (m×d), n, m ≥ 2; float64."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    n, m = len(x), len(y)
    within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (_kernel(x, x), _kernel(y, y))]
    return float(sum(within) - 2 * _kernel(x, y).sum() / (n * m))


def _kernel(x: Reals, y: Reals) -> Reals:
    """(xᵀy / d + 1)³ of all pairs."""
    values: Reals = (x @ y.T / x.shape[1] + 1) ** 3
    return values
