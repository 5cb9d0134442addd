"""What a fit releases beside DP-SGD: one sum, with discrete Gaussian noise."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import grid_for
from pe.privacy.release import Poisson, Relation, Release

BELOW_ONE = 1 - 1e-9
"""Keeps a vector's norm at most 1 whatever rounding does."""


@lru_cache(maxsize=64)
def sum_release(
    name: str,
    sensitivity: float,
    budget: Budget,
    relation: Relation,
    unit: str,
    fractional: bool = False,
    sampling: Poisson | None = None,
    count: int = 1,
    grid: int | None = None,
) -> Release:
    """The release of a sum, or of sums over subsets, with the least noise that alone meets `budget`.

    It is found once per process: where records are sampled, it takes seconds.

    Args:
        name: of the release.
        sensitivity: L2, > 0, for the relation.
        budget: (ε, δ).
        relation: between neighbouring data sets.
        unit: of protection.
        fractional: whether a record adds fractions, and not whole numbers alone.
        sampling: how the subsets are drawn; None: all records are in it.
        count: how many sums.
        grid: steps per unit of the sum; None: as few as suffice.

    Raises:
        PrivacyError: no noise meets the budget.
    """

    def release(z: float) -> Release:
        steps = grid or grid_for(z, sensitivity, fractional=fractional)
        return Release(name, "discrete_gaussian", sensitivity, z, relation, unit, sampling, count, steps)

    return release(calibrate(lambda z: [release(z)], budget))


def on_grid(vector: npt.NDArray[np.float64], grid: int) -> npt.NDArray[np.int64]:
    """What a record adds, float64 of an L2 norm of at most 1, in grid steps: rounded toward zero, so no norm grows."""
    return np.trunc(vector * (grid * BELOW_ONE)).astype(np.int64)
