"""Privacy loss distributions, by dp-accounting, for what has no closed form: sampling and coarse grids.

dp-accounting's traps (0.6.0) are met here: under replace-one it doubles sensitivities, so shifts are given
in units of the declared sensitivity; the discretisation follows ε, in both directions; its Fourier
transforms leave an absolute error in δ, so a slack is taken off δ and tiny δ is left to Rényi bounds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from pe.privacy.closed_form import FLOOR, MARGIN
from pe.privacy.laplace import laplace_losses
from pe.privacy.mechanisms import Lattice, Parts, Sampled

_MOST_POINTS = 100_000


def slack(parts: Parts) -> float:
    """What numerical error may hide in a PLD's δ: about 1e-16 per composition, times ten."""
    sampled = sum(part.count for part in parts.sampled)
    return 1e-14 + 1e-15 * (sampled + sum(part.count for part in parts.lattice))


def pld_epsilon(parts: Parts, delta: float, guess: float) -> float:
    """The smallest ε of the composition's PLD at `delta`, rounded up; ∞ where it cannot be computed.

    Args:
        parts: without crude zCDP parts (rho = 0).
        delta: the target.
        guess: an upper bound of ε, which sets the discretisation.
    """
    goal = delta - slack(parts)
    if goal < delta / 2:
        return math.inf
    epsilon = float(_compose(parts, guess).get_epsilon_for_delta(goal))
    return epsilon * (1 + MARGIN) + FLOOR if epsilon > 0 else 0.0


def pld_delta(parts: Parts, epsilon: float) -> float:
    """δ(ε) of the composition's PLD, rounded up."""
    delta = float(_compose(parts, max(epsilon, 1e-3)).get_delta_for_epsilon(epsilon))
    return min(1.0, delta * (1 + MARGIN) + slack(parts))


def _compose(parts: Parts, guess: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = _interval(parts, guess)
    total = pld.identity(value_discretization_interval=interval)
    if parts.gaussian:
        total = total.compose(_gaussian(1 / math.sqrt(parts.gaussian), interval))
    if parts.laplace:
        total = total.compose(_laplace(parts, interval))
    for part in (*parts.sampled, *parts.lattice):
        total = total.compose(_repeat(part, interval))
    return total


@lru_cache(maxsize=16)
def _gaussian(deviation: float, interval: float) -> Any:
    """All unsampled Gaussians together."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(deviation, value_discretization_interval=interval)


@lru_cache(maxsize=16)
def _repeat(part: Sampled | Lattice, interval: float) -> Any:
    """One part, all its repetitions together."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    if isinstance(part, Lattice):
        once = pld.from_discrete_gaussian_mechanism(
            part.scale, sensitivity=1, value_discretization_interval=interval, use_connect_dots=True
        )
    else:
        relation = NeighboringRelation.REPLACE_ONE if part.replace else NeighboringRelation.ADD_OR_REMOVE_ONE
        once = pld.from_gaussian_mechanism(
            part.noise_multiplier,
            sensitivity=0.5 if part.replace else 1.0,  # under REPLACE_ONE the two shifts are ± this
            sampling_prob=part.rate,
            value_discretization_interval=interval,
            neighboring_relation=relation,
        )
    return once.self_compose(part.count)


def _laplace(parts: Parts, interval: float) -> Any:
    """All discrete Laplace releases, their losses rounded up onto the interval."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    masses: dict[int, float] = {}
    for loss, weight in zip(*laplace_losses(parts.laplace), strict=True):
        key = math.ceil(float(loss) / interval - 1e-9)
        masses[key] = masses.get(key, 0.0) + float(weight)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(masses, 0.0, interval)


def _interval(parts: Parts, guess: float) -> float:
    """Fine enough for `guess`, coarse enough that no distribution has more than about _MOST_POINTS values.

    A power of two, so that neighbouring calls share their distributions.
    """
    ranges = [10 / part.noise_multiplier + 0.5 / part.noise_multiplier**2 for part in parts.sampled]
    ranges += [24 / lattice.scale + 0.5 / lattice.scale**2 for lattice in parts.lattice]
    mu = math.sqrt(parts.gaussian)
    ranges += [20 * mu + mu**2]
    interval = max(min(1e-4, guess / 1e4), max(ranges) / _MOST_POINTS, guess / _MOST_POINTS, 1e-9)
    return 2.0 ** math.floor(math.log2(interval))
