"""From how often a test is right and wrong to lower bounds on μ and ε, and how much such a test can see.

A test that says "the canary was there" does so with probability TPR when it was and FPR when it was not. From
k of n outcomes Clopper and Pearson (1934) bound either with an exact confidence. Then

    μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR)                                     for whatever is μ-GDP (Dong, Roth, Su 2022),
    ε ≥ ln((TPR − δ)/FPR),  ε ≥ ln((1 − FPR − δ)/(1 − TPR))     for whatever is (ε, δ)-DP.

The first becomes an ε(δ) by the closed form of Gaussian noise; the others assume nothing, and so need outcomes
far out in the tails, where there are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtr, ndtri

Reals = npt.NDArray[np.float64]

_THRESHOLDS = 400
_REPLAYS = 4000


@dataclass(frozen=True)
class Rates:
    """Both error rates of one test, bounded on the side that lowers ε.

    Attributes:
        true_positive: lower bound of the TPR.
        false_positive: upper bound of the FPR.
    """

    true_positive: float
    false_positive: float

    @classmethod
    def of(cls, hits: int, alarms: int, runs: int, error: float) -> Rates:
        """From `hits` and `alarms` in `runs` runs a world; each bound is wrong with probability ≤ `error`."""
        return cls(float(lower(hits, runs, error)), float(upper(alarms, runs, error)))

    @property
    def mu(self) -> float:
        """The least μ with which these rates are possible; 0 if all are."""
        return max(0.0, float(ndtri(self.true_positive) - ndtri(self.false_positive)))

    def epsilon(self, delta: float) -> float:
        """The least ε with which these rates are possible, by the likelihood ratio; 0 if all are."""
        return max(0.0, float(_log_ratio(self.true_positive, self.false_positive, delta)))

    @property
    def mirrored(self) -> Rates:
        """The rates of the test that says "the canary was not there"."""
        return Rates(1 - self.false_positive, 1 - self.true_positive)


def lower(hits: npt.ArrayLike, runs: int, error: float) -> Reals:
    """Clopper–Pearson: above the true probability in at most a share `error` of all experiments."""
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1e-12), runs - k + 1, error), 0.0)


def upper(hits: npt.ArrayLike, runs: int, error: float) -> Reals:
    """Clopper–Pearson: below the true probability in at most a share `error` of all experiments."""
    return 1 - lower(runs - np.asarray(hits, dtype=np.float64), runs, error)


def tail_threshold(mu: float, delta: float, runs: int, error: float) -> float:
    """Where to put the likelihood ratio's threshold: where a mechanism with this μ promises the largest bound.

    It is given in standard deviations above the middle between the two worlds, and depends on public
    numbers alone.
    """
    thresholds = _thresholds(mu)
    return float(thresholds[np.argmax(_expected_bound(mu, thresholds, delta, runs, error))])


def chance_to_flag(mu: float, actual: float, runs: int, error: float) -> float:
    """With which probability the threshold in the middle refutes μ where μ is `actual` (by simulation)."""
    rng = np.random.default_rng(0)
    hits, alarms = (rng.binomial(runs, ndtr(sign * actual / 2), _REPLAYS) for sign in (1, -1))
    found = ndtri(lower(hits, runs, error)) - ndtri(upper(alarms, runs, error))
    return float(np.mean(found > mu))


def runs_to_flag(actual: float, epsilon: float, delta: float, error: float) -> float:
    """How many runs a world the likelihood ratio needs to refute `epsilon` where μ is `actual`; ∞ above 1e12.

    At two standard deviations of bad luck, so that it nearly always succeeds.
    """
    thresholds, runs = _thresholds(actual), 100.0
    while runs < 1e12:
        if _expected_bound(actual, thresholds, delta, runs, error, luck=-2.0).max() > epsilon:
            return runs
        runs *= 1.1
    return math.inf


def _thresholds(mu: float) -> Reals:
    return np.linspace(0, mu / 2 + 8, _THRESHOLDS)


def _expected_bound(mu: float, thresholds: Reals, delta: float, runs: float, error: float, luck: float = 0.0) -> Reals:
    """The likelihood ratio's bound on ε with the expected counts, or counts off by `luck` deviations."""
    tpr, fpr = ndtr(mu / 2 - thresholds), ndtr(-mu / 2 - thresholds)
    hits = np.clip(runs * tpr + luck * np.sqrt(runs * tpr), 0, runs)
    alarms = np.clip(runs * fpr - luck * np.sqrt(runs * fpr), 0, runs)
    low, high = (np.asarray(bound) for bound in (lower(hits, int(runs), error), upper(alarms, int(runs), error)))
    return _log_ratio(low, high, delta)


def _log_ratio(true_positive: npt.ArrayLike, false_positive: npt.ArrayLike, delta: float) -> Reals:
    """ln((TPR − δ)/FPR); −∞ where TPR ≤ δ. A bound of the FPR is never 0."""
    above = np.maximum(np.asarray(true_positive) - delta, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(above) - np.log(np.asarray(false_positive)))
