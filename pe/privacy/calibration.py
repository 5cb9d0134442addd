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

    def at(z: float) -> float:
        return epsilon_of(releases(z), budget.delta)

    high = 1.0
    while (reached := at(high)) > budget.epsilon:
        high *= 4
        if high > MOST:
            raise PrivacyError(
                f"No noise brings this within ε = {budget.epsilon:g} at δ = {budget.delta:g}: "
                "what else is charged takes all of it. Raise epsilon or charge less."
            )
    low = high / 4
    while low >= LEAST and (missed := at(low)) <= budget.epsilon:
        high, reached, low = low, missed, low / 4
    if low < LEAST:
        return high
    tolerance = _CLOSED_TOLERANCE if sort_parts(releases(high)).closed else _SLOW_TOLERANCE
    return _narrow(at, budget.epsilon, (low, missed), (high, reached), tolerance)


def _narrow(
    at: Callable[[float], float], target: float, low: tuple[float, float], high: tuple[float, float], tolerance: float
) -> float:
    """The upper end of a bracket (z, ε(z)) once it is narrow: interpolation in logarithms, else bisection."""
    interpolate = True
    while high[0] / low[0] > 1 + tolerance:
        share = 0.5
        if interpolate and 0 < high[1] < low[1] < math.inf:
            share = math.log(low[1] / target) / math.log(low[1] / high[1])
        before = math.log(high[0] / low[0])
        guess = low[0] * (high[0] / low[0]) ** share
        for z in (guess, guess * (1 + tolerance / 2), guess / (1 + tolerance / 2)):
            if low[0] < z < high[0]:
                point = z, at(z)
                low, high = (low, point) if point[1] <= target else (point, high)
        interpolate = math.log(high[0] / low[0]) < before / 2
        if not low[0] < math.sqrt(low[0] * high[0]) < high[0]:
            break
    return high[0]


def noise_multiplier_for(budget: Budget, iterations: int, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The least noise multiplier with which `iterations` histograms meet `budget`, rounded up."""

    def releases(z: float) -> list[Release]:
        one = histograms(z, 1, relation=relation)
        return [replace(release, count=iterations) for release in one]

    return calibrate(releases, budget)


def vote_sensitivity(relation: Relation) -> float:
    """L2 sensitivity of a histogram to which each unit adds a vector of votes ≥ 0 with norm ≤ 1.

    1 when a unit comes, goes or is blanked; √2 when its votes a become b: ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩ ≤ 2.
    """
    return math.sqrt(2) if relation is Relation.REPLACE_ONE else 1.0


def histograms(
    noise_multiplier: float,
    iterations: int,
    *,
    relation: Relation = Relation.ADD_REMOVE,
    unit: str = "record",
    fractional: bool = False,
    weights: Sequence[float] | None = None,
) -> list[Release]:
    """The releases "histogram/1" … "histogram/T" of Private Evolution.

    Args:
        noise_multiplier: of every histogram; with `weights`, of one that has the mean weight.
        iterations: T ≥ 0.
        relation: the neighbouring relation; it settles the sensitivity.
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
    sensitivity = vote_sensitivity(relation)
    total = math.fsum(weights)
    releases = []
    for t, weight in enumerate(weights, start=1):
        z = noise_multiplier * math.sqrt(total / (iterations * weight))
        grid = grid_for(z, sensitivity, fractional)
        name = f"histogram/{t}"
        releases.append(Release(name, "discrete_gaussian", sensitivity, z, relation, unit, None, 1, grid))
    return releases
