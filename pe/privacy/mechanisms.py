"""Mechanisms as numbers: how each release is accounted, and bounds on ε and δ.

docs/proofs.md ("Discrete noise", "Composition") proves which bound holds for which release.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import erf, erfcx, gammaln, log_ndtr, logsumexp, ndtri

from pe.data.arrays import Float64Array
from pe.errors import PrivacyError
from pe.privacy.release import CONVOLVED_FROM, Relation, Release

CONVOLVED = 2.0
"""r: discrete noise of scale s on integers is, up to a factor e^±1e-33 a draw, continuous noise of
scale √(s² − r²) followed by discrete noise of scale r around it. Proof in docs/proofs.md, "Discrete
noise"."""

MARGIN = 1e-10
"""Relative rounding to the safe side, far above the floating-point error of these formulas."""

FLOOR = 1e-15
"""Absolute rounding to the safe side. It also covers the pure-DP excess of 10^18 discrete draws."""


@dataclass(frozen=True)
class Laplace:
    """Discrete Laplace with an L1 shift of `shift` steps and scale `scale` steps, `count` times."""

    shift: int
    scale: float
    count: int


@dataclass(frozen=True)
class Sampled:
    """Poisson-sampled Gaussian, as if continuous, done `count` times.

    `replace`: two shifts, each of half the size.
    """

    noise_multiplier: float
    rate: float
    count: int
    replace: bool


@dataclass(frozen=True)
class Parts:
    """A composition, its releases sorted by how they are accounted."""

    gaussian: float  # μ² of the continuous Gaussians from which all unsampled ones follow
    laplace: tuple[Laplace, ...]
    samplings: tuple[Sampled, ...]
    noiseless: bool = False  # something is released without noise, so that no ε holds

    @property
    def without_sampling(self) -> float:
        """μ² of all Gaussians when sampling is not credited: always an upper bound."""
        return self.gaussian + math.fsum(
            part.count / part.noise_multiplier**2 for part in self.samplings
        )


def sort_parts(releases: Iterable[Release]) -> Parts:
    """Sort `releases`, which must share one relation and one unit.

    The result depends neither on the order of the releases nor on whether equal ones come one by
    one or as a count.

    Raises:
        PrivacyError: relations or units differ, a mechanism is unknown, or Gaussian noise has fewer
            grid steps than CONVOLVED_FROM.
    """
    releases = list(releases)
    kinds = {(release.relation, release.unit) for release in releases}
    if len(kinds) > 1:
        names = ", ".join(sorted(f"{relation}/{unit}" for relation, unit in kinds))
        raise PrivacyError(
            f"Releases of different relations or privacy units cannot be added up: {names}."
        )

    gaussian = Counter[float]()
    laplace = Counter[tuple[int, float]]()
    by_coins = Counter[tuple[float, float, bool]]()
    # docs/proofs.md says for each sort which bound holds; what has no sort is refused
    for release in releases:
        count = release.count
        if not release.has_noise:
            continue
        if release.mechanism == "discrete_laplace":
            laplace[math.ceil(release.grid * release.sensitivity), release.scale] += count
        elif release.mechanism != "discrete_gaussian":
            raise PrivacyError(
                f"Release '{release.name}' uses '{release.mechanism}', a mechanism that this "
                "accountant does not know."
            )
        elif release.sampling is not None:
            by_coins[
                _continuous(release),
                release.sampling.rate,
                release.relation is Relation.REPLACE_ONE,
            ] += count
        elif release.scale < CONVOLVED_FROM:
            raise PrivacyError(
                f"Release '{release.name}' has noise of {release.scale:.3g} grid steps, too few "
                f"for this accountant. Use a grid on which it has {CONVOLVED_FROM:g} or more."
            )
        else:
            gaussian[_continuous(release)] += count
    return Parts(
        gaussian=_squares(gaussian),
        laplace=tuple(Laplace(*key, count) for key, count in sorted(laplace.items())),
        samplings=tuple(
            Sampled(z, rate, count, two) for (z, rate, two), count in sorted(by_coins.items())
        ),
        noiseless=not all(release.has_noise for release in releases),
    )


def _continuous(release: Release) -> float:
    """Return the multiplier of the continuous Gaussian that this discrete one post-processes.

    The release has a scale of at least CONVOLVED_FROM.
    """
    return release.noise_multiplier * math.sqrt(1 - (CONVOLVED / release.scale) ** 2)


def _squares(counts: Counter[float]) -> float:
    """Return Σ count/z²."""
    return math.fsum(count / z**2 for z, count in sorted(counts.items()))


def check_delta(delta: float) -> float:
    """Return `delta`, which must lie strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError(f"`delta` must lie strictly between 0 and 1, not {delta!r}.")
    return float(delta)


# ε(δ) and δ(ε) of Gaussian noise in closed form.
#
# T Gaussian releases of noise multipliers σ_t, chosen adaptively, are together as private as one
# whose means lie μ = √Σ 1/σ_t² standard deviations apart (Dong, Roth and Su 2022, μ-GDP), and
# exactly (Balle and Wang 2018)
#
#     δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
#
# With u = ε/μ − μ/2, v = ε/μ + μ/2 and the Mills ratio M(x) = Φ(−x)/φ(x) we have e^ε φ(v) = φ(u),
# so
#
#     δ(ε) = φ(u)·(M(u) − M(v)),
#
# in which no large numbers cancel: μ from 1e-8 to 1e6 works.

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_delta(mu: float, epsilon: Float64Array) -> Float64Array:
    """Return ln δ(ε) of a μ-GDP Gaussian. `mu` > 0, every ε ≥ 0. Not rounded."""
    u = epsilon / mu - mu / 2
    v = epsilon / mu + mu / 2
    log_phi = -0.5 * u**2 - _LOG_SQRT_2PI
    high = np.maximum(u, -1.0)
    with np.errstate(divide="ignore"):
        right = log_phi + np.log(np.maximum(_mills(high) - _mills(v), 0.0))
    left = log_ndtr(-u) + np.log1p(
        -np.minimum(np.exp(log_phi - log_ndtr(-u)) * _mills(v), 1 - 1e-16)
    )
    return np.where(u >= -1.0, right, left)


def gaussian_delta(mu: float, epsilon: Float64Array) -> Float64Array:
    """Return δ(ε) of a μ-GDP Gaussian for any real ε. `mu` ≥ 0. Not rounded.

    For negative ε, δ(−x) = 1 − e^−x·(1 − δ(x)), because the pair of distributions is symmetric.
    """
    size = np.abs(epsilon)
    delta = np.zeros_like(size) if mu == 0 else np.exp(gaussian_log_delta(mu, size))
    return np.where(epsilon >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε ≥ 0 with δ(ε) ≤ delta for a μ-GDP Gaussian, rounded up. `mu` ≥ 0."""
    check_delta(delta)
    # δ(0) = 2Φ(μ/2) − 1
    if mu == 0 or float(erf(mu / math.sqrt(8))) * (1 + MARGIN) + FLOOR <= delta:
        return 0.0
    goal = math.log(delta)

    def meets(u: float) -> bool:
        return float(gaussian_log_delta(mu, np.array(mu * (u + mu / 2)))) <= goal

    # ε = μ·(u + μ/2); δ < Φ(−u) bounds u from above
    u = _least(meets, -mu / 2, max(-float(ndtri(delta)), -mu / 2), 200)
    return mu * (u + mu / 2) * (1 + MARGIN) + FLOOR


def _least(meets: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Return the least x that `meets`, from above, by halving the span from `low` to `high`."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def _mills(x: Float64Array) -> Float64Array:
    """Return the Mills ratio Φ(−x)/φ(x). It is small for x ≥ −1."""
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


# Gaussian and discrete Laplace releases together, in closed form.
#
# The privacy loss of the discrete Laplace mechanism of scale b (in steps) under a shift of k steps
# takes the k + 1 values (k − 2j)/b; a vector of shifts with L1 norm k is no worse than one shift of
# k (docs/proofs.md, "Class counts"). Given those losses, δ of the whole is an average of Gaussian
# δ's:
#
#     δ(ε) = Σ_i p_i · δ_μ(ε − loss_i).
#
# Where there are too many losses they are rounded up onto fewer values, which can only raise δ.

_MOST_LOSSES = 8192
_MOST_EACH = 1024


def laplace_losses(parts: Iterable[Laplace]) -> tuple[Float64Array, Float64Array]:
    """Return the losses of all `parts` together, ascending, rounded up, and their probabilities."""
    total = np.zeros(1), np.ones(1)
    for part in parts:
        values, weights = _losses(part, _MOST_LOSSES if len(total[0]) == 1 else _MOST_EACH)
        losses = np.add.outer(total[0], values).ravel()
        order = np.argsort(losses)
        total = _group(losses[order], np.multiply.outer(total[1], weights).ravel()[order])
    return total


def mixed_delta(mu: float, parts: tuple[Laplace, ...], epsilon: float) -> float:
    """Return δ(ε) of a μ-GDP Gaussian and `parts` together, rounded up. `mu` ≥ 0, epsilon ≥ 0."""
    losses, weights = laplace_losses(parts)
    return min(1.0, _delta(mu, losses, weights, epsilon) * (1 + MARGIN) + FLOOR)


def mixed_epsilon(mu: float, parts: tuple[Laplace, ...], delta: float) -> float:
    """Return the smallest ε ≥ 0 with δ(ε) ≤ delta for a μ-GDP Gaussian and `parts`, rounded up."""
    check_delta(delta)
    if not parts:
        return gaussian_epsilon(mu, delta)
    losses, weights = laplace_losses(parts)
    goal = (delta - FLOOR) / (1 + MARGIN)
    if goal <= 0:
        raise PrivacyError(f"`delta` = {delta:g} is too small: this accountant resolves 1e-14.")

    def meets(epsilon: float) -> bool:
        return _delta(mu, losses, weights, epsilon) <= goal

    if meets(0.0):
        return 0.0
    most = float(losses[-1]) + gaussian_epsilon(mu, delta)
    return _least(meets, 0.0, most, 60) * (1 + MARGIN) + FLOOR


def _delta(mu: float, losses: Float64Array, weights: Float64Array, epsilon: float) -> float:
    return math.fsum(weights * gaussian_delta(mu, epsilon - losses))


def _losses(part: Laplace, most: int) -> tuple[Float64Array, Float64Array]:
    """Return the losses of `part`, with all its repetitions, and their probabilities.

    There are about `most` values or fewer.
    """
    k = part.shift
    m = min(k, max(1, most // part.count))
    # Under the first neighbour x loses (k − 2j)/b with j = min(max(x, 0), k): the tails share one
    # loss each.
    steps = np.arange(k + 1, dtype=np.float64)
    weights = np.exp(-steps / part.scale) * -math.expm1(-1 / part.scale)
    weights[0] = 1.0
    weights[k] = math.exp(-k / part.scale)
    weights /= 1 + math.exp(-1 / part.scale)
    # rounds the loss up
    once = np.bincount((np.arange(k + 1) * m) // k, weights=weights, minlength=m + 1)
    many = np.ones(1)
    for bit in bin(part.count)[2:]:
        many = np.convolve(many, many)
        many = np.convolve(many, once) if bit == "1" else many
    values = (k / part.scale) * (part.count - 2 * np.arange(len(many)) / m)
    return values[::-1].copy(), many[::-1].copy()


def _group(losses: Float64Array, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Round the losses up onto _MOST_EACH values if there are more than _MOST_LOSSES.

    Probabilities of losses that fall together add up.
    """
    if len(losses) <= _MOST_LOSSES:
        return losses, weights
    edges = np.linspace(losses[0], losses[-1], _MOST_EACH)
    edges[-1] = losses[-1]
    groups = np.searchsorted(edges, losses)
    return edges, np.asarray(
        np.bincount(groups, weights=weights, minlength=_MOST_EACH), dtype=np.float64
    )


# Rényi bounds: they hold for every release at every size, and cost some per cent more ε.
#
# Discrete Gaussians satisfy the same zCDP as continuous ones, ρ = Σ(Δ/σ)²/2, in any dimension and
# on any grid (Canonne, Kamath and Steinke 2020, Thm. 14). Conversion to (ε, δ): their Prop. 12.

_ORDERS = 1 + np.logspace(-4, 8, 1500)
_SAMPLED_ORDERS = np.unique(
    np.concatenate([1 + np.arange(1, 40) / 10, np.round(np.logspace(0.7, 3.5, 60))])
)
_MOST_TERMS = 1000


def rdp_epsilon(parts: Parts, delta: float) -> float:
    """Return an ε for which the composition is (ε, delta)-DP, rounded up."""
    check_delta(delta)
    orders, divergence = rdp_curve(parts)
    with np.errstate(over="ignore", invalid="ignore"):
        epsilon = (
            divergence + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        )
    least = float(np.nanmin(epsilon))
    return least * (1 + MARGIN) + FLOOR if least > 0 else 0.0


def rdp_delta(parts: Parts, epsilon: float) -> float:
    """Return a δ for which the composition is (epsilon, δ)-DP, rounded up."""
    orders, divergence = rdp_curve(parts)
    log_delta = (orders - 1) * (divergence - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(0.0, float(np.min(log_delta)))) * (1 + MARGIN) + FLOOR)


def rdp_curve(parts: Parts) -> tuple[Float64Array, Float64Array]:
    """Return orders α > 1 and the Rényi divergence of the composition at each."""
    any_coins = any(not part.replace for part in parts.samplings)
    orders = _SAMPLED_ORDERS if any_coins else _ORDERS
    divergence = orders * (parts.gaussian / 2)
    for laplace in parts.laplace:
        # of any ε0-DP mechanism min(ε0, α·ε0²/2): Bun and Steinke 2016, Prop. 3.3
        pure = laplace.shift / laplace.scale
        divergence = divergence + laplace.count * np.minimum(pure, orders * pure**2 / 2)
    for part in parts.samplings:
        once = orders / (2 * part.noise_multiplier**2)
        # under replacement no curve credits the sampling
        if not part.replace:
            once = np.minimum(once, _sampled_curve(part.rate, part.noise_multiplier))
        divergence = divergence + part.count * once
    return orders, divergence


@lru_cache(maxsize=64)
def _sampled_curve(rate: float, noise_multiplier: float) -> Float64Array:
    """Return the curve of one Poisson-sampled Gaussian at _SAMPLED_ORDERS, under add/remove.

    Mironov, Talwar and Zhang 2019, Sec. 3.3: log A_α by its binomial sum for whole orders, by two
    series for others. An order whose series have not converged after _MOST_TERMS terms gets ∞, so
    it is not used.
    """
    whole = _SAMPLED_ORDERS % 1 == 0
    log_moments = np.empty(len(_SAMPLED_ORDERS))
    log_moments[whole] = [
        _whole_moment(rate, noise_multiplier, order) for order in _SAMPLED_ORDERS[whole]
    ]
    log_moments[~whole] = _fractional_moments(rate, noise_multiplier)
    curve: Float64Array = log_moments / (_SAMPLED_ORDERS - 1)
    return curve


def _whole_moment(rate: float, noise_multiplier: float, order: float) -> float:
    draws = np.arange(order + 1)
    return float(
        logsumexp(_term(_log_binomial(order, draws), draws, order - draws, rate, noise_multiplier))
    )


def _fractional_moments(rate: float, noise_multiplier: float) -> Float64Array:
    """Return log A_α at the orders between whole ones.

    All terms are added without their signs, which only raises it.
    """
    orders, log_binomial = _fractional_orders()
    i = np.arange(_MOST_TERMS, dtype=np.float64)
    rest = orders - i
    split = noise_multiplier**2 * math.log(1 / rate - 1) + 0.5
    below = _term(log_binomial, i, rest, rate, noise_multiplier) + log_ndtr(
        (split - i) / noise_multiplier
    )
    above = _term(log_binomial, rest, i, rate, noise_multiplier) + log_ndtr(
        (rest - split) / noise_multiplier
    )
    total = np.logaddexp.accumulate(np.logaddexp(below, above), axis=1)
    falls = (np.diff(below) < 0) & (np.diff(above) < 0)
    enough = falls & (np.maximum(below, above) < total - 30)[:, 1:]
    last = enough.argmax(axis=1) + 1
    return np.where(enough.any(axis=1), total[np.arange(len(orders)), last], math.inf)


@lru_cache(maxsize=1)
def _fractional_orders() -> tuple[Float64Array, Float64Array]:
    """Return the orders between whole ones, as a column, and their log binomial coefficients."""
    orders = _SAMPLED_ORDERS[_SAMPLED_ORDERS % 1 != 0][:, None]
    return orders, _log_binomial(orders, np.arange(_MOST_TERMS, dtype=np.float64))


def _term(
    log_binomial: Float64Array,
    draws: Float64Array,
    rest: Float64Array,
    rate: float,
    deviation: float,
) -> Float64Array:
    """Return the log of C(α, i)·q^draws·(1-q)^rest·exp((draws² - draws)/2σ²).

    q is `rate`, σ is `deviation`.
    """
    log_weight = draws * math.log(rate) + rest * math.log1p(-rate)
    return log_binomial + log_weight + (draws**2 - draws) / (2 * deviation**2)


def _log_binomial(order: Float64Array | float, i: Float64Array) -> Float64Array:
    return np.asarray(gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1))


# Privacy loss distributions, by dp-accounting, for what has no closed form: sampling.
#
# dp-accounting's traps (0.6.0) are met here: under replace-one it doubles sensitivities, so shifts
# are given in units of the declared sensitivity; the discretisation follows ε, in both directions;
# its Fourier transforms leave an absolute error in δ, so a slack is taken off δ and tiny δ is left
# to Rényi bounds.

_MOST_POINTS = 100_000


def pld_epsilon(parts: Parts, delta: float, guess: float) -> float:
    """Return the smallest ε of the composition's PLD at `delta`, rounded up, or ∞.

    It is ∞ where it cannot be computed. `guess`, an upper bound of ε, sets the discretisation.
    """
    goal = delta - _slack(parts)
    if goal < delta / 2:
        return math.inf
    epsilon = float(_compose(parts, guess).get_epsilon_for_delta(goal))
    return epsilon * (1 + MARGIN) + FLOOR if epsilon > 0 else 0.0


def pld_delta(parts: Parts, epsilon: float) -> float:
    """Return δ(ε) of the composition's PLD, rounded up."""
    delta = float(_compose(parts, max(epsilon, 1e-3)).get_delta_for_epsilon(epsilon))
    return min(1.0, delta * (1 + MARGIN) + _slack(parts))


def _slack(parts: Parts) -> float:
    """Return the error that a PLD's δ may hide: about 1e-16 per composition, times ten."""
    return 1e-14 + 1e-15 * sum(part.count for part in parts.samplings)


def _compose(parts: Parts, guess: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = _interval(parts, guess)
    total = pld.identity(value_discretization_interval=interval)
    if parts.gaussian:
        total = total.compose(_distribution(1 / math.sqrt(parts.gaussian), interval))
    if parts.laplace:
        masses: dict[int, float] = {}
        for loss, weight in zip(*laplace_losses(parts.laplace), strict=True):
            key = math.ceil(float(loss) / interval - 1e-9)  # rounds the loss up onto the interval
            masses[key] = masses.get(key, 0.0) + float(weight)
        total = total.compose(
            pld.PrivacyLossDistribution.create_from_rounded_probability(masses, 0.0, interval)
        )
    for part in parts.samplings:
        total = total.compose(_distribution(part, interval))
    return total


@lru_cache(maxsize=32)
def _distribution(part: float | Sampled, interval: float) -> Any:
    """Return the PLD of a part with its repetitions.

    A number stands for the noise multiplier of all unsampled Gaussians together.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    if isinstance(part, Sampled):
        relation = (
            NeighboringRelation.REPLACE_ONE
            if part.replace
            else NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        return pld.from_gaussian_mechanism(
            part.noise_multiplier,
            sensitivity=0.5 if part.replace else 1.0,  # under REPLACE_ONE the two shifts are ± this
            sampling_prob=part.rate,
            value_discretization_interval=interval,
            neighboring_relation=relation,
        ).self_compose(part.count)
    return pld.from_gaussian_mechanism(part, value_discretization_interval=interval)


def _interval(parts: Parts, guess: float) -> float:
    """Return a discretisation that is fine enough for `guess`.

    It is so coarse that no PLD has more than about _MOST_POINTS values.
    """
    ranges = [
        10 / part.noise_multiplier + 0.5 / part.noise_multiplier**2 for part in parts.samplings
    ]
    mu = math.sqrt(parts.gaussian)
    ranges += [20 * mu + mu**2]
    interval = max(min(1e-4, guess / 1e4), max(ranges) / _MOST_POINTS, guess / _MOST_POINTS, 1e-9)
    # a power of two, so that neighbouring calls share their distributions
    return 2.0 ** math.floor(math.log2(interval))
