"""The least noise that meets a target (ε, δ), rounded up until the recomputed ε is within it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pe.errors import PrivacyError
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.ledger import Budget
from pe.privacy.noise import grid_for
from pe.privacy.parts import sort_parts
from pe.privacy.release import Relation, Release

LEAST, MOST = 1e-3, 1e9
"""The range of noise multipliers that is searched."""

_CLOSED_TOLERANCE = 1e-12
_SLOW_TOLERANCE = 1e-5


def calibrate(releases: Callable[[float], Sequence[Release]], budget: Budget) -> float:
    """The smallest z (from above) for which `releases(z)` together meet `budget`.

    Args:
        releases: z → the whole composition, with whatever stays fixed; more z must mean more noise.
        budget: the target.

    Returns:
        z with epsilon(releases(z), δ) ≤ ε, at most a relative 1e-12 (1e-5 where an ε takes a
        privacy loss distribution) above the smallest such z.

    Raises:
        PrivacyError: no amount of noise meets the target, as when the fixed releases exceed it.
    """

    def fits(z: float) -> bool:
        return epsilon_of(releases(z), budget.delta) <= budget.epsilon

    high = 1.0
    while not fits(high):
        high *= 4
        if high > MOST:
            raise PrivacyError(
                f"No noise brings this within ε = {budget.epsilon:g} at δ = {budget.delta:g}: "
                "what else is charged takes all of it. Raise epsilon or charge less."
            )
    low = high / 4
    while low >= LEAST and fits(low):
        high, low = low, low / 4
    if low < LEAST:
        return high
    tolerance = _CLOSED_TOLERANCE if sort_parts(releases(high)).closed else _SLOW_TOLERANCE
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def noise_multiplier_for(budget: Budget, iterations: int, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The least noise multiplier with which `iterations` histograms meet `budget`, rounded up."""
    sensitivity = math.sqrt(2) if relation is Relation.REPLACE_ONE else 1.0

    def releases(z: float) -> list[Release]:
        one = histograms(z, 1, sensitivity=sensitivity, relation=relation)
        return [replace(release, count=iterations) for release in one]

    return calibrate(releases, budget)


def histograms(
    noise_multiplier: float,
    iterations: int,
    *,
    sensitivity: float = 1.0,
    relation: Relation = Relation.ADD_REMOVE,
    unit: str = "record",
    fractional: bool = False,
    weights: Sequence[float] | None = None,
) -> list[Release]:
    """The releases "histogram/1" … "histogram/T" of Private Evolution.

    Args:
        noise_multiplier: of every histogram; with `weights`, of one that has the mean weight.
        iterations: T ≥ 0.
        sensitivity: of one histogram: 1 (add_remove, zero_out) or √2 (replace_one; 2 when fractional).
        relation: the neighbouring relation.
        unit: the privacy unit.
        fractional: whether votes are fractions (q > 1, units larger than a record).
        weights: T positive shares of μ²; None: equal. Histogram t has μ_t² = T·w_t/(Σw·z²).

    Raises:
        PrivacyError: weights of another number, or not positive.
    """
    if weights is None:
        weights = [1.0] * iterations
    if len(weights) != iterations or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise PrivacyError(f"A schedule gives each of the {iterations} iterations one weight above 0, not {weights}.")
    total = math.fsum(weights)
    releases = []
    for t, weight in enumerate(weights, start=1):
        z = noise_multiplier * math.sqrt(total / (iterations * weight))
        grid = grid_for(z, sensitivity, fractional)
        name = f"histogram/{t}"
        releases.append(Release(name, "discrete_gaussian", sensitivity, z, relation, unit, None, 1, grid))
    return releases
