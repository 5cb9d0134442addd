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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.evaluation.audit_bounds import Rates, chance_to_flag, runs_to_flag, tail_threshold
from pe.evaluation.audit_worlds import BLOCKS, Claim, Integers, Mask, candidates, clean_votes, influence, records
from pe.histogram import Voting, dp_nn_histogram
from pe.privacy.closed_form import gaussian_epsilon
from pe.privacy.ledger import Budget, Ledger
from pe.privacy.noise import Noise, SystemNoise
from pe.privacy.store import MemoryStore
from pe.progress import Progress

Reals = npt.NDArray[np.float64]

_SEED = 20


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
        """Either "no violation found", or "VIOLATION: " and why."""
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
    statistics, fingerprints = _sample(claim, worlds, noise or SystemNoise(), progress or Progress())

    def rates(threshold: float, error: float) -> Rates:
        flagged = statistics > threshold
        return Rates.of(int((flagged & worlds).sum()), int((flagged & ~worlds).sum()), runs, error)

    middle, high, low = rates(0.0, middle_error), rates(tail, tail_error), rates(-tail, tail_error)
    ratios = (middle, middle.mirrored, high, low.mirrored)
    return Audit(
        claim=claim,
        runs=runs,
        confidence=confidence,
        mu=middle.mu,
        epsilon_gaussian=gaussian_epsilon(middle.mu, claim.delta) if middle.mu else 0.0,
        epsilon_any=max(ratio.epsilon(claim.delta) for ratio in ratios),
        influence=influence(claim),
        repeated=len(fingerprints) - len(np.unique(fingerprints)),
    )


def _errors(confidence: float) -> tuple[float, float]:
    """How wrong each bound may be: half for the two in the middle, half for the four in the tails."""
    return (1 - confidence) / 4, (1 - confidence) / 8


def _sample(
    claim: Claim, worlds: npt.NDArray[np.bool_], noise: Noise, progress: Progress
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The test statistic of a run in each of `worlds`, and a fingerprint of each block of noise."""
    statistics, noises = np.zeros(len(worlds)), []
    with progress.task("auditing", len(worlds)) as task:
        for start in range(0, len(worlds), BLOCKS):
            part = worlds[start : start + BLOCKS]
            for statistic, fingerprint in _histograms(claim, part, noise):
                statistics[start : start + BLOCKS] += statistic / math.sqrt(claim.iterations)
                noises.append(fingerprint)
            task.advance(len(part))
    return statistics, np.concatenate(noises)


def _histograms(claim: Claim, present: Mask, noise: Noise) -> Iterator[tuple[Reals, Integers]]:
    """All T histograms of one run of the mechanism, trial by trial.

    Yields:
        per iteration: the statistic in standard deviations of the claimed noise, 0 in the middle between the
        worlds, float64 (blocks,); and a fingerprint of the block's noise, int64 (blocks,).
    """
    private, (vectors, labels) = records(claim, present), candidates(claim, len(present))
    with_canary, without = clean_votes(claim)
    clean = np.where(present[:, None], with_canary, without)
    key = np.random.default_rng(_SEED).integers(-(2**62), 2**62, clean.shape[1]) | 1
    # The ledger refuses what exceeds the claim. An ε of 0, where δ alone is met, is no budget.
    budget = Budget(max(claim.epsilon, 1e-9), claim.delta)
    ledger = Ledger(budget, claim.relation, claim.unit, claim.releases, MemoryStore(), noise)
    direction, middle = (with_canary - without).astype(np.float64), (with_canary + without) / 2
    length = np.linalg.norm(direction) or 1.0
    for release in claim.releases:
        voting = Voting(claim.neighbors)
        histogram = dp_nn_histogram(lambda: private, lambda: vectors, labels, release, ledger, voting)
        steps = histogram.reshape(clean.shape) * release.grid
        yield (steps - middle) @ direction / (length * release.scale), (np.rint(steps).astype(np.int64) - clean) @ key
