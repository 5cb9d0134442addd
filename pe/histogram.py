"""Algorithm 2, the only place where private and synthetic samples meet.

Also the sizes of labels, counted under DP (App. D).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Literal, Protocol

import numpy as np

from pe.data.arrays import Float64Array, Int32Array, Int64Array
from pe.data.samples import Samples
from pe.errors import PrivacyError
from pe.nearest import Backend, describe_search, nearest
from pe.plugins.protocols import Embedding, Vectors
from pe.privacy.ledger import Ledger
from pe.privacy.noise import FINE, Noise, grid_for
from pe.privacy.release import Relation, Release
from pe.private.dataset import NOBODY, PrivateDataset, Units
from pe.private.embeddings import PrivateEmbeddings, embed_blocks, parts

Votes = Float64Array
Counts = Int64Array
Labels = Int32Array
Metric = Literal["l2", "cosine"]
CountVotes = Callable[[PrivateEmbeddings, Vectors, Labels, int, "Voting"], Counts]
"""A function that counts as `count_votes` does, in this process or on a cluster."""
CLASS_COUNTS = "class_counts"
BATCH = 2**22
"""Approximate number of votes that this process counts at a time. Each takes some 100 bytes of
memory."""
_ALL = slice(None)

log = logging.getLogger(__name__)


def vote_sensitivity(relation: Relation) -> float:
    """Return the L2 sensitivity of a histogram in which each unit's votes are ≥ 0 with norm ≤ 1.

    It is 1 when a unit comes, goes or is blanked. It is √2 when a unit's votes a become b: ‖a − b‖²
    = ‖a‖² + ‖b‖² − 2⟨a, b⟩ ≤ 2.
    """
    return sqrt(2) if relation is Relation.REPLACE_ONE else 1.0


def histogram_release(
    t: int,
    noise_multiplier: float | None,
    relation: Relation,
    unit: str = "record",
    neighbors: int = 1,
) -> Release:
    """Return the release "histogram/t" of iteration t's histogram.

    It has no noise if the noise multiplier is None.

    Guarantee: `count_votes` keeps each unit's votes at norm ≤ 1, so the declared sensitivity holds.
    """
    sensitivity = vote_sensitivity(relation)
    fractional = neighbors > 1 or unit != "record"
    name = f"histogram/{t}"
    if noise_multiplier is None:
        grid = FINE if fractional else 1
        return Release(name, "none", sensitivity, 0.0, relation, unit, grid=grid)
    grid = grid_for(noise_multiplier, sensitivity, fractional=fractional)
    return Release(
        name,
        "discrete_gaussian",
        sensitivity,
        noise_multiplier,
        relation,
        unit,
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
    """Return the releases of a run's T = `iterations` ≥ 0 histograms.

    Args:
        noise_multiplier: of every histogram; with `weights`, of one that has the mean weight.
        iterations: T.
        relation: the neighbouring relation, on which the sensitivity depends.
        unit: the privacy unit.
        neighbors: q.
        weights: T positive shares of μ²; None: equal. Histogram t has μ_t² = T·w_t/(Σw·z²), z the
            `noise_multiplier`.

    Raises:
        PrivacyError: there are not T weights, or one is not positive and finite.
    """
    if weights is None:
        weights = [1.0] * iterations
    if len(weights) != iterations or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise PrivacyError(
            f"A schedule needs one weight above 0 for each of the {iterations} iterations, not "
            f"{weights}."
        )
    total = fsum(weights)
    multipliers = [noise_multiplier * sqrt(total / (iterations * weight)) for weight in weights]
    return [
        histogram_release(t, z, relation, unit, neighbors)
        for t, z in enumerate(multipliers, start=1)
    ]


@dataclass(frozen=True)
class Voting:
    """Rules by which records vote. All of them are public.

    Attributes:
        neighbors: q, the number of candidates that each record votes for, 1/√q vote for each.
        metric: distance in embedding space.
        neighbor_search: the library that finds nearest candidates; it changes no vote.
    """

    neighbors: int = 1
    metric: Metric = "l2"
    neighbor_search: Backend = "auto"


BY_DEFAULT = Voting()


def dp_nn_histogram(
    private: Callable[[], PrivateEmbeddings],
    candidates: Callable[[], Vectors],
    labels: Labels,
    release: Release,
    ledger: Ledger,
    voting: Voting = BY_DEFAULT,
    count: CountVotes | None = None,
) -> Votes:
    """Return the noisy votes of the private records for the candidates of their own label.

    This is Algorithm 2, lines 1–4. All labels are one release: a unit's votes over all labels have
    L2 norm at most 1. The clean counts exist only inside this call. Line 5 of Algorithm 2 (the
    threshold) is post-processing and is applied in pe/selection.py.

    Args:
        private: gives the private embeddings; called only when the release has not been drawn yet.
        candidates: gives the candidates' embeddings, float32 (m, d); called only when `private` is
            called.
        labels: int32 (m,), the candidates' labels.
        release: the release to charge; one of `histogram_releases`.
        ledger: charges the release, and alone hands out noise for it.
        voting: how records vote.
        count: counts the votes; None: `count_votes`, in this process.

    Returns:
        float64 (m,): votes plus noise of standard deviation sensitivity × noise_multiplier; may be
        negative.

    Guarantee: what `release` declares, by noise on an integer grid from the operating system's
    entropy; none for a release without noise, whose clean votes are returned. A label without
    private records gets noise alone; a record whose embedding is not finite casts no vote; ties go
    to the lowest index, and so do all votes for equal candidates.
    """
    vectors = None if ledger.has_drawn(release) else (private(), candidates())

    def draw(noise: Noise) -> Counts:
        assert vectors is not None
        return noisy_votes(*vectors, labels, release, noise, voting, count)

    return ledger.release(release, draw) / release.grid


def noisy_votes(
    private: PrivateEmbeddings,
    candidates: Vectors,
    labels: Labels,
    release: Release,
    noise: Noise,
    voting: Voting,
    count: CountVotes | None = None,
) -> Counts:
    """Return the votes with the release's noise, in grid steps, int64 (m,).

    CONFIDENTIAL unless a ledger charged it.
    """
    votes = (count or count_votes)(private, candidates, labels, release.grid, voting)
    if release.has_noise:
        votes = votes + noise.discrete_gaussian(len(labels), release.scale)
    return votes


def count_votes(
    private: PrivateEmbeddings,
    candidates: Vectors,
    labels: Labels,
    grid: int,
    voting: Voting = BY_DEFAULT,
    rows: slice | Units = _ALL,
) -> Counts:
    """CONFIDENTIAL: return the clean votes of `rows`, in steps of 1/`grid` vote, int64 (m,).

    What depends on a label's candidates alone is computed once, however many records vote. Vectors
    are read in blocks.

    Guarantee: adding or removing one unit changes the result by a vector of L2 norm at most `grid`.
    """
    q = voting.neighbors
    backend = voting.neighbor_search
    log.info("Nearest neighbours are found by %s.", describe_search(backend))
    own = private.labels[rows]
    units = private.units[rows]
    choices = np.full((len(own), q), -1, dtype=np.int64)
    for label in np.unique(labels):
        voters = np.flatnonzero(own == label)
        bins = np.flatnonzero(labels == label)
        places = voters + (rows.start or 0) if isinstance(rows, slice) else rows[voters]
        # Candidates that stand together are read in place, without a copy.
        together = (
            slice(int(bins[0]), int(bins[-1]) + 1) if bins[-1] - bins[0] == len(bins) - 1 else bins
        )
        positions = nearest(
            private.vectors,
            candidates[together],
            q,
            metric=voting.metric,
            backend=backend,
            places=places,
        )
        choices[voters] = np.where(positions >= 0, bins[positions], -1)
    units = np.broadcast_to(units[:, None], choices.shape)
    cast = choices >= 0
    return _on_grid(units[cast], choices[cast], len(labels), grid)


def _on_grid(units: Counts, bins: Counts, size: int, grid: int) -> Counts:
    """Return the sums of the units' votes in each bin, in grid steps.

    The votes of each unit are scaled to L2 norm `grid`, then rounded down.
    """
    _, numbers = np.unique(units, return_inverse=True)
    pairs, weights = np.unique(numbers * size + bins, return_counts=True)
    unit, bins = np.divmod(pairs, size)
    square_norm = np.bincount(unit, weights=weights.astype(np.float64) ** 2)
    steps = np.floor(grid * weights / np.sqrt(square_norm)[unit]).astype(np.int64)
    excess = _square_sums(unit, steps) > grid * grid
    while excess.any():
        steps = np.maximum(steps - excess[unit], 0)
        excess = _square_sums(unit, steps) > grid * grid
    votes = np.zeros(size, dtype=np.int64)
    np.add.at(votes, bins, steps)
    return votes


def _square_sums(unit: Counts, steps: Counts) -> Counts:
    """Return Σ steps² for each unit, in integers."""
    sums = np.zeros(unit.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(sums, unit, steps * steps)
    return sums


class PrivateWork(Protocol):
    """The heavy work on private records, in this process or on a cluster.

    Both give results equal to the bit.

    Attributes:
        hosts: other machines to which private records and their vectors are sent.
    """

    hosts: Sequence[str]

    def embed(self, embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
        """Return the vectors of each block, in order. CONFIDENTIAL.

        See `pe.private.embeddings.embed_blocks`.
        """
        ...

    def count_votes(
        self,
        private: PrivateEmbeddings,
        candidates: Vectors,
        labels: Labels,
        grid: int,
        voting: Voting,
    ) -> Counts:
        """Return the clean votes in grid steps.

        `count_votes` above states the guarantee. CONFIDENTIAL.
        """
        ...


class InThisProcess:
    """All private work in this process. A `PrivateWork`.

    Args:
        batch: approximate number of votes counted at a time; the votes of one privacy unit are
            never divided.
    """

    hosts: Sequence[str] = ()

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch
        self._key = secrets.randbits(64)

    def embed(self, embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
        """Return the vectors of each block, in order, one block at a time."""
        return embed_blocks(embedding, blocks)

    def count_votes(
        self,
        private: PrivateEmbeddings,
        candidates: Vectors,
        labels: Labels,
        grid: int,
        voting: Voting,
    ) -> Counts:
        """Return the clean votes in grid steps.

        The units are counted one part after the other, and the parts are added exactly.
        """
        number = max(1, -(-len(private) * voting.neighbors // self._batch))
        total = np.zeros(len(labels), np.int64)
        for rows in parts(private.units, number, self._key):
            total += count_votes(private, candidates, labels, grid, voting, rows)
        return total


# Label sizes, released under DP where they are not public (App. D of the paper).


def class_counts_release(share: float, epsilon: float, relation: Relation, unit: str) -> Release:
    """Return the release of the label counts, whose discrete Laplace noise is (share·epsilon)-DP.

    Guarantee: L1 sensitivity 1, because a unit's counts are scaled to L1 norm at most 1; 2 under
    replace-one, where one label can lose a unit and another gain it.

    Args:
        share: of epsilon, in (0, 1).
        epsilon: of the whole run.
        relation: the neighbouring relation.
        unit: the privacy unit; counts are fractions unless it is the record.

    Raises:
        PrivacyError: a share outside its range.
    """
    if not 0 < share < 1:
        raise PrivacyError(
            f"The class counts' share of ε must lie between 0 and 1, not be {share!r}."
        )
    sensitivity = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    z = 1 / (share * epsilon)
    grid = 1 if unit == "record" else grid_for(z, sensitivity, fractional=True)
    return Release(CLASS_COUNTS, "discrete_laplace", sensitivity, z, relation, unit, grid=grid)


def dp_class_counts(
    private: Callable[[], PrivateDataset],
    release: Release,
    ledger: Ledger,
) -> Votes:
    """Return each label's noisy number of privacy units, float64 (labels,). May be negative.

    A unit with records of several labels is split among these. The clean counts exist only inside
    this call.

    Args:
        private: gives the private data set; called only when the release has not been drawn yet.
        release: from `class_counts_release`.
        ledger: charges the release, and alone hands out noise for it.

    Guarantee: what `release` declares. A label without records gets noise alone.
    """
    dataset = None if ledger.has_drawn(release) else private()

    def draw(noise: Noise) -> Counts:
        assert dataset is not None
        counts = count_labels(dataset, release.grid)
        return counts + noise.discrete_laplace(len(counts), release.scale)

    return ledger.release(release, draw) / release.grid


def count_labels(private: PrivateDataset, grid: int) -> Counts:
    """CONFIDENTIAL: return the clean counts of the labels in grid steps, int64 (labels,).

    Guarantee: adding or removing one unit changes the result by a vector of L1 norm at most `grid`.
    A record whose unit cannot be read is not counted: several such records may belong to one unit.
    """
    has_unit = private.units != NOBODY
    units = private.units[has_unit]
    labels = private.labels[has_unit].astype(np.int64)
    pairs, records = np.unique(np.stack([units, labels]), axis=1, return_counts=True)
    _, unit = np.unique(pairs[0], return_inverse=True)
    of_unit = np.bincount(unit, weights=records).astype(np.int64)
    counts = np.zeros(len(private.classes), dtype=np.int64)
    np.add.at(counts, pairs[1], grid * records // of_unit[unit])
    return counts
