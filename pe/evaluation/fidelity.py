"""Fidelity: how near a set of samples is to a reference set, under an embedding.

Fréchet and kernel distance; precision, recall, density and coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from pe.data.arrays import Float64Array, FloatArray
from pe.data.samples import Samples, generator
from pe.errors import RecipeError
from pe.evaluation.features import CachedEmbedding
from pe.judgement.labelled import KEPT, Values
from pe.judgement.manifold import NEIGHBORS, manifold
from pe.plugins.protocols import info_of
from pe.progress import Progress, Task

Vectors = FloatArray

LARGEST = 1000
FEWEST = 10
"""For the kernel distance: the most vectors of a subset, and the fewest subsets if each can have
two vectors."""

REPORTED = 50_000
"""Images of each set in published FIDs."""

_COMPARED = 5000  # vectors of each set, at most, that are compared in pairs


@dataclass(frozen=True, eq=False)
class Moments:
    """A Gaussian fitted to vectors."""

    count: int  # n, vectors seen, ≥ 2
    mean: Float64Array  # float64 (d,)
    covariance: Float64Array  # float64 (d, d), with the divisor n − 1; of rank n − 1 at most
    # A with AAᵀ = covariance, float64 (d, n), for n ≤ d: the centred vectors over √(n − 1)
    factor: Float64Array | None = None


def moments_of(blocks: Iterable[FloatArray]) -> Moments:
    """Return the moments of vectors that come in blocks, each (n, d), finite.

    Memory is of order d², however many vectors there are. Vectors are shifted by the first block's
    mean before they are squared, so that a mean that is large beside the spread costs no digits.

    Raises:
        ValueError: there are fewer than two vectors.
    """
    count = 0
    few: list[Float64Array] = []
    for block in blocks:
        rows = block.astype(np.float64)
        if not count:
            centre = rows.mean(axis=0)
            total = np.zeros(len(centre))
            squares = np.zeros((len(centre), len(centre)))
        rows -= centre
        count += len(rows)
        total += rows.sum(axis=0)
        squares += rows.T @ rows
        few = [*few, rows] if count <= len(centre) else []
    if count < 2:
        raise ValueError("A covariance needs two vectors or more.")
    shift = total / count
    covariance = (squares - count * np.outer(shift, shift)) / (count - 1)
    factor = ((np.concatenate(few) - shift) / np.sqrt(count - 1)).T if few else None
    return Moments(count, centre + shift, covariance, factor)


def frechet_distance(first: Moments, second: Moments) -> float:
    """Return ‖μ₁ − μ₂‖² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½, ≥ 0.

    Sources: Dowson & Landau 1982; FID: Heusel et al. 2017.

    With Σᵢ = AᵢAᵢᵀ the last trace is the sum of the singular values of A₁ᵀA₂: the eigenvalues of
    Σ₁Σ₂ are their squares. So no square root of a matrix is taken, and rounding errors stay of the
    order of d·2⁻⁵² of the largest eigenvalue, where the eigenvalues of the product Σ₁Σ₂ would lose
    half of the digits. Aᵢ holds the scaled eigenvectors whose eigenvalues exceed those errors.
    """
    if first.mean.shape != second.mean.shape:
        raise ValueError(
            f"Vectors of {len(first.mean)} and {len(second.mean)} dimensions have no distance."
        )
    from scipy.linalg import svdvals

    shift = first.mean - second.mean
    common = svdvals(_factor(first).T @ _factor(second), check_finite=False).sum()
    traces = np.trace(first.covariance) + np.trace(second.covariance)
    return max(float(shift @ shift + traces - 2 * common), 0.0)


def _factor(moments: Moments) -> Float64Array:
    """Return A with AAᵀ = Σ, float64 (d, r)."""
    if moments.factor is not None:  # far quicker than eigenvectors, where vectors are few
        return moments.factor
    values, vectors = np.linalg.eigh(moments.covariance)
    # A dimension may be constant or a sum of others, so not all eigenvalues are positive.
    least = len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
    kept = values > least
    factor: Float64Array = vectors[:, kept] * np.sqrt(values[kept])
    return factor if kept.any() else np.zeros((len(values), 1))


@dataclass(frozen=True)
class KernelDistance:
    """MMD² estimated from disjoint subsets."""

    mean: float  # the estimate; may be a little below 0, since it is unbiased
    standard_error: float  # of the mean, from the subsets' spread; NaN for a single subset
    subsets: int
    subset_size: int  # vectors of each set in a subset


def kernel_distance(first: Vectors, second: Vectors) -> KernelDistance:
    """Estimate MMD² with a cubic kernel from rows in random order, (n, d) and (m, d).

    Source: Bińkowski et al. 2018.

    The smaller set is cut into subsets of at most LARGEST rows, FEWEST or more if each can have two
    rows. They are disjoint, so their estimates are independent and the standard error is honest.
    (KID's usual 100 subsets overlap in small sets, which makes their spread look smaller than it
    is; the expectation does not differ.)
    """
    smaller = min(len(first), len(second))
    if smaller < 2:
        raise ValueError("A kernel distance needs two vectors or more of each set.")
    subsets = max(1, min(smaller // 2, max(FEWEST, smaller // LARGEST)))
    size = min(smaller // subsets, LARGEST)
    parts = (slice(i * size, (i + 1) * size) for i in range(subsets))
    values = [squared_mmd(first[part], second[part]) for part in parts]
    error = float(np.std(values, ddof=1)) / math.sqrt(subsets) if subsets > 1 else math.nan
    return KernelDistance(float(np.mean(values)), error, subsets, size)


def squared_mmd(first: Vectors, second: Vectors) -> float:
    """Return the unbiased estimate of MMD² in float64, from n, m ≥ 2 rows."""
    x = first.astype(np.float64)
    y = second.astype(np.float64)
    n = len(x)
    m = len(y)
    within = [
        (k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (_kernel(x, x), _kernel(y, y))
    ]
    return float(sum(within) - 2 * _kernel(x, y).sum() / (n * m))


def _kernel(x: Float64Array, y: Float64Array) -> Float64Array:
    """Return (xᵀy / d + 1)³ for all pairs of rows."""
    values: Float64Array = (x @ y.T / x.shape[1] + 1) ** 3
    return values


@dataclass(frozen=True, eq=False)
class Features:
    """A set of samples under an embedding."""

    moments: Moments  # of all of them
    vectors: Vectors  # of a random choice, in random order, float32 (≤ KEPT, d)


def features(samples: Samples, embedding: CachedEmbedding, seed: int, task: Task) -> Features:
    """Embed all samples, block by block.

    Memory is of order d² and the chosen vectors, for any number of samples.
    """
    if len(samples) < 2:
        raise RecipeError(f"A distance needs two samples or more of each set, not {len(samples)}.")
    order = generator(seed, "evaluation/kept").permutation(len(samples))[:KEPT]
    is_chosen = np.zeros(len(samples), bool)
    is_chosen[order] = True
    chosen: list[Vectors] = []

    def blocks() -> Iterator[Vectors]:
        start = 0
        for vectors in embedding.blocks(samples):
            chosen.append(vectors[is_chosen[start : start + len(vectors)]])
            start += len(vectors)
            task.advance(len(vectors))
            yield vectors

    moments = moments_of(blocks())
    ranks = np.searchsorted(np.sort(order), order)
    return Features(moments, np.concatenate(chosen)[ranks])


def distances(
    embedding: CachedEmbedding,
    sets: Mapping[str, Samples],
    reference: Samples,
    seed: int,
    progress: Progress,
) -> tuple[Values, list[str]]:
    """Compare each of `sets` with a reference set, under an embedding.

    The evaluated set comes first, then its controls.

    Guarantee: none. With a private reference the numbers are confidential.

    Returns:
        The values as docs/evaluation.md has them, and a sentence on each number that comes from too
            few samples.

    Raises:
        RecipeError: fewer than two samples in a set.
    """
    # then they are FID and KID
    name = embedding.name
    standard = info_of(embedding.embedding).standard_inception
    with progress.task(
        f"embedding with {name}", None
    ) as task:  # the number of real samples is not told
        real = features(reference, embedding, seed, task)
        by_set = {key: features(samples, embedding, seed, task) for key, samples in sets.items()}
    first, *others = sets
    measures = {}
    with progress.task(f"comparing under {name}", len(by_set)) as task:
        for key, synthetic in by_set.items():
            measures[key] = _compare(synthetic, real)
            task.advance(1)
    values = {
        "dimensions": len(real.moments.mean),
        "standard_inception": standard,
        "reference_samples": len(reference),
        **measures[first],
        "controls": {key: measures[key] for key in others},
    }
    return values, _notes(name, by_set[first], real, standard, reference.noun)


def _compare(synthetic: Features, real: Features) -> Values:
    kernel = asdict(kernel_distance(synthetic.vectors, real.vectors))
    values: Values = {
        "samples": synthetic.moments.count,
        "frechet": frechet_distance(synthetic.moments, real.moments),
        "kernel": {key: None if math.isnan(value) else value for key, value in kernel.items()},
    }
    fewest = min(len(synthetic.vectors), len(real.vectors), _COMPARED)
    if fewest > NEIGHBORS:  # equal numbers: density and recall depend on them
        values |= asdict(manifold(real.vectors[:fewest], synthetic.vectors[:fewest]))
        values |= {"neighbors": NEIGHBORS, "neighborhood_samples": fewest}
    return values


def _notes(name: str, synthetic: Features, real: Features, standard: bool, noun: str) -> list[str]:
    notes = []
    dimensions = len(real.moments.mean)
    counts = {f"{noun} evaluated": synthetic.moments.count, f"reference {noun}": real.moments.count}
    for what, count in counts.items():
        # of as few vectors as dimensions the covariance is singular
        if count <= dimensions:
            notes.append(
                f"The Fréchet distance under '{name}' is biased upward: {count:,} {what} cannot "
                f"fill a covariance of {dimensions:,} dimensions; take {dimensions + 1:,} or more."
            )
        elif standard and count < REPORTED:
            notes.append(
                f"The FID is from {count:,} {what}, so it is larger than with the {REPORTED:,} of "
                "published figures."
            )
    fewest = min(len(synthetic.vectors), len(real.vectors))
    if fewest <= NEIGHBORS:
        notes.append(
            f"Precision, recall, density and coverage under '{name}' are left out: {fewest} {noun} "
            f"are too few for {NEIGHBORS} neighbours; take {NEIGHBORS + 1} or more, better "
            f"{LARGEST:,}."
        )
    elif fewest < LARGEST:
        notes.append(
            f"The kernel distance, precision, recall, density and coverage under '{name}' come "
            f"from {fewest:,} {noun} of each set; they settle from about {LARGEST:,} on."
        )
    return notes
