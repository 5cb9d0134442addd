"""The worlds of an audit: a claim, and small data sets that differ in one canary each.

All of it is made up here and public; nothing is private but in name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.histogram import Voting, count_votes, histogram_release
from pe.plugins.protocols import Vectors
from pe.privacy.accounting import epsilon, gdp_mu
from pe.privacy.calibration import calibrate
from pe.privacy.closed_form import check_delta
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.private.embeddings import PrivateEmbeddings

Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

LABELS = 2
BLOCKS = 400
"""Trials side by side, at most."""

_DIMENSIONS = 16
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
        unit: "record"; any other name makes the canary a user of four records under two labels.
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


def influence(claim: Claim) -> float:
    """‖Δ‖ as a share of the declared sensitivity."""
    with_canary, without = clean_votes(claim)
    release = claim.releases[0]
    moved = math.sqrt(sum(int(step) ** 2 for step in with_canary - without))
    return moved / (release.grid * release.sensitivity)


def clean_votes(claim: Claim) -> tuple[Integers, Integers]:
    """One block's votes with and without the canary, in grid steps. The records are the audit's own, not private."""
    with_canary, without = (
        count_votes(
            records(claim, np.array([present])),
            *candidates(claim, 1),
            claim.releases[0].grid,
            Voting(claim.neighbors),
        )
        for present in (True, False)
    )
    return with_canary, without


def _bins(claim: Claim) -> int:
    """Bins of a block under each label: room for the votes of a canary, of what replaces it, and of others between."""
    return max(10, 3 * claim.neighbors + 4)


def candidates(claim: Claim, blocks: int) -> tuple[Vectors, npt.NDArray[np.int32]]:
    """Each block's bins under each label: a row of points, one apart."""
    m = _bins(claim)
    place = np.tile(np.arange(m, dtype=np.float32), blocks * LABELS)
    labels = np.tile(np.repeat(np.arange(LABELS, dtype=np.int32), m), blocks)
    return _points(claim, np.repeat(np.arange(blocks), LABELS * m), place), labels


def records(claim: Claim, present: Mask) -> PrivateEmbeddings:
    """Every block's records: those in both worlds, and the canary or what takes its place.

    In both worlds: two records at one bin, one half-way between two bins, one that is not finite, one under the
    other label. They vote for other bins than the canary: were votes counted wrongly, theirs would not hide it.
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
