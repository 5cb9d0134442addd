"""ε(δ), δ(ε) and μ of a list of releases, always rounded to the safe side.

Unsampled Gaussians and Laplace counts have closed forms, which hold for the discrete mechanisms
too. For sampling the least of three bounds counts: a privacy loss distribution, a Rényi bound, and
the closed forms without credit for sampling. No ε is ever below the closed form of the unsampled
Gaussians.

To add a mechanism, begin in mechanisms.py, which says how each release is accounted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pe.errors import PrivacyError
from pe.privacy import mechanisms
from pe.privacy.mechanisms import Parts, sort_parts
from pe.privacy.release import Release

_PLD_CAN = 2000.0


def epsilon(releases: Iterable[Release], delta: float, *, quick: bool = False) -> float:
    """Return the ε for which all `releases` together, chosen adaptively, are (ε, delta)-DP.

    The result is never too small.

    Args:
        releases: of one relation and one unit; if there are none, ε is 0.
        delta: strictly between 0 and 1; there is no default.
        quick: use only bounds that need no privacy loss distribution; this never makes the result
            smaller.

    Returns:
        ε ≥ 0; 0 if the releases are shown to be (0, delta)-DP; infinite if one of them is without
            noise.

    Raises:
        PrivacyError: delta is out of range, or too small to resolve, or `sort_parts` refuses the
            releases.
    """
    mechanisms.check_delta(delta)
    parts = sort_parts(releases)
    if parts.noiseless:
        return math.inf
    if not parts.samplings:
        return mechanisms.mixed_epsilon(math.sqrt(parts.gaussian), parts.laplace, delta)
    if not quick and _total_variation(parts) <= delta:
        bound = 0.0
    else:
        plain = math.sqrt(parts.without_sampling)
        bound = min(
            mechanisms.rdp_epsilon(parts, delta),
            mechanisms.mixed_epsilon(plain, parts.laplace, delta),
        )
    if not quick and 0 < bound < _PLD_CAN:
        bound = min(bound, mechanisms.pld_epsilon(parts, delta, bound))
    # whatever the numerics of the others: the unsampled Gaussians alone cost this much
    return max(bound, mechanisms.gaussian_epsilon(math.sqrt(parts.gaussian), delta))


def delta(releases: Iterable[Release], epsilon: float) -> float:
    """Return the δ for which all `releases` together are (epsilon, δ)-DP.

    The result is never too small. It is resolved to 1e-14.

    Raises:
        PrivacyError: epsilon is negative or not finite, or `sort_parts` refuses the releases.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise PrivacyError(f"`epsilon` must be a finite number of at least 0, not {epsilon!r}.")
    parts = sort_parts(releases)
    if parts.noiseless:
        return 1.0
    gaussian = math.sqrt(parts.gaussian)
    if not parts.samplings:
        return mechanisms.mixed_delta(gaussian, parts.laplace, epsilon)
    plain = math.sqrt(parts.without_sampling)
    bounds = [
        mechanisms.rdp_delta(parts, epsilon),
        mechanisms.mixed_delta(plain, parts.laplace, epsilon),
    ]
    if epsilon < _PLD_CAN:
        bounds.append(mechanisms.pld_delta(parts, epsilon))
    return max(min(bounds), mechanisms.mixed_delta(gaussian, (), epsilon))


def gdp_mu(releases: Iterable[Release]) -> float | None:
    """Return the μ for which all `releases` together are μ-GDP.

    Returns None unless all are unsampled Gaussians. Their noise is discrete, so this holds up to a
    factor of e^±1e-33 per draw in every probability.
    """
    parts = sort_parts(releases)
    if parts.laplace or parts.samplings or not parts.gaussian or parts.noiseless:
        return None
    return math.sqrt(parts.gaussian)


def _total_variation(parts: Parts) -> float:
    """Return a cheap upper bound on δ(0).

    Total variation adds up over releases, and sampling at rate q multiplies it by q.
    """
    gaussian = math.erf(math.sqrt(parts.gaussian) / math.sqrt(8))
    terms = (
        part.count * part.rate * math.erf((1 / part.noise_multiplier) / math.sqrt(8))
        for part in parts.samplings
    )
    laplace = (part.count * math.tanh(part.shift / part.scale / 2) for part in parts.laplace)
    return (gaussian + math.fsum((*terms, *laplace))) * (1 + 1e-10)
