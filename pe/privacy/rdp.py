"""Rényi bounds: they hold for every release at every size, and cost some per cent more ε.

Discrete Gaussians satisfy the same zCDP as continuous ones, ρ = Σ(Δ/σ)²/2, in any dimension and on any grid
(Canonne, Kamath and Steinke 2020, Thm. 14). Conversion to (ε, δ): their Prop. 12.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pe.privacy.closed_form import FLOOR, MARGIN, FloatArray, check_delta
from pe.privacy.mechanisms import Laplace, Parts

_ORDERS = 1 + np.logspace(-4, 8, 1500)
_SAMPLED_ORDERS = np.unique(np.concatenate([1 + np.arange(1, 40) / 10, np.round(np.logspace(0.7, 3.5, 60))]))


def rdp_epsilon(parts: Parts, delta: float) -> float:
    """An ε for which the composition is (ε, delta)-DP, rounded up."""
    check_delta(delta)
    orders, divergence = rdp_curve(parts)
    with np.errstate(over="ignore", invalid="ignore"):
        epsilon = divergence + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    least = float(np.nanmin(epsilon))
    return least * (1 + MARGIN) + FLOOR if least > 0 else 0.0


def rdp_delta(parts: Parts, epsilon: float) -> float:
    """A δ for which the composition is (epsilon, δ)-DP, rounded up."""
    orders, divergence = rdp_curve(parts)
    log_delta = (orders - 1) * (divergence - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(0.0, float(np.min(log_delta)))) * (1 + MARGIN) + FLOOR)


def rdp_curve(parts: Parts) -> tuple[FloatArray, FloatArray]:
    """Orders α > 1 and the Rényi divergence of the composition at each."""
    sampled = any(not part.replace for part in parts.sampled)
    orders = _SAMPLED_ORDERS if sampled else _ORDERS
    rho = parts.gaussian / 2 + parts.rho + math.fsum(part.count / (2 * part.scale**2) for part in parts.lattice)
    divergence = orders * rho
    for laplace in parts.laplace:
        divergence = divergence + laplace.count * _pure_rdp(laplace, orders)
    for part in parts.sampled:
        plain = orders / (2 * part.noise_multiplier**2)
        once = plain if part.replace else np.minimum(plain, _sampled_curve(part.rate, part.noise_multiplier))
        divergence = divergence + part.count * once
    return orders, divergence


def _pure_rdp(part: Laplace, orders: FloatArray) -> FloatArray:
    """Of any ε0-DP mechanism, ε0 = shift/scale: min(ε0, α·ε0²/2) (Bun and Steinke 2016, Prop. 3.3)."""
    pure = part.shift / part.scale
    return np.minimum(pure, orders * pure**2 / 2)


@lru_cache(maxsize=64)
def _sampled_curve(rate: float, noise_multiplier: float) -> FloatArray:
    """The curve of one Poisson-sampled Gaussian at _SAMPLED_ORDERS, for adding or removing a unit."""
    from absl import logging
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(list(_SAMPLED_ORDERS))
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns of every order at which its series diverges, and leaves that out
    try:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)))
    finally:
        logging.set_verbosity(verbosity)
    return np.asarray(accountant.rdp)
