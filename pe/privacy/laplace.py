"""Gaussian and discrete Laplace releases together, in closed form.

The privacy loss of the discrete Laplace mechanism of scale b (in steps) under a shift of k steps takes the
k + 1 values (k − 2j)/b; a vector of shifts with L1 norm k is no worse than one shift of k (docs/privacy.md,
"Class counts"). Given those losses, δ of the whole is an average of Gaussian δ's:

    δ(ε) = Σ_i p_i · δ_μ(ε − loss_i).

Where there are too many losses they are rounded up onto fewer values, which can only raise δ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pe.errors import PrivacyError
from pe.privacy.closed_form import FLOOR, MARGIN, FloatArray, check_delta, gaussian_delta, gaussian_epsilon
from pe.privacy.mechanisms import Laplace

_MOST_LOSSES = 8192
_MOST_EACH = 1024


def laplace_losses(parts: Iterable[Laplace]) -> tuple[FloatArray, FloatArray]:
    """The losses of all `parts` together, ascending, rounded up, and their probabilities."""
    total = np.zeros(1), np.ones(1)
    for part in parts:
        most = _MOST_LOSSES if len(total[0]) == 1 else _MOST_EACH
        own = _losses(part, most)
        losses = np.add.outer(total[0], own[0]).ravel()
        order = np.argsort(losses)
        total = _group(losses[order], np.multiply.outer(total[1], own[1]).ravel()[order])
    return total


def mixed_delta(mu: float, parts: tuple[Laplace, ...], epsilon: float) -> float:
    """δ(ε) of a μ-GDP Gaussian and `parts` together, rounded up; mu ≥ 0, epsilon ≥ 0."""
    losses, weights = laplace_losses(parts)
    return min(1.0, _delta(mu, losses, weights, epsilon) * (1 + MARGIN) + FLOOR)


def mixed_epsilon(mu: float, parts: tuple[Laplace, ...], delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ delta for a μ-GDP Gaussian and `parts` together, rounded up."""
    check_delta(delta)
    if not parts:
        return gaussian_epsilon(mu, delta)
    losses, weights = laplace_losses(parts)
    goal = (delta - FLOOR) / (1 + MARGIN)
    if goal <= 0:
        raise PrivacyError(f"delta = {delta:g} is below what this accountant resolves: 1e-14.")
    low, high = 0.0, float(losses[-1]) + gaussian_epsilon(mu, delta)
    if _delta(mu, losses, weights, low) <= goal:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if _delta(mu, losses, weights, middle) <= goal:
            high = middle
        else:
            low = middle
    return high * (1 + MARGIN) + FLOOR


def _delta(mu: float, losses: FloatArray, weights: FloatArray, epsilon: float) -> float:
    return math.fsum(weights * gaussian_delta(mu, epsilon - losses))


def _losses(part: Laplace, most: int) -> tuple[FloatArray, FloatArray]:
    """The losses of `part`, all its repetitions together, on a lattice of about `most` values at most."""
    k = part.shift
    m = min(k, max(1, most // part.count))
    # Under the first neighbour x loses (k − 2j)/b with j = min(max(x, 0), k): the tails share one loss each.
    steps = np.arange(k + 1, dtype=np.float64)
    weights = np.exp(-steps / part.scale) * -math.expm1(-1 / part.scale)
    weights[0], weights[k] = 1.0, math.exp(-k / part.scale)
    weights /= 1 + math.exp(-1 / part.scale)
    once = np.bincount((np.arange(k + 1) * m) // k, weights=weights, minlength=m + 1)  # rounds the loss up
    many = np.ones(1)
    for bit in bin(part.count)[2:]:
        many = np.convolve(many, many)
        many = np.convolve(many, once) if bit == "1" else many
    values = (k / part.scale) * (part.count - 2 * np.arange(len(many)) / m)
    return values[::-1].copy(), many[::-1].copy()


def _group(losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most _MOST_EACH values once there are too many: each group keeps its largest."""
    if len(losses) <= _MOST_LOSSES:
        return losses, weights
    edges = np.linspace(losses[0], losses[-1], _MOST_EACH)
    edges[-1] = losses[-1]
    groups = np.searchsorted(edges, losses)
    return edges, np.asarray(np.bincount(groups, weights=weights, minlength=_MOST_EACH), dtype=np.float64)
