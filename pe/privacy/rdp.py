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
_MOST_TERMS = 1000


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
    """The curve of one Poisson-sampled Gaussian at _SAMPLED_ORDERS, for adding or removing a unit.

    Mironov, Talwar and Zhang 2019, Sec. 3.3: log A_α by its binomial sum for whole orders, by two series for others. An
    order whose series have not converged after _MOST_TERMS terms is left out: ∞.
    """
    whole = _SAMPLED_ORDERS % 1 == 0
    log_moments = np.empty(len(_SAMPLED_ORDERS))
    log_moments[whole] = [_whole_moment(rate, noise_multiplier, order) for order in _SAMPLED_ORDERS[whole]]
    log_moments[~whole] = _fractional_moments(rate, noise_multiplier)
    curve: FloatArray = log_moments / (_SAMPLED_ORDERS - 1)
    return curve


def _whole_moment(rate: float, noise_multiplier: float, order: float) -> float:
    from scipy.special import logsumexp

    drawn = np.arange(order + 1)
    return float(logsumexp(_term(_log_binomial(order, drawn), drawn, order - drawn, rate, noise_multiplier)))


def _fractional_moments(rate: float, noise_multiplier: float) -> FloatArray:
    """Log A_α at the orders between whole ones; all terms are added without their signs, which only raises it."""
    from scipy.special import log_ndtr

    orders, log_binomial = _fractional_orders()
    i = np.arange(_MOST_TERMS, dtype=np.float64)
    rest, split = orders - i, noise_multiplier**2 * math.log(1 / rate - 1) + 0.5
    below = _term(log_binomial, i, rest, rate, noise_multiplier) + log_ndtr((split - i) / noise_multiplier)
    above = _term(log_binomial, rest, i, rate, noise_multiplier) + log_ndtr((rest - split) / noise_multiplier)
    total = np.logaddexp.accumulate(np.logaddexp(below, above), axis=1)
    falls = (np.diff(below) < 0) & (np.diff(above) < 0)
    done = falls & (np.maximum(below, above) < total - 30)[:, 1:]
    last = done.argmax(axis=1) + 1
    return np.where(done.any(axis=1), total[np.arange(len(orders)), last], math.inf)


@lru_cache(maxsize=1)
def _fractional_orders() -> tuple[FloatArray, FloatArray]:
    """As a column, and the logarithms of their binomial coefficients."""
    orders = _SAMPLED_ORDERS[_SAMPLED_ORDERS % 1 != 0][:, None]
    return orders, _log_binomial(orders, np.arange(_MOST_TERMS, dtype=np.float64))


def _term(log_binomial: FloatArray, drawn: FloatArray, rest: FloatArray, rate: float, deviation: float) -> FloatArray:
    """Log of C(α, i)·q^drawn·(1-q)^rest·exp((drawn² - drawn)/2σ²)."""
    log_weight = drawn * math.log(rate) + rest * math.log1p(-rate)
    return log_binomial + log_weight + (drawn**2 - drawn) / (2 * deviation**2)


def _log_binomial(order: FloatArray | float, i: FloatArray) -> FloatArray:
    from scipy.special import gammaln

    found: FloatArray = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    return found
