"""The least noise that meets a target (ε, δ), rounded up until the recomputed ε is within it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal, localcontext

import numpy as np
from scipy.special import ndtr, ndtri

from pe.errors import PrivacyError
from pe.privacy.accounting import delta as delta_of
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.accounting import gdp_mu, quick_epsilon
from pe.privacy.ledger import Budget
from pe.privacy.mechanisms import sort_parts
from pe.privacy.release import Release
from pe.privacy.words import power

LEAST, MOST = 1e-3, 1e9
"""The range of noise multipliers that is searched."""

_DIGITS = 10
"""Significant digits of what is found: a run goes on where sums round otherwise, for it finds the same noise."""

_CLOSED_TOLERANCE = 1e-12
_SLOW_TOLERANCE = 1e-5
_NEAR = 1e-2
"""How near the bounds that are quick are brought to the budget, to begin the slow search there."""

_FAR = 50.0
"""An ε so many times e beyond the target, or below it, tells the search no more than that it is far."""


def calibrate(releases: Callable[[float], Sequence[Release]], budget: Budget) -> float:
    """The smallest z (from above) for which `releases(z)` together meet `budget`.

    Args:
        releases: z → the whole composition, with whatever stays fixed; more z must mean more noise.
        budget: the target.

    Returns:
        z of ten significant digits with epsilon(releases(z), δ) ≤ ε, at most a relative 1e-9 (1e-5 where an ε takes
        a privacy loss distribution) above the smallest such z.

    Raises:
        PrivacyError: no amount of noise meets the target, as when the fixed releases exceed it.
    """

    def exactly(z: float) -> float:
        return epsilon_of(releases(z), budget.delta)

    if sort_parts(releases(1.0)).closed:
        return _least(exactly, budget, 1.0, 4.0, _CLOSED_TOLERANCE)
    try:
        near = _least(lambda z: quick_epsilon(releases(z), budget.delta), budget, 1.0, 4.0, _NEAR)
    except PrivacyError:  # what is fixed exceeds the target by the quick bounds, which may be far above its ε
        if exactly(MOST) > budget.epsilon:
            raise
        return _least(exactly, budget, 1.0, 4.0, _SLOW_TOLERANCE)
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
    return _narrow(at, budget.epsilon, {math.log(low): missed, math.log(high): reached}, tolerance)


def _narrow(at: Callable[[float], float], target: float, known: dict[float, float], tolerance: float) -> float:
    """The z between two of which one misses the target and one meets it: Brent's method, on logarithms.

    Args:
        at: z → ε, falling.
        target: ε.
        known: the two: ln z → ε.
        tolerance: relative, of z.
    """
    from scipy.optimize import brentq

    low, high = known

    def excess(log_z: float) -> float:
        if log_z not in known:
            known[log_z] = at(math.exp(log_z))
        return max(-_FAR, min(_FAR, math.log(max(known[log_z], sys.float_info.min) / target)))

    found = _round_up(math.exp(brentq(excess, low, high, xtol=tolerance / 4)))
    while at(found) > target:  # Brent's point may lie on either side, and rounding may make ε uneven: go up
        found = _round_up(found * (1 + tolerance / 2))
    return found


def _round_up(z: float) -> float:
    """The least number of so many significant digits that is not below z."""
    with localcontext(prec=_DIGITS, rounding=ROUND_CEILING):
        return float(+Decimal(z))


# How often an attack may be right: the trade-off between hits and false alarms that releases leave possible.


_POINTS = 9


def most_hits(releases: Iterable[Release], false_alarms: Sequence[float], delta: float) -> list[float]:
    """The largest share of members that any attack on all `releases` together can name, for each of `false_alarms`.

    Of unsampled Gaussians this is their own trade-off curve, Φ(Φ⁻¹(α) + μ) (Dong, Roth, Su 2022). Else it is the least
    of the bounds by (ε', δ(ε')) at nine ε' from 0 to the ε at `delta`: each holds, so their least does.

    Args:
        releases: of one relation and one unit.
        false_alarms: α: shares of non-members that the attack takes for members, in (0, 1).
        delta: strictly between 0 and 1.

    Raises:
        PrivacyError: a share or delta is out of range, or releases do not add up.
    """
    if not all(0 < alpha < 1 for alpha in false_alarms):
        raise PrivacyError(f"A share of false alarms lies between 0 and 1, and these are {list(false_alarms)}.")
    releases = list(releases)
    if (mu := gdp_mu(releases)) is not None:
        return [float(ndtr(ndtri(alpha) + mu)) for alpha in false_alarms]
    most = epsilon_of(releases, delta)
    if math.isinf(most):
        return [1.0] * len(false_alarms)
    points = [(float(at), delta_of(releases, float(at))) for at in np.linspace(0, most, _POINTS)]
    return [min(power(*point, alpha) for point in points) for alpha in false_alarms]
