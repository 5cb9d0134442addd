"""Audit: runs of the shipped histogram on neighbouring data sets bound its ε from below.

A canary is one privacy unit that is in the data of one world, and absent, replaced or blanked in
the data of the other. A test that says "the canary was there" does so with probability TPR when it
was and FPR when it was not. From k of n outcomes Clopper and Pearson (1934) bound each rate with an
exact confidence. Then

    μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR) for whatever is μ-GDP (Dong, Roth, Su 2022), ε ≥ ln((TPR − δ)/FPR), ε ≥
    ln((1 − FPR − δ)/(1 − TPR)) for whatever is (ε, δ)-DP.

The bound on μ becomes an ε(δ) by the closed form of Gaussian noise; the bounds on ε assume nothing,
and so need outcomes far out in the tails, where there are few.

Everything is the shipped code: the search, the votes, the ledger, the noise from the operating
system. Δ is the canary's effect on the votes; the statistic of a run is ⟨Δ, histogram⟩, summed over
the iterations, which no test can improve on if the noise is Gaussian. Thresholds are fixed before
any outcome is seen: one at half of ‖Δ‖², which bounds μ; two in the tails, which bound the
likelihood ratio.

One call of the mechanism holds many trials. Each trial has a block of bins, far from all other
blocks in the embedding space, with a few records and a canary; a coin decides whether the canary is
in the data. No canary reaches the block of another trial, so each block is a neighbouring pair, and
blocks are independent if their noise is. The audit also looks for noise that comes twice;
tests/privacy/test_noise.py shows that the bins of one call have independent noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.special import betaincinv, ndtr, ndtri

from pe.data.arrays import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array
from pe.data.samples import slices
from pe.errors import PrivacyError
from pe.histogram import Voting, count_votes, dp_nn_histogram, histogram_release
from pe.plugins.protocols import Vectors
from pe.privacy.accounting import epsilon, gdp_mu
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.mechanisms import check_delta, gaussian_epsilon
from pe.privacy.noise import Noise, SystemNoise
from pe.privacy.release import Relation, Release
from pe.private.embeddings import PrivateEmbeddings
from pe.progress import Progress

LABELS = 2
BLOCKS = 400
"""Most trials (blocks) in one call of the mechanism."""
SCALE = 2.0**30
"""Scale of DP-SGD's noise for σ = 1, in grid steps."""

_THRESHOLDS = 400
_REPLAYS = 4000
_DIMENSIONS = 16
_SEED = 20
_MOST_NEIGHBORS = 50
# higher bits are not even: the density falls over their period
_BITS = 16
_BINS = 64
_TAIL = 3.5


@dataclass(frozen=True)
class Rates:
    """Bounds on the rates of one test, each on the side that lowers the ε found."""

    true_positive: float  # lower bound of the TPR
    false_positive: float  # upper bound of the FPR

    @classmethod
    def of(cls, hits: int, alarms: int, runs: int, error: float) -> Rates:
        """Return bounds from `hits` and `alarms` in `runs` runs a world.

        Each is wrong with probability ≤ `error`.
        """
        return cls(float(lower(hits, runs, error)), float(upper(alarms, runs, error)))

    @property
    def mu(self) -> float:
        """The least μ of μ-GDP that allows these error rates.

        The result is 0 if even a mechanism that reveals nothing does.
        """
        return max(0.0, float(ndtri(self.true_positive) - ndtri(self.false_positive)))

    def epsilon(self, delta: float) -> float:
        """Return the least ε that allows these error rates, by the likelihood ratio.

        The result is 0 if even ε = 0 allows them.
        """
        return max(0.0, float(_log_ratio(self.true_positive, self.false_positive, delta)))

    @property
    def reverse(self) -> Rates:
        """The rates of the test that says "the canary was not there"."""
        return Rates(1 - self.false_positive, 1 - self.true_positive)


def lower(hits: npt.ArrayLike, runs: int, error: float) -> Float64Array:
    """Return Clopper and Pearson's lower bound of a probability.

    It is too high in at most a share `error` of experiments.
    """
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1e-12), runs - k + 1, error), 0.0)


def upper(hits: npt.ArrayLike, runs: int, error: float) -> Float64Array:
    """Return Clopper and Pearson's upper bound of a probability.

    It is too low in at most a share `error` of experiments.
    """
    return 1 - lower(runs - np.asarray(hits, dtype=np.float64), runs, error)


def tail_threshold(mu: float, delta: float, runs: int, error: float) -> float:
    """Return the threshold that is expected to give the largest bound on ε, if μ is `mu`.

    It is a threshold of the likelihood ratio, in standard deviations above the middle between the
    two worlds, and depends on public numbers alone.
    """
    thresholds = np.linspace(0, mu / 2 + 8, _THRESHOLDS)
    hits, alarms = (runs * ndtr(sign * mu / 2 - thresholds) for sign in (1, -1))
    bounds = _log_ratio(lower(hits, runs, error), upper(alarms, runs, error), delta)
    return float(thresholds[np.argmax(bounds)])


def chance_to_flag(mu: float, actual: float, runs: int, error: float) -> float:
    """Return the chance, simulated, that the test in the middle refutes `mu` if μ is `actual`."""
    rng = np.random.default_rng(0)
    hits, alarms = (rng.binomial(runs, ndtr(sign * actual / 2), _REPLAYS) for sign in (1, -1))
    return float(np.mean(ndtri(lower(hits, runs, error)) - ndtri(upper(alarms, runs, error)) > mu))


def _log_ratio(
    true_positive: npt.ArrayLike, false_positive: npt.ArrayLike, delta: float
) -> Float64Array:
    """Return ln((TPR − δ)/FPR). −∞ for TPR ≤ δ. An upper bound of the FPR is never 0."""
    above = np.maximum(np.asarray(true_positive) - delta, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(above) - np.log(np.asarray(false_positive)))


@dataclass(frozen=True)
class Claim:
    """T histograms, and the privacy claimed for all of them together. All values are public.

    Raises:
        PrivacyError: a value out of range.
    """

    noise_multiplier: float  # σ, of each histogram
    delta: float  # at which ε is stated; there is no default
    iterations: int = 1  # T ≥ 1
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"  # any other name makes the canary a user of four records under two labels
    neighbors: int = 1  # q, candidates that each record votes for, 1 to 50

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.iterations < 1:
            raise PrivacyError(f"An audit needs 1 iteration or more, not {self.iterations}.")
        if not 1 <= self.neighbors <= _MOST_NEIGHBORS:
            raise PrivacyError(
                f"An audit takes 1 to {_MOST_NEIGHBORS} neighbors, not {self.neighbors}."
            )

    def within(self, target: float) -> Claim:
        """Return the claim with the least noise that meets ε = `target`.

        Raise PrivacyError if no noise does.
        """

        def releases(noise_multiplier: float) -> list[Release]:
            return [replace(self._release(1, noise_multiplier), count=self.iterations)]

        return replace(self, noise_multiplier=calibrate(releases, Budget(target, self.delta)))

    @cached_property
    def releases(self) -> list[Release]:
        """The releases of the T histograms."""
        return [self._release(t, self.noise_multiplier) for t in range(1, self.iterations + 1)]

    @cached_property
    def epsilon(self) -> float:
        """The ε at δ that the ledger charges for all T releases."""
        return epsilon(self.releases, self.delta)

    @cached_property
    def mu(self) -> float:
        """The μ for which all T releases together are μ-GDP.

        Raise PrivacyError if this audit cannot judge them.
        """
        mu = gdp_mu(self.releases)
        if mu is None:
            raise PrivacyError(
                "These releases are no Gaussians on a fine grid: this audit cannot judge them."
            )
        return mu

    def _release(self, t: int, noise_multiplier: float) -> Release:
        return histogram_release(t, noise_multiplier, self.relation, self.unit, self.neighbors)


def influence(claim: Claim) -> float:
    """Return ‖Δ‖, the canary's effect on the votes, as a share of the declared sensitivity."""
    with_canary, without = clean_votes(claim)
    release = claim.releases[0]
    norm = math.sqrt(sum(int(step) ** 2 for step in with_canary - without))
    return norm / (release.grid * release.sensitivity)


def clean_votes(claim: Claim) -> tuple[Int64Array, Int64Array]:
    """Return one block's votes with and without the canary, without noise, in grid steps.

    No record is private.
    """
    places = candidates(claim, 1)
    grid = claim.releases[0].grid
    voting = Voting(claim.neighbors)
    with_canary, without = (
        count_votes(records(claim, np.array([present])), *places, grid, voting)
        for present in (True, False)
    )
    return with_canary, without


def _bins(claim: Claim) -> int:
    """Return how many bins a block has under each label.

    They are for a canary, its replacement, and others between them.
    """
    return max(10, 3 * claim.neighbors + 4)


def candidates(claim: Claim, blocks: int) -> tuple[Vectors, Int32Array]:
    """Return vectors and labels of all bins.

    In each block there is, under each label, a row of points at distance 1.
    """
    m = _bins(claim)
    place = np.tile(np.arange(m, dtype=np.float32), blocks * LABELS)
    labels = np.tile(np.repeat(np.arange(LABELS, dtype=np.int32), m), blocks)
    return _points(claim, np.repeat(np.arange(blocks), LABELS * m), place), labels


def records(claim: Claim, present: BoolArray) -> PrivateEmbeddings:
    """Return the records of all blocks, with the canary where `present`, else any replacement.

    In both worlds: two records at one bin, one half-way between two bins, one that is not finite,
    one under the other label. They vote for other bins than the canary, so that their votes hide no
    mistake in counting its votes.
    """
    last = _bins(claim) - 1.0
    middle = float(_bins(claim) // 2)
    both = [(0, middle), (0, middle), (0, middle - 0.5), (0, math.nan), (1, middle)]
    canary = [(0, 0.0)] if claim.unit == "record" else [(0, 0.0), (0, 0.0), (1, 0.0), (1, 0.0)]
    other: list[tuple[int, float]] = []
    if claim.relation is Relation.REPLACE_ONE:
        other = [(label, last) for label, _ in canary]
    elif claim.relation is Relation.ZERO_OUT:
        other = [(label, math.nan) for label, _ in canary]
    rows: list[tuple[int, int, float, int]] = []  # block, label, place, unit
    for block, is_there in enumerate(present):
        unit = block * (len(both) + 1)
        rows += [(block, label, place, unit + i) for i, (label, place) in enumerate(both)]
        rows += [
            (block, label, place, unit + len(both))
            for label, place in (canary if is_there else other)
        ]
    blocks, labels, places, units = map(np.array, zip(*rows, strict=True))
    vectors = _points(claim, blocks, places.astype(np.float32))
    return PrivateEmbeddings(vectors, labels.astype(np.int32), units.astype(np.int64), ("0", "1"))


def _points(claim: Claim, block: Int64Array, place: Float32Array) -> Vectors:
    """Return the points at `place` on their block's row.

    Rows are farther from each other than they are long.
    """
    corners = np.random.default_rng(_SEED).standard_normal((BLOCKS, _DIMENSIONS)).astype(np.float32)
    corners *= 4 * _bins(claim) / np.linalg.norm(corners, axis=1, keepdims=True)
    return np.concatenate([corners[block], place[:, None]], axis=1)


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    With probability `confidence` all bounds on ε and μ hold at once; so a mechanism that keeps its
    claim is called a violation with probability at most 1 − confidence.
    """

    claim: Claim
    runs: int  # in each of the two worlds
    confidence: float  # in (0, 1)
    mu: float  # lower bound on μ
    epsilon_gaussian: (
        float  # `mu` as ε at δ, which holds if the noise is Gaussian, of whatever size
    )
    epsilon_any: float  # lower bound on ε at δ that assumes nothing about the noise
    influence: float  # of the canary on the votes, as a share of the declared sensitivity
    repeats: int  # blocks of noise that came more than once; fresh noise gives 0

    @property
    def violations(self) -> list[str]:
        """Contradictions to the claim, one sentence each."""
        claim = self.claim
        violations = []
        if self.influence > 1 + 1e-9:
            violations.append(
                f"one {claim.unit} moves the votes by {self.influence:.4g} times the declared "
                "sensitivity"
            )
        if self.repeats:
            violations.append(f"{self.repeats} blocks of noise came more than once")
        if self.mu > claim.mu:
            violations.append(
                f"the noise is too small: μ is at least {self.mu:.4g}, not {claim.mu:.4g}"
            )
        if self.epsilon_any > claim.epsilon:
            violations.append(
                f"ε is at least {self.epsilon_any:.4g}, whatever the noise, not {claim.epsilon:.4g}"
            )
        return violations

    @property
    def verdict(self) -> str:
        """Either "no violation found", or "VIOLATION: " and why."""
        return (
            "VIOLATION: " + "; ".join(self.violations) if self.violations else "no violation found"
        )

    @property
    def chance_to_flag(self) -> float:
        """The probability that an audit with as many runs finds two thirds of the claimed noise."""
        return chance_to_flag(
            self.claim.mu, 1.5 * self.claim.mu, self.runs, _errors(self.confidence)[0]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        claim = self.claim
        return {
            "verdict": self.verdict,
            "violation": bool(self.violations),
            "claimed": asdict(claim)
            | {"relation": str(claim.relation), "epsilon": claim.epsilon, "mu": claim.mu},
            "at_least": {
                name: getattr(self, name) for name in ("mu", "epsilon_gaussian", "epsilon_any")
            },
            "confidence": self.confidence,
            "runs": self.runs,
            "influence": self.influence,
            "repeated": self.repeats,
            "chance_to_flag_two_thirds": self.chance_to_flag,
        }


def audit(
    claim: Claim,
    runs: int,
    confidence: float,
    noise: Noise | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Run the shipped histogram `runs` times in each of two neighbouring worlds and bound its ε.

    A mechanism that keeps its claim is flagged with probability at most 1 − confidence, of which
    each bound of Clopper and Pearson gets a share; if noise is exactly as claimed, two bounds must
    be wrong at once, which at 99.9 % happens less than once in a million audits.

    `runs` is 100 or more; 20,000 find noise of two thirds of the claimed size. `confidence`, in (0,
    1), is of all bounds together. `noise` is the mechanism's source of noise; None: the operating
    system's entropy, as shipped.

    Raises:
        PrivacyError: runs or confidence out of range.
    """
    if runs < 100:
        raise PrivacyError(f"An audit needs 100 runs a world or more, not {runs}.")
    if not 0 < confidence < 1:
        raise PrivacyError(f"A confidence lies strictly between 0 and 1, not {confidence!r}.")
    middle_error, tail_error = _errors(confidence)
    tail = tail_threshold(claim.mu, claim.delta, runs, tail_error)
    # in random order, so that nothing that drifts during the audit goes with one world
    worlds = np.random.default_rng(_SEED).permutation(np.repeat([True, False], runs))
    statistics, fingerprints = _sample(
        claim, worlds, noise or SystemNoise(), progress or Progress()
    )

    def rates(threshold: float, error: float) -> Rates:
        guesses = statistics > threshold
        return Rates.of(int((guesses & worlds).sum()), int((guesses & ~worlds).sum()), runs, error)

    # all three thresholds were fixed before any outcome was seen
    middle = rates(0.0, middle_error)
    high = rates(tail, tail_error)
    low = rates(-tail, tail_error)
    ratios = (middle, middle.reverse, high, low.reverse)
    return Audit(
        claim=claim,
        runs=runs,
        confidence=confidence,
        mu=middle.mu,
        epsilon_gaussian=gaussian_epsilon(middle.mu, claim.delta) if middle.mu else 0.0,
        epsilon_any=max(ratio.epsilon(claim.delta) for ratio in ratios),
        influence=influence(claim),
        repeats=len(fingerprints) - len(np.unique(fingerprints)),
    )


def _errors(confidence: float) -> tuple[float, float]:
    """Return the error of each of two middle and of each of four tail bounds.

    Each group has half of 1 − confidence.
    """
    return (1 - confidence) / 4, (1 - confidence) / 8


def _sample(
    claim: Claim, worlds: BoolArray, noise: Noise, progress: Progress
) -> tuple[Float64Array, Int64Array]:
    """Return a run's test statistic in each of `worlds`, and a fingerprint of each noise block."""
    statistics = np.zeros(len(worlds))
    noises = []
    with progress.task("auditing", len(worlds)) as task:
        for part in slices(len(worlds), BLOCKS):
            for statistic, fingerprint in _histograms(claim, worlds[part], noise):
                statistics[part] += statistic / math.sqrt(claim.iterations)
                noises.append(fingerprint)
            task.advance(len(worlds[part]))
    return statistics, np.concatenate(noises)


def _histograms(
    claim: Claim, present: BoolArray, noise: Noise
) -> Iterator[tuple[Float64Array, Int64Array]]:
    """Yield two arrays (blocks,) for each of the T histograms of one run of the mechanism.

    The first holds each block's test statistic, in standard deviations of the claimed noise, with 0
    in the middle between the worlds; the second a fingerprint of each block's noise.
    """
    private, (vectors, labels) = records(claim, present), candidates(claim, len(present))
    with_canary, without = clean_votes(claim)
    clean = np.where(present[:, None], with_canary, without)
    key = np.random.default_rng(_SEED).integers(-(2**62), 2**62, clean.shape[1]) | 1
    # The ledger refuses to exceed the claim. An ε of 0, where δ alone is met, is no budget.
    budget = Budget(max(claim.epsilon, 1e-9), claim.delta)
    ledger = Ledger(budget, claim.relation, claim.unit, claim.releases, MemoryStore(), noise)
    direction = (with_canary - without).astype(np.float64)
    middle = (with_canary + without) / 2
    length = np.linalg.norm(direction) or 1.0
    for release in claim.releases:
        voting = Voting(claim.neighbors)
        histogram = dp_nn_histogram(
            lambda: private, lambda: vectors, labels, release, ledger, voting
        )
        steps = histogram.reshape(clean.shape) * release.grid
        yield (
            (steps - middle) @ direction / (length * release.scale),
            (np.rint(steps).astype(np.int64) - clean) @ key,
        )


@dataclass(frozen=True)
class NoiseAudit:
    """The result of a test of the noise's bits."""

    draws: int
    tail: int  # draws that lie _TAIL standard deviations out or more
    p_values: dict[
        str, float
    ]  # by test: chance, if the noise is exact, of an outcome as unlikely as the one seen

    @property
    def p_value(self) -> float:
        """The p-value of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))


def audit_noise(noise: Noise, draws: int = 4_000_000) -> NoiseAudit:
    """Test `draws` draws of discrete Gaussian noise of scale SCALE, to the last bit.

    Needs 100 bytes a draw.

    Noise that lies on a lattice coarser than the integers, in its tail or anywhere, lets whoever
    knows all records but one tell from a released bit pattern whether that one was there. The tests
    ask for what exact noise has: low bits that are fair coins, among all draws and among the large
    ones, and the Gaussian law of the draws as a whole.
    """
    sizes = np.abs(noise.discrete_gaussian(draws, SCALE))
    tail = sizes[sizes >= _TAIL * SCALE]
    share = special.erf((sizes + 0.5) / SCALE / np.sqrt(2))
    counts = np.bincount(np.minimum((share * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)
    square = float(np.square(counts - draws / _BINS).sum() / (draws / _BINS))
    p_values = {
        "the Gaussian law": float(special.chdtrc(_BINS - 1, square)),
        "low bits of all draws": _evenness(sizes),
        "low bits of the tail": _evenness(tail),
    }
    return NoiseAudit(draws, len(tail), p_values)


def _evenness(sizes: Int64Array) -> float:
    """Return the p-value of the hypothesis that the low bits are independent fair coins."""
    ones = np.array([np.sum(sizes >> bit & 1) for bit in range(_BITS)], dtype=np.float64)
    square = float(np.square(2 * ones - len(sizes)).sum() / max(1, len(sizes)))
    return float(special.chdtrc(_BITS, square))
