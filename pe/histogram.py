"""Algorithm 2: the only place where private and synthetic samples meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.nearest import Backend, describe, nearest
from pe.plugins.protocols import Vectors
from pe.privacy.ledger import Ledger
from pe.privacy.noise import FINE, Noise, grid_for
from pe.privacy.release import Relation, Release
from pe.private.dataset import Units
from pe.private.embeddings import PrivateEmbeddings

Votes = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Metric = Literal["l2", "cosine"]
CountVotes = Callable[[PrivateEmbeddings, Vectors, npt.NDArray[np.int32], int, "Voting"], Counts]
"""What `count_votes` does, wherever it is done."""
ALL = slice(None)

log = logging.getLogger(__name__)


def vote_sensitivity(relation: Relation) -> float:
    """L2 sensitivity of a histogram to which each unit adds a vector of votes ≥ 0 with norm ≤ 1.

    1 when a unit comes, goes or is blanked; √2 when its votes a become b: ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩ ≤ 2.
    """
    return sqrt(2) if relation is Relation.REPLACE_ONE else 1.0


def histogram_release(
    t: int, noise_multiplier: float | None, relation: Relation, unit: str = "record", neighbors: int = 1
) -> Release:
    """The release "histogram/t" that iteration t's histogram is; None for the noise multiplier: without noise.

    Guarantee: `count_votes` keeps each unit's votes at norm ≤ 1, so the declared sensitivity holds.
    """
    sensitivity = vote_sensitivity(relation)
    fractional = neighbors > 1 or unit != "record"
    if noise_multiplier is None:
        return Release(f"histogram/{t}", "none", sensitivity, 0.0, relation, unit, grid=FINE if fractional else 1)
    grid = grid_for(noise_multiplier, sensitivity, fractional=fractional)
    name = f"histogram/{t}"
    return Release(
        name=name,
        mechanism="discrete_gaussian",
        sensitivity=sensitivity,
        noise_multiplier=noise_multiplier,
        relation=relation,
        unit=unit,
        sampling=None,
        count=1,
        grid=grid,
    )


def histogram_releases(
    noise_multiplier: float,
    iterations: int,
    *,
    relation: Relation = Relation.ADD_REMOVE,
    unit: str = "record",
    neighbors: int = 1,
    weights: Sequence[float] | None = None,
) -> list[Release]:
    """The releases of a run's T histograms.

    Args:
        noise_multiplier: of every histogram; with `weights`, of one that has the mean weight.
        iterations: T ≥ 0.
        relation: the neighbouring relation; it settles the sensitivity.
        unit: the privacy unit.
        neighbors: q.
        weights: T positive shares of μ²; None: equal. Histogram t has μ_t² = T·w_t/(Σw·z²).

    Raises:
        PrivacyError: weights of another number, or not positive.
    """
    if weights is None:
        weights = [1.0] * iterations
    if len(weights) != iterations or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise PrivacyError(f"A schedule gives each of the {iterations} iterations one weight above 0, not {weights}.")
    total = fsum(weights)
    multipliers = [noise_multiplier * sqrt(total / (iterations * weight)) for weight in weights]
    return [histogram_release(t, z, relation, unit, neighbors) for t, z in enumerate(multipliers, start=1)]


@dataclass(frozen=True)
class Voting:
    """How records vote. All of it is public.

    Attributes:
        neighbors: q, candidates that each record votes for, 1/√q each.
        metric: distance in embedding space.
        neighbor_search: who finds nearest candidates; it changes no vote.
    """

    neighbors: int = 1
    metric: Metric = "l2"
    neighbor_search: Backend = "auto"


BY_DEFAULT = Voting()


def dp_nn_histogram(
    private: Callable[[], PrivateEmbeddings],
    candidates: Callable[[], Vectors],
    labels: npt.NDArray[np.int32],
    release: Release,
    ledger: Ledger,
    voting: Voting = BY_DEFAULT,
    count: CountVotes | None = None,
) -> Votes:
    """Noisy votes of the private records for the candidates of their own label (Alg. 2, lines 1–4).

    All labels are one release: a unit's votes over all of them have L2 norm at most 1. The clean
    counts exist only inside this call. Line 5 of Algorithm 2 (the threshold) is post-processing and
    is applied in pe/selection.py.

    Args:
        private: gives the private embeddings; called only when the release has not been drawn yet.
        candidates: gives the candidates' embeddings, float32 (m, d); called likewise.
        labels: int32 (m,), the candidates' labels.
        release: what is charged; one of `histogram_releases`.
        ledger: the door to noise.
        voting: how records vote.
        count: who counts the votes; None: `count_votes`, here.

    Returns:
        float64 (m,): votes plus noise of standard deviation sensitivity × noise_multiplier; may be
        negative.

    Guarantee: the release's, by noise on an integer grid from the operating system's entropy; none for a release
    without noise, whose clean votes leave. A label without private records gets noise alone; a record whose embedding
    is not finite casts no vote; ties go to the lowest index, and so do all votes for equal candidates.
    """
    vectors = None if ledger.drawn(release) else (private(), candidates())

    def draw(noise: Noise) -> Counts:
        assert vectors is not None
        return noisy_votes(*vectors, labels, release, noise, voting, count)

    return ledger.release(release, draw) / release.grid


def noisy_votes(
    private: PrivateEmbeddings,
    candidates: Vectors,
    labels: npt.NDArray[np.int32],
    release: Release,
    noise: Noise,
    voting: Voting,
    count: CountVotes | None = None,
) -> Counts:
    """The votes in grid steps, int64 (m,), with the release's noise; CONFIDENTIAL where no ledger has charged it."""
    votes = (count or count_votes)(private, candidates, labels, release.grid, voting)
    return votes + noise.discrete_gaussian(len(labels), release.scale) if release.noised else votes


def count_votes(
    private: PrivateEmbeddings,
    candidates: Vectors,
    labels: npt.NDArray[np.int32],
    grid: int,
    voting: Voting = BY_DEFAULT,
    rows: slice | Units = ALL,
) -> Counts:
    """CONFIDENTIAL: the clean votes of these rows of the records in grid steps, int64 (m,).

    What depends on a label's candidates alone is computed once, however many records vote. Vectors are read in blocks.

    Guarantee: adding or removing one unit changes the result by a vector of L2 norm at most `grid`.
    """
    q, metric, backend = voting.neighbors, voting.metric, voting.neighbor_search
    log.info("Nearest neighbours are found by %s.", describe(backend))
    own, units = private.labels[rows], private.units[rows]
    chosen = np.full((len(own), q), -1, dtype=np.int64)
    for label in np.unique(labels):
        voters, bins = np.flatnonzero(own == label), np.flatnonzero(labels == label)
        places = voters + (rows.start or 0) if isinstance(rows, slice) else rows[voters]
        together = slice(int(bins[0]), int(bins[-1]) + 1) if bins[-1] - bins[0] == len(bins) - 1 else bins
        found = nearest(private.vectors, candidates[together], q, metric=metric, backend=backend, places=places)
        chosen[voters] = np.where(found >= 0, bins[found], -1)
    units = np.broadcast_to(units[:, None], chosen.shape)
    cast = chosen >= 0
    return _on_grid(units[cast], chosen[cast], len(labels), grid)


def _on_grid(units: Counts, bins: Counts, size: int, grid: int) -> Counts:
    """Each unit's choices, scaled together to L2 norm `grid` and rounded toward zero, summed per bin."""
    _, numbers = np.unique(units, return_inverse=True)
    pairs, weights = np.unique(numbers * size + bins, return_counts=True)
    unit, bins = np.divmod(pairs, size)
    square_norm = np.bincount(unit, weights=weights.astype(np.float64) ** 2)
    steps = np.floor(grid * weights / np.sqrt(square_norm)[unit]).astype(np.int64)
    while (excess := _square_sums(unit, steps) > grid * grid).any():
        steps = np.maximum(steps - excess[unit], 0)
    votes = np.zeros(size, dtype=np.int64)
    np.add.at(votes, bins, steps)
    return votes


def _square_sums(unit: Counts, steps: Counts) -> Counts:
    """Σ steps² of each unit, in integers."""
    sums = np.zeros(unit.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(sums, unit, steps * steps)
    return sums
