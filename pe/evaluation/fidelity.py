"""Fidelity: how near a set of samples is to a reference set, under an embedding.

Fréchet and kernel distance; precision, recall, density and coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from pe.data.arrays import Float64Array, FloatArray, Int64Array
from pe.data.samples import Samples, generator, slices
from pe.errors import RecipeError
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.labelled import KEPT, Values
from pe.plugins.protocols import info_of
from pe.progress import Progress, Task

Vectors = FloatArray

LARGEST = 1000
FEWEST = 10
"""For the kernel distance: the most vectors of a subset, and the fewest subsets if each can have
two vectors."""

NEIGHBORS = 5
REPORTED = 50_000
"""Images of each set in published FIDs."""

_COMPARED = 5000  # vectors of each set, at most, that are compared in pairs
_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Moments:
    """A Gaussian fitted to vectors."""

    count: int  # n, vectors seen, ≥ 2
    mean: Float64Array  # float64 (d,)
    covariance: Float64Array  # float64 (d, d), with the divisor n − 1; of rank n − 1 at most
    # for n ≤ d, A with AAᵀ = covariance, float64 (d, n): the centred vectors over √(n − 1); else
    # None
    factor: Float64Array | None = None


class StreamedMoments:
    """Moments of vectors that come in blocks.

    Memory is of order d², however many vectors there are.

    Vectors are shifted by the first block's mean before they are squared, so that a mean that is
    large beside the spread costs no digits. Vectors are stored while there are at most d, and
    summed as squares from then on.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._count = 0
        self._centre: Float64Array | None = None
        self._sum = np.zeros(dimensions)
        self._few: list[Float64Array] = []  # shifted vectors, until there are more than d
        self._squares: Float64Array | None = (
            None  # after that the upper triangle of Σ (x − c)(x − c)ᵀ, in Fortran's order
        )

    def add(self, vectors: FloatArray) -> None:
        """Add a block of finite vectors, (n, d) with n ≥ 1."""
        rows = np.ascontiguousarray(vectors, dtype=np.float64)
        if self._centre is None:
            self._centre = rows.mean(axis=0)
        rows = rows - self._centre
        self._count += len(rows)
        self._sum += rows.sum(axis=0)
        if self._squares is not None:
            self._square(rows)
            return
        self._few.append(rows)
        if self._count > self._dimensions:
            self._squares = np.zeros((self._dimensions, self._dimensions), order="F")
            self._square(np.concatenate(self._few))
            self._few.clear()

    def _square(self, rows: Float64Array) -> None:
        from scipy.linalg.blas import dsyrk

        self._squares = dsyrk(1.0, rows.T, beta=1.0, c=self._squares, overwrite_c=1)

    def moments(self) -> Moments:
        """Return the moments of all vectors added. Raise ValueError if they are fewer than two."""
        if self._count < 2 or self._centre is None:
            raise ValueError("A covariance needs two vectors or more.")
        shift = self._sum / self._count
        mean = self._centre + shift
        if self._squares is None:
            rows = (np.concatenate(self._few) - shift) / np.sqrt(self._count - 1)
            return Moments(self._count, mean, rows.T @ rows, rows.T)
        covariance = np.triu(self._squares) + np.triu(self._squares, 1).T
        covariance -= self._count * np.outer(shift, shift)
        covariance /= self._count - 1
        return Moments(self._count, mean, covariance)


def frechet_distance(first: Moments, second: Moments) -> float:
    """Return ‖μ₁ − μ₂‖² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½, ≥ 0.

    Sources: Dowson & Landau 1982; FID: Heusel et al. 2017.

    With Σᵢ = AᵢAᵢᵀ the last trace is the sum of the singular values of A₁ᵀA₂: the eigenvalues of
    Σ₁Σ₂ are their squares. So no square root of a matrix is taken, and rounding errors stay of the
    order of d·2⁻⁵² of the largest eigenvalue, where the eigenvalues of the product Σ₁Σ₂ would lose
    half of the digits. Aᵢ is the Cholesky factor of Σᵢ. For no more vectors than dimensions Aᵢ
    holds the centred vectors instead; for a covariance that is singular although there are more,
    the scaled eigenvectors whose eigenvalues exceed those rounding errors.
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
    if moments.factor is not None:
        return moments.factor
    covariance = moments.covariance
    dimensions = len(moments.mean)
    try:
        return np.linalg.cholesky(covariance).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        pass  # some dimension is constant, or a sum of others
    values, vectors = np.linalg.eigh(covariance)
    positive = values > dimensions * np.finfo(np.float64).eps * max(values[-1], 0.0)
    factor: Float64Array = vectors[:, positive] * np.sqrt(values[positive])
    return factor if positive.any() else np.zeros((dimensions, 1))


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


@dataclass(frozen=True)
class Manifold:
    """Precision, recall, density and coverage of real and generated vectors.

    They tell how the vectors lie in each other's balls.

    A vector's ball reaches to its k-th neighbour in its own set. Precision and recall: Kynkäänniemi
    et al. (2019); density and coverage: Naeem et al. (2020).
    """

    precision: (
        float  # share of generated vectors inside some real vector's ball: are they realistic?
    )
    # share of real vectors inside some generated vector's ball: is everything real there?
    recall: float
    density: (
        float  # mean number of real balls that a generated vector lies in, over k; may exceed 1
    )
    coverage: float  # share of real vectors whose ball holds a generated one


def manifold(real: Vectors, synthetic: Vectors, k: int = NEIGHBORS) -> Manifold:
    """Compare `synthetic` (m, d) with `real` (n, d) in float64.

    A ball excludes its rim, as in the authors' `prdc`.
    """
    if min(len(real), len(synthetic)) <= k:
        raise ValueError(f"{k} neighbours need {k + 1} vectors or more of each set.")
    # near the origin, squared distances computed by products lose the fewest digits
    centre = real.mean(axis=0, dtype=np.float64)
    both = (vectors.astype(np.float64) - centre for vectors in (real, synthetic))
    r, g = ((vectors, np.square(vectors).sum(axis=1)) for vectors in both)
    real_radii = _radii(r, k)
    generated_radii = _radii(g, k)
    inside = np.zeros(len(synthetic), np.int64)
    recalls = covers = 0
    for rows, distances in _blocks(r, g):
        within = distances < real_radii[rows, None]
        inside += within.sum(axis=0)
        covers += int(within.any(axis=1).sum())
        recalls += int((distances < generated_radii).any(axis=1).sum())
    return Manifold(
        float((inside > 0).mean()),
        recalls / len(real),
        float(inside.mean()) / k,
        covers / len(real),
    )


def _radii(vectors: tuple[Float64Array, Float64Array], k: int) -> Float64Array:
    """Return the squared distance of each vector to its k-th nearest other vector of the set."""
    radii = np.empty(len(vectors[0]))
    for rows, distances in _blocks(vectors, vectors):
        distances[np.arange(len(distances)), rows] = np.inf
        radii[rows] = np.partition(distances, k - 1, axis=1)[:, k - 1]
    return radii


def _blocks(
    x: tuple[Float64Array, Float64Array], y: tuple[Float64Array, Float64Array]
) -> Iterator[tuple[Int64Array, Float64Array]]:
    """Yield blocks of rows of x, as indices, with their squared distances to all rows of y."""
    for part in slices(len(x[0]), _ROWS):
        distances = x[1][part, None] + y[1] - 2 * (x[0][part] @ y[0].T)
        yield np.arange(len(x[0]))[part], np.maximum(distances, 0)


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
    moments: StreamedMoments | None = None
    chosen: list[Vectors] = []
    start = 0
    for vectors in embedding.blocks(samples):
        moments = moments or StreamedMoments(vectors.shape[1])
        moments.add(vectors)
        chosen.append(vectors[is_chosen[start : start + len(vectors)]])
        start += len(vectors)
        task.advance(len(vectors))
    assert moments is not None
    ranks = np.searchsorted(np.sort(order), order)
    return Features(moments.moments(), np.concatenate(chosen)[ranks])


def fidelity(
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
