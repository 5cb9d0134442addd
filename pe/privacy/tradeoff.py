"""How often an attack may be right: the trade-off between hits and false alarms that releases leave possible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from pe.errors import PrivacyError
from pe.privacy.accounting import delta as delta_of
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.accounting import gdp_mu
from pe.privacy.release import Release
from pe.privacy.words import power

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
