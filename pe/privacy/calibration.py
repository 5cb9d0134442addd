"""Noise that meets a target (ε, δ), and the most hits that an attack can have."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import partial

import numpy as np
from scipy.special import ndtr, ndtri

from pe.errors import PrivacyError
from pe.privacy.accounting import delta as delta_of
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.accounting import gdp_mu
from pe.privacy.certificate_text import power
from pe.privacy.ledger import Budget
from pe.privacy.mechanisms import sort_parts
from pe.privacy.release import Release

LEAST = 1e-3
MOST = 1e9
"""The range of noise multipliers that is searched."""

_DIGITS = 10
"""Significant digits of a multiplier: so few that a machine on which sums round differently finds
the same noise."""

_CLOSED_TOLERANCE = 1e-12
_SLOW_TOLERANCE = 1e-5
_NEAR = 1e-2
"""Relative tolerance of the search by quick bounds. The slow search begins at the z which the quick
one finds."""

_FAR = 50.0
"""Bound on |ln(ε/target)| in the search: beyond it, an ε tells only on which side of the target it
is."""

_POINTS = 9


def calibrate(releases: Callable[[float], Sequence[Release]], budget: Budget) -> float:
    """Return the smallest z, rounded up, for which `releases(z)` together meet `budget`.

    Args:
        releases: z → the whole composition, including releases that z does not change; larger z
            must mean more noise.
        budget: the target.

    Returns:
        z of ten significant digits with epsilon(releases(z), δ) ≤ ε. It exceeds the smallest such z
            by a relative 1e-9 at most, or 1e-5 where ε takes a privacy loss distribution.

    Raises:
        PrivacyError: no amount of noise meets the target, for example because the fixed releases
            exceed it.
    """

    def exactly(z: float, quick: bool = False) -> float:
        return epsilon_of(releases(z), budget.delta, quick=quick)

    if not sort_parts(releases(1.0)).samplings:
        return _least(exactly, budget, 1.0, 4.0, _CLOSED_TOLERANCE)
    try:
        near = _least(partial(exactly, quick=True), budget, 1.0, 4.0, _NEAR)
    except PrivacyError:
        # by the quick bounds the fixed releases exceed the target, but these may be far too large
        if exactly(MOST) > budget.epsilon:
            raise
        return _least(exactly, budget, 1.0, 4.0, _SLOW_TOLERANCE)
    return _least(exactly, budget, near, 1.25, _SLOW_TOLERANCE)


def _least(
    at: Callable[[float], float], budget: Budget, start: float, factor: float, tolerance: float
) -> float:
    """Return the smallest z, up to `tolerance`, whose ε, at(z), meets the budget.

    The search begins at `start` and goes in steps of `factor`.
    """
    high = start
    high_epsilon = at(high)
    while high_epsilon > budget.epsilon:
        high *= factor
        if high > MOST:
            raise PrivacyError(
                f"No amount of noise keeps this within ε = {budget.epsilon:g} at δ = "
                f"{budget.delta:g}, because the other releases use it up. Raise `epsilon`, or "
                "plan fewer releases."
            )
        high_epsilon = at(high)
    # `start` may lie far above the least z: go down to the last step that meets the budget
    while high / factor >= LEAST:
        low = high / factor
        low_epsilon = at(low)
        if low_epsilon > budget.epsilon:
            values = {math.log(low): low_epsilon, math.log(high): high_epsilon}
            return _narrow(at, budget.epsilon, values, tolerance)
        high = low
        high_epsilon = low_epsilon
    return high


def _narrow(
    at: Callable[[float], float], target: float, values: dict[float, float], tolerance: float
) -> float:
    """Find z by Brent's method between the two points of `values` (ln z → ε).

    The second point meets the target.
    """
    from scipy.optimize import brentq

    low, high = values

    def excess(log_z: float) -> float:
        if log_z not in values:
            values[log_z] = at(math.exp(log_z))
        return max(-_FAR, min(_FAR, math.log(max(values[log_z], sys.float_info.min) / target)))

    z = _round_up(math.exp(brentq(excess, low, high, xtol=tolerance / 4)))
    # Brent's point may lie on either side, and rounding may make ε uneven: go up
    while at(z) > target:
        z = _round_up(z * (1 + tolerance / 2))
    return z


def _round_up(z: float) -> float:
    with localcontext(prec=_DIGITS, rounding=ROUND_CEILING):
        return float(+Decimal(z))


def most_hits(
    releases: Iterable[Release], false_alarms: Sequence[float], delta: float
) -> list[float]:
    """Return, for each of `false_alarms`, the largest share of members that any attack can name.

    The attack sees all `releases`. Unsampled Gaussians have a trade-off curve, Φ(Φ⁻¹(α) + μ) (Dong,
    Roth, Su 2022). For others the result is the least of the bounds by (ε', δ(ε')) at nine ε' from
    0 to the ε at `delta`: each of these bounds holds.

    Args:
        releases: of one relation and one unit.
        false_alarms: the shares α of non-members that the attack takes for members, each in (0, 1).
        delta: strictly between 0 and 1.

    Raises:
        PrivacyError: a share or delta is out of range, or `sort_parts` refuses the releases.
    """
    if not all(0 < alpha < 1 for alpha in false_alarms):
        raise PrivacyError(
            f"Each share of false alarms must lie between 0 and 1, not {list(false_alarms)}."
        )
    releases = list(releases)
    mu = gdp_mu(releases)
    if mu is not None:
        return [float(ndtr(ndtri(alpha) + mu)) for alpha in false_alarms]
    most = epsilon_of(releases, delta)
    if math.isinf(most):
        return [1.0] * len(false_alarms)
    points = [(float(at), delta_of(releases, float(at))) for at in np.linspace(0, most, _POINTS)]
    return [min(power(*point, alpha) for point in points) for alpha in false_alarms]
