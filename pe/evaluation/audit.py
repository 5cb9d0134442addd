"""Audit: the shipped histogram, run many times on neighbouring data sets, tells how much it gives away.

A canary is one privacy unit that is in the data (or, under replace-one, is itself) in one world and is not in
the other. Everything is the shipped code: the search, the votes, the ledger, the noise from the operating
system. Δ is what the canary does to the votes; the statistic of a run is ⟨Δ, histogram⟩, summed over the
iterations, which no test can improve on where the noise is Gaussian. Thresholds are fixed before any outcome is
seen: one at half of ‖Δ‖², which bounds μ; two in the tails, which bound the likelihood ratio.

One call of the mechanism holds many trials side by side. Each has a block of bins of its own, far from all
others in the embedding space, records of its own and a canary of its own, in the data or not by a coin. For
one block, all else held fixed, the two worlds are two neighbouring data sets, and what is looked at is its
part of the mechanism's output. A canary reaches no block but its own (a vote depends on the record and the
candidates alone), so that blocks are independent as far as their noise is. Noise that comes twice is looked
for beside the bounds; that the bins of one call have independent noise is shown in tests/privacy/test_noise.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.evaluation.audit_bounds import Rates, chance_to_flag, runs_to_flag, tail_threshold
from pe.histogram import count_votes, dp_nn_histogram, histogram_release
from pe.privacy.accounting import epsilon, gdp_mu
from pe.privacy.calibration import calibrate
from pe.privacy.closed_form import check_delta, gaussian_epsilon
from pe.privacy.ledger import Budget, Ledger
from pe.privacy.noise import Noise, SystemNoise
from pe.privacy.release import Relation, Release
from pe.privacy.store import MemoryStore
from pe.private.embeddings import PrivateEmbeddings
from pe.protocols import Vectors
from pe.run.progress import Progress

Mask = npt.NDArray[np.bool_]
Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LABELS = 2
BLOCKS = 400
"""Trials in one call of the mechanism."""

_DIMENSIONS = 32
_SEED = 20
_MOST_NEIGHBORS = 50


@dataclass(frozen=True)
class Claim:
    """What is audited: T histograms and what is promised for all of them together. Public numbers only.

    Attributes:
        noise_multiplier: σ, of each histogram.
        delta: δ at which ε is stated; there is no default.
        iterations: T ≥ 1.
        relation: which two worlds are neighbours.
        unit: "record"; any other name makes the canary a user of three records under two labels.
        neighbors: q, candidates that each record votes for, 1 to 50.

    Raises:
        PrivacyError: a value out of range.
    """

    noise_multiplier: float
    delta: float
    iterations: int = 1
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    neighbors: int = 1

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.iterations < 1:
            raise PrivacyError(f"An audit needs 1 iteration or more, not {self.iterations}.")
        if not 1 <= self.neighbors <= _MOST_NEIGHBORS:
            raise PrivacyError(f"An audit takes 1 to {_MOST_NEIGHBORS} neighbors, not {self.neighbors}.")

    def within(self, target: float) -> Claim:
        """The same with the least noise that meets ε = `target`; its own noise multiplier does not matter.

        Raises:
            PrivacyError: no noise does.
        """

        def releases(noise_multiplier: float) -> list[Release]:
            return [replace(self._release(1, noise_multiplier), count=self.iterations)]

        return replace(self, noise_multiplier=calibrate(releases, Budget(target, self.delta)))

    @cached_property
    def releases(self) -> list[Release]:
        """The T releases."""
        return [self._release(t, self.noise_multiplier) for t in range(1, self.iterations + 1)]

    @cached_property
    def epsilon(self) -> float:
        """What the ledger charges for them at δ."""
        return epsilon(self.releases, self.delta)

    @cached_property
    def mu(self) -> float:
        """The same as μ-GDP."""
        mu = gdp_mu(self.releases)
        if mu is None:
            raise PrivacyError("These releases are no Gaussians on a fine grid: this audit cannot judge them.")
        return mu

    def _release(self, t: int, noise_multiplier: float) -> Release:
        return histogram_release(t, noise_multiplier, self.relation, self.unit, self.neighbors)


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Each bound on ε and μ holds with probability `confidence`, all of them at once; so a mechanism that keeps its
    claim is called a violation with probability at most 1 − confidence.

    Attributes:
        claim: what was audited.
        runs: in each of the two worlds.
        confidence: in (0, 1).
        mu: lower bound on μ.
        epsilon_gaussian: the same as ε at δ, as if the noise is Gaussian, of whatever size.
        epsilon_any: lower bound on ε at δ that assumes nothing about the noise.
        influence: what the canary does to the votes, as a share of the declared sensitivity.
        repeated: how many blocks of noise came more than once; fresh noise gives 0.
    """

    claim: Claim
    runs: int
    confidence: float
    mu: float
    epsilon_gaussian: float
    epsilon_any: float
    influence: float
    repeated: int

    @property
    def violations(self) -> list[str]:
        """What contradicts the claim, one sentence each; empty if nothing does."""
        claim, found = self.claim, []
        if self.influence > 1 + 1e-9:
            found.append(f"one {claim.unit} moves the votes by {self.influence:.4g} times the declared sensitivity")
        if self.repeated:
            found.append(f"{self.repeated} blocks of noise came more than once")
        if self.mu > claim.mu:
            found.append(f"the noise is too small: μ is at least {self.mu:.4g}, not {claim.mu:.4g}")
        if self.epsilon_any > claim.epsilon:
            found.append(f"ε is at least {self.epsilon_any:.4g}, whatever the noise, not {claim.epsilon:.4g}")
        return found

    @property
    def verdict(self) -> str:
        """ "no violation found", or "VIOLATION: " and why."""
        return "VIOLATION: " + "; ".join(self.violations) if self.violations else "no violation found"

    @property
    def chance_to_flag(self) -> float:
        """With which probability such an audit finds noise of two thirds of the claimed size."""
        return chance_to_flag(self.claim.mu, 1.5 * self.claim.mu, self.runs, _errors(self.confidence)[0])

    @property
    def runs_without_assumption(self) -> float:
        """How many runs a world `epsilon_any` needs to do so."""
        claim, error = self.claim, _errors(self.confidence)[1]
        return runs_to_flag(1.5 * claim.mu, claim.epsilon, claim.delta, error)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        claimed = {"epsilon": self.claim.epsilon, "mu": self.claim.mu}
        bounds = {"mu": self.mu, "epsilon_gaussian": self.epsilon_gaussian, "epsilon_any": self.epsilon_any}
        needed = self.runs_without_assumption
        return {
            "verdict": self.verdict,
            "violation": bool(self.violations),
            "claimed": asdict(self.claim) | {"relation": str(self.claim.relation)} | claimed,
            "at_least": bounds,
            "confidence": self.confidence,
            "runs": self.runs,
            "influence": self.influence,
            "repeated": self.repeated,
            "chance_to_flag_two_thirds": self.chance_to_flag,
            "runs_for_epsilon_any_to_flag_two_thirds": needed if math.isfinite(needed) else None,
        }


def audit(
    claim: Claim, runs: int, confidence: float, noise: Noise | None = None, progress: Progress | None = None
) -> Audit:
    """Runs the shipped histogram `runs` times in each of two neighbouring worlds and bounds ε from below.

    A mechanism that keeps its claim is flagged with probability at most 1 − confidence by the bounds of Clopper
    and Pearson, each of which gets a share of it; with the claim met exactly, as here, two of them must be wrong
    at once, which at 99.9 % happens less than once in a million audits.

    Args:
        claim: what is audited.
        runs: in each world, ≥ 100. 20,000 see noise of two thirds of the claimed size.
        confidence: of all bounds together, in (0, 1).
        noise: what the mechanism draws from; None: the operating system's entropy, as shipped.
        progress: told how many runs are done.

    Raises:
        PrivacyError: runs or confidence out of range.
    """
    if runs < 100:
        raise PrivacyError(f"An audit needs 100 runs a world or more, not {runs}.")
    if not 0 < confidence < 1:
        raise PrivacyError(f"A confidence lies strictly between 0 and 1, not {confidence!r}.")
    middle_error, tail_error = _errors(confidence)
    tail = tail_threshold(claim.mu, claim.delta, runs, tail_error)
    worlds = np.random.default_rng(_SEED).permutation(np.repeat([True, False], runs))
    noise = SystemNoise() if noise is None else noise
    statistics, noises = np.zeros(2 * runs), []
    with (progress or Progress()).task("auditing", 2 * runs) as task:
        for start in range(0, 2 * runs, BLOCKS):
            part = worlds[start : start + BLOCKS]
            for statistic, fingerprint in _histograms(claim, part, noise):
                statistics[start : start + BLOCKS] += statistic / math.sqrt(claim.iterations)
                noises.append(fingerprint)
            task.advance(len(part))

    def rates(threshold: float, error: float) -> Rates:
        flagged = statistics > threshold
        return Rates.of(int((flagged & worlds).sum()), int((flagged & ~worlds).sum()), runs, error)

    mu = rates(0.0, middle_error).mu
    high, low = rates(tail, tail_error), rates(-tail, tail_error).mirrored
    fingerprints = np.concatenate(noises)
    return Audit(
        claim=claim,
        runs=runs,
        confidence=confidence,
        mu=mu,
        epsilon_gaussian=gaussian_epsilon(mu, claim.delta) if mu else 0.0,
        epsilon_any=max(high.epsilon(claim.delta), low.epsilon(claim.delta)),
        influence=_influence(claim),
        repeated=len(fingerprints) - len(np.unique(fingerprints)),
    )


def _errors(confidence: float) -> tuple[float, float]:
    """How wrong each bound may be: half for the two in the middle, half for the four in the tails."""
    return (1 - confidence) / 4, (1 - confidence) / 8


def _histograms(claim: Claim, present: Mask, noise: Noise) -> Iterator[tuple[Reals, Integers]]:
    """All T histograms of one run of the mechanism, trial by trial.

    Yields:
        per iteration: the statistic in standard deviations of the claimed noise, 0 in the middle between the
        worlds, float64 (blocks,); and a fingerprint of the block's noise, int64 (blocks,).
    """
    private, (vectors, labels) = _records(claim, present), _candidates(claim, len(present))
    with_canary, without = _clean_votes(claim)
    clean = np.where(present[:, None], with_canary, without)
    key = np.random.default_rng(_SEED).integers(-(2**62), 2**62, clean.shape[1]) | 1
    # The ledger refuses what exceeds the claim. An ε of 0, where δ alone is met, is no budget.
    budget = Budget(max(claim.epsilon, 1e-9), claim.delta)
    ledger = Ledger(budget, claim.relation, claim.unit, claim.releases, MemoryStore(), noise)
    direction, middle = (with_canary - without).astype(np.float64), (with_canary + without) / 2
    length = np.linalg.norm(direction) or 1.0
    for release in claim.releases:
        histogram = dp_nn_histogram(lambda: private, lambda: vectors, labels, release, ledger, claim.neighbors)
        steps = histogram.reshape(clean.shape) * (release.grid or 1)
        yield (steps - middle) @ direction / (length * release.scale), (np.rint(steps).astype(np.int64) - clean) @ key


def _influence(claim: Claim) -> float:
    """‖Δ‖ as a share of the declared sensitivity."""
    with_canary, without = _clean_votes(claim)
    release = claim.releases[0]
    moved = math.sqrt(sum(int(step) ** 2 for step in with_canary - without))
    return moved / ((release.grid or 1) * release.sensitivity)


def _clean_votes(claim: Claim) -> tuple[Integers, Integers]:
    """One block's votes with and without the canary, in grid steps. The records are the audit's own, not private."""
    with_canary, without = (
        count_votes(
            _records(claim, np.array([present])),
            *_candidates(claim, 1),
            claim.neighbors,
            "l2",
            claim.releases[0].grid or 1,
        )
        for present in (True, False)
    )
    return with_canary, without


def _bins(claim: Claim) -> int:
    """Bins of a block under each label: room for the votes of a canary and of what replaces it."""
    return max(10, 2 * claim.neighbors)


def _candidates(claim: Claim, blocks: int) -> tuple[Vectors, npt.NDArray[np.int32]]:
    """Each block's bins under each label: a row of points, one apart."""
    m = _bins(claim)
    place = np.tile(np.arange(m, dtype=np.float32), blocks * LABELS)
    labels = np.tile(np.repeat(np.arange(LABELS, dtype=np.int32), m), blocks)
    return _points(claim, np.repeat(np.arange(blocks), LABELS * m), place), labels


def _records(claim: Claim, present: Mask) -> PrivateEmbeddings:
    """Every block's records: those in both worlds, and the canary or what takes its place.

    In both worlds: records at the canary's own bins, one half-way between two bins, one that is not finite.
    """
    last = _bins(claim) - 1.0
    both = [(0, 0.0), (0, 0.0), (0, 3.5), (0, math.nan), (1, 0.0), (1, last)]
    canary = [(0, 0.0)] if claim.unit == "record" else [(0, 0.0), (0, 0.0), (1, 0.0)]
    other: list[tuple[int, float]] = []
    if claim.relation is Relation.REPLACE_ONE:
        other = [(label, last) for label, _ in canary]
    elif claim.relation is Relation.ZERO_OUT:
        other = [(label, math.nan) for label, _ in canary]
    block, label, place, unit = [], [], [], []
    for index, there in enumerate(present):
        own = canary if there else other
        block += [index] * (len(both) + len(own))
        label += [each for each, _ in both + own]
        place += [each for _, each in both + own]
        unit += [index * (len(both) + 1) + i for i in range(len(both))] + [(index + 1) * (len(both) + 1) - 1] * len(own)
    vectors = _points(claim, np.array(block), np.array(place, np.float32))
    return PrivateEmbeddings(vectors, np.array(label, np.int32), np.array(unit, np.int64), ("0", "1"))


def _points(claim: Claim, block: Integers, place: npt.NDArray[np.float32]) -> Vectors:
    """Points at `place` on their block's row; rows are farther from each other than they are long."""
    corners = np.random.default_rng(_SEED).standard_normal((BLOCKS, _DIMENSIONS)).astype(np.float32)
    corners *= 4 * _bins(claim) / np.linalg.norm(corners, axis=1, keepdims=True)
    return np.concatenate([corners[block], place[:, None]], axis=1)
