"""The kernel distance: the unbiased estimate of MMD² with a cubic kernel (Bińkowski et al. 2018)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples
from pe.evaluation.features import Features, Reals, Seen, features, frechet_distance
from pe.plugins.protocols import Embedding, info_of
from pe.progress import Progress, tell_left

Vectors = npt.NDArray[np.floating]

LARGEST, FEWEST = 1000, 10
"""Vectors of a subset, at the most; subsets, where there are vectors enough for two in each."""


@dataclass(frozen=True)
class KernelDistance:
    """MMD² estimated from disjoint subsets.

    Attributes:
        mean: the estimate; may be a little below 0, since it is unbiased.
        standard_error: of the mean, from the subsets' spread; NaN where there is one subset.
        subsets: their number.
        subset_size: vectors of each set in a subset.
    """

    mean: float
    standard_error: float
    subsets: int
    subset_size: int


def kernel_distance(first: Vectors, second: Vectors) -> KernelDistance:
    """MMD² between the distributions of the rows of `first` (n×d) and `second` (m×d), which must be in random order.

    The subsets are disjoint, so their estimates are independent and the standard error is an honest one: at
    least FEWEST subsets of at most LARGEST, as many as the smaller set holds. (KID's usual 100 subsets overlap
    in small sets, which makes their spread look smaller than it is; the expectation is the same.)

    Raises:
        ValueError: fewer than two rows.
    """
    smaller = min(len(first), len(second))
    if smaller < 2:
        raise ValueError("A kernel distance needs two vectors or more of each set.")
    subsets = max(1, min(smaller // 2, max(FEWEST, smaller // LARGEST)))
    size = min(smaller // subsets, LARGEST)
    parts = (slice(i * size, (i + 1) * size) for i in range(subsets))
    values = [squared_mmd(first[part], second[part]) for part in parts]
    spread = float(np.std(values, ddof=1)) / math.sqrt(subsets) if subsets > 1 else math.nan
    return KernelDistance(float(np.mean(values)), spread, subsets, size)


def squared_mmd(first: Vectors, second: Vectors) -> float:
    """The unbiased estimate of MMD² from the rows of `first` (n×d) and `second` (m×d), n, m ≥ 2; float64."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    n, m = len(x), len(y)
    within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (_kernel(x, x), _kernel(y, y))]
    return float(sum(within) - 2 * _kernel(x, y).sum() / (n * m))


def _kernel(x: Reals, y: Reals) -> Reals:
    """(xᵀy / d + 1)³ of all pairs."""
    values: Reals = (x @ y.T / x.shape[1] + 1) ** 3
    return values


# Precision, recall, density and coverage: where one set lies in the k-NN balls of the other.
#
# Improved precision and recall: Kynkäänniemi et al. (2019); density and coverage: Naeem et al. (2020).


NEIGHBORS = 5
_ROWS = 1024


@dataclass(frozen=True)
class Manifold:
    """How two sets lie in each other. Balls are around each vector and reach to its k-th neighbour in its own set.

    Attributes:
        precision: share of generated vectors inside some real vector's ball: are they realistic?
        recall: share of real vectors inside some generated vector's ball: is everything real there?
        density: real balls that a generated vector lies in, over k; may exceed 1.
        coverage: share of real vectors whose ball holds a generated one.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def manifold(real: Vectors, generated: Vectors, k: int = NEIGHBORS) -> Manifold:
    """Precision, recall, density and coverage of `generated` (m×d) in `real` (n×d), in float64, block by block.

    A vector on the rim of a ball is outside, as in the authors' `prdc`.

    Raises:
        ValueError: k or fewer vectors in a set.
    """
    if min(len(real), len(generated)) <= k:
        raise ValueError(f"{k} neighbours need {k + 1} vectors or more of each set.")
    centre = real.mean(axis=0, dtype=np.float64)
    r, g = (_with_squares(vectors.astype(np.float64) - centre) for vectors in (real, generated))
    real_radii, generated_radii = _radii(r, k), _radii(g, k)
    inside = np.zeros(len(generated), np.int64)
    recalled = covered = 0
    for rows, distances in _blocks(r, g):
        within = distances < real_radii[rows, None]
        inside += within.sum(axis=0)
        covered += int(within.any(axis=1).sum())
        recalled += int((distances < generated_radii).any(axis=1).sum())
    return Manifold(float((inside > 0).mean()), recalled / len(real), float(inside.mean()) / k, covered / len(real))


def _with_squares(vectors: Reals) -> tuple[Reals, Reals]:
    return vectors, np.square(vectors).sum(axis=1)


def _radii(vectors: tuple[Reals, Reals], k: int) -> Reals:
    """Squared distance of each vector to its k-th neighbour in its own set, itself left out."""
    radii = np.empty(len(vectors[0]))
    for rows, distances in _blocks(vectors, vectors):
        distances[np.arange(len(distances)), rows] = np.inf
        radii[rows] = np.partition(distances, k - 1, axis=1)[:, k - 1]
    return radii


def _blocks(x: tuple[Reals, Reals], y: tuple[Reals, Reals]) -> Iterator[tuple[npt.NDArray[np.int64], Reals]]:
    """Squared distances of some rows of x to all of y: (the rows, distances)."""
    for start in range(0, len(x[0]), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(x[0])))
        distances = x[1][rows, None] + y[1] - 2 * (x[0][rows] @ y[0].T)
        yield rows, np.maximum(distances, 0)


# Fidelity: how near a set of samples is to a reference set, under an embedding.


REPORTED = 50_000
"""Images of each set in published FIDs."""

_COMPARED = 5000  # of each set, at the most, each with each


@dataclass(frozen=True)
class Fidelity:
    """What was measured under one embedding.

    Attributes:
        values: as docs/evaluation.md has them, for the first set and, under `controls`, for the others.
        notes: one sentence for each number that has too few samples behind it.
    """

    values: dict[str, Any]
    notes: list[str]


def standard_inception(embedding: Embedding) -> bool:
    """Whether the embedding is Inception with the standard weights: only then are the distances FID and KID."""
    return info_of(embedding).standard_inception


def fidelity(seen: Seen, sets: Mapping[str, Samples], reference: Samples, seed: int, progress: Progress) -> Fidelity:
    """Compare sets of samples with a reference set.

    Guarantee: none. With a private reference the numbers are confidential.

    Args:
        seen: the embedding, which embeds what it has not seen yet.
        sets: name → samples; the first is what is evaluated, the others are its controls.
        reference: real samples.
        seed: of random choices among the samples.
        progress: told of what is embedded.

    Raises:
        RecipeError: fewer than two samples in a set.
    """
    name, embedding = seen.name, seen.embedding
    with progress.task(f"embedding with {name}", None) as task:  # how many real samples there are is not told
        real = features(reference, seen, seed, task)  # not timed: a network is loaded
        first, *others = sets
        started = time.perf_counter()
        made = {first: features(sets[first], seen, seed, task)}
        each = (time.perf_counter() - started) / len(sets[first])
        tell_left(progress, f"embedding with {name}", each * sum(len(sets[key]) for key in others))
        made |= {key: features(sets[key], seen, seed, task) for key in others}
    values = {
        "dimensions": len(real.moments.mean),
        "standard_inception": standard_inception(embedding),
        "reference_samples": len(reference),
    }
    with progress.task(f"comparing under {name}", len(made)) as task:
        compared = {}
        for key in made:
            compared[key] = _compare(made[key], real)
            task.advance(1)
    values |= compared[first] | {"controls": {key: compared[key] for key in others}}
    return Fidelity(values, _notes(name, made[first], real, standard_inception(embedding), reference.noun))


def _compare(made: Features, real: Features) -> dict[str, Any]:
    kernel = asdict(kernel_distance(made.kept, real.kept))
    values: dict[str, Any] = {
        "samples": made.moments.count,
        "frechet": frechet_distance(made.moments, real.moments),
        "kernel": {key: None if math.isnan(value) else value for key, value in kernel.items()},
    }
    fewest = min(len(made.kept), len(real.kept), _COMPARED)
    if fewest > NEIGHBORS:
        found = manifold(real.kept[:fewest], made.kept[:fewest])  # equal numbers: density and recall depend on them
        values |= asdict(found) | {"neighbors": NEIGHBORS, "neighborhood_samples": fewest}
    return values


def _notes(name: str, made: Features, real: Features, standard: bool, noun: str) -> list[str]:
    notes = []
    dimensions = len(real.moments.mean)
    for what, count in ((f"{noun} evaluated", made.moments.count), (f"reference {noun}", real.moments.count)):
        if count <= dimensions:
            notes.append(
                f"The Fréchet distance under '{name}' is biased upward: {count:,} {what} cannot fill a covariance of "
                f"{dimensions:,} dimensions; take {dimensions + 1:,} or more."
            )
        elif standard and count < REPORTED:
            notes.append(
                f"The FID is from {count:,} {what}, so it is larger than with the {REPORTED:,} of published figures."
            )
    fewest = min(len(made.kept), len(real.kept))
    if fewest <= NEIGHBORS:
        notes.append(
            f"Precision, recall, density and coverage under '{name}' are left out: {fewest} {noun} are too few for "
            f"{NEIGHBORS} neighbours; take {NEIGHBORS + 1} or more, better {LARGEST:,}."
        )
    elif fewest < LARGEST:
        notes.append(
            f"The kernel distance, precision, recall, density and coverage under '{name}' come from {fewest:,} {noun} "
            f"of each set; they settle from about {LARGEST:,} on."
        )
    return notes
