"""ε(δ) and δ(ε) of Gaussian noise in closed form.

T Gaussian releases of noise multipliers σ_t, chosen adaptively, are together as private as one whose
means lie μ = √Σ 1/σ_t² standard deviations apart (Dong, Roth and Su 2022, μ-GDP), and exactly
(Balle and Wang 2018)

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

With u = ε/μ − μ/2, v = ε/μ + μ/2 and the Mills ratio M(x) = Φ(−x)/φ(x) we have e^ε φ(v) = φ(u), so

    δ(ε) = φ(u)·(M(u) − M(v)),

in which no large numbers cancel: μ from 1e-8 to 1e6 works.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, log_ndtr, ndtri

from pe.errors import PrivacyError

FloatArray = npt.NDArray[np.float64]

MARGIN = 1e-10
"""Relative rounding to the safe side, far above the floating-point error of these formulas."""

FLOOR = 1e-15
"""Absolute rounding to the safe side. It also covers the pure-DP excess of 10^18 discrete draws."""

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def check_delta(delta: float) -> float:
    """`delta` itself, if it lies strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta lies strictly between 0 and 1, not {delta!r}.")
    return float(delta)


def gaussian_log_delta(mu: float, epsilon: FloatArray) -> FloatArray:
    """Natural logarithm of δ(ε) of a μ-GDP Gaussian; mu > 0, every ε ≥ 0. Not rounded."""
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_phi = -0.5 * u**2 - _LOG_SQRT_2PI
    high = np.maximum(u, -1.0)
    with np.errstate(divide="ignore"):
        right = log_phi + np.log(np.maximum(_mills(high) - _mills(v), 0.0))
    left = log_ndtr(-u) + np.log1p(-np.minimum(np.exp(log_phi - log_ndtr(-u)) * _mills(v), 1 - 1e-16))
    return np.where(u >= -1.0, right, left)


def gaussian_delta(mu: float, epsilon: FloatArray) -> FloatArray:
    """δ(ε) of a μ-GDP Gaussian for any real ε; mu ≥ 0. Not rounded.

    Negative ε through δ(−x) = 1 − e^−x·(1 − δ(x)), which holds because the pair is symmetric.
    """
    size = np.abs(epsilon)
    delta = np.zeros_like(size) if mu == 0 else np.exp(gaussian_log_delta(mu, size))
    return np.where(epsilon >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ delta for a μ-GDP Gaussian, rounded up; mu ≥ 0."""
    check_delta(delta)
    if float(erf(mu / math.sqrt(8))) * (1 + MARGIN) + FLOOR <= delta or mu == 0:  # δ(0) = 2Φ(μ/2) − 1
        return 0.0
    # ε = μ·(u + μ/2); δ < Φ(−u) bounds u from above.
    low, high = -mu / 2, max(-float(ndtri(delta)), -mu / 2)
    goal = math.log(delta)
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float(gaussian_log_delta(mu, np.array(mu * (middle + mu / 2)))) <= goal:
            high = middle
        else:
            low = middle
    return mu * (high + mu / 2) * (1 + MARGIN) + FLOOR


def _mills(x: FloatArray) -> FloatArray:
    """Φ(−x)/φ(x); x ≥ −1 keeps it small."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))
