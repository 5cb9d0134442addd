"""The least noise that meets a target (ε, δ), rounded up until the recomputed ε is within it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pe.errors import PrivacyError
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.accounting import quick_epsilon
from pe.privacy.ledger import Budget
from pe.privacy.parts import sort_parts
from pe.privacy.release import Release

LEAST, MOST = 1e-3, 1e9
"""The range of noise multipliers that is searched."""

_CLOSED_TOLERANCE = 1e-12
_SLOW_TOLERANCE = 1e-5
_NEAR = 1e-2
"""How near the bounds that are quick are brought to the budget, to begin the slow search there."""


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

    def exactly(z: float) -> float:
        return epsilon_of(releases(z), budget.delta)

    if sort_parts(releases(1.0)).closed:
        return _least(exactly, budget, 1.0, 4.0, _CLOSED_TOLERANCE)
    near = _least(lambda z: quick_epsilon(releases(z), budget.delta), budget, 1.0, 4.0, _NEAR)
    return _least(exactly, budget, near, 1.25, _SLOW_TOLERANCE)


def _least(at: Callable[[float], float], budget: Budget, start: float, factor: float, tolerance: float) -> float:
    """The smallest z, up to `tolerance`, with at(z) within the budget; searched from `start` by steps of `factor`."""
    high = start
    while (reached := at(high)) > budget.epsilon:
        high *= factor
        if high > MOST:
            raise PrivacyError(
                f"No noise brings this within ε = {budget.epsilon:g} at δ = {budget.delta:g}: "
                "what else is charged takes all of it. Raise epsilon or charge less."
            )
    low = high / factor
    while low >= LEAST and (missed := at(low)) <= budget.epsilon:
        high, reached, low = low, missed, low / factor
    if low < LEAST:
        return high
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
