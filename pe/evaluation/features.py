"""The Fréchet distance of two Gaussians (Dowson & Landau 1982; FID: Heusel et al. 2017), fitted to streamed vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples, generator
from pe.errors import ContractError, RecipeError
from pe.lookahead import embed_batches
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, PluginInfo, Vectors, info_of
from pe.plugins.registry import PluginSpec
from pe.private.dataset import sample_digest
from pe.progress import Task

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """What a Gaussian fitted to vectors is made of.

    Attributes:
        count: n, vectors seen, ≥ 2.
        mean: float64 (d,).
        covariance: float64 (d, d), with the divisor n − 1; of rank n − 1 at the most.
        factor: A with AAᵀ = covariance, float64 (d, n), where n ≤ d: the centred vectors over √(n − 1); else None.
    """

    count: int
    mean: Reals
    covariance: Reals
    factor: Reals | None = None


class StreamedMoments:
    """Adds up blocks of vectors; memory is d² whatever their number.

    Vectors are shifted by the first block's mean before they are squared, so that a mean that is large beside
    the spread costs no digits. The first d vectors are kept as they are, since fewer need no sum of squares.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions, self._count = dimensions, 0
        self._centre: Reals | None = None
        self._sum = np.zeros(dimensions)
        self._few: list[Reals] = []  # shifted vectors, until there are more than d
        self._squares: Reals | None = None  # after that the upper triangle of Σ (x − c)(x − c)ᵀ, in Fortran's order

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Enter a block of finite vectors, (n, d) with n ≥ 1."""
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

    def _square(self, rows: Reals) -> None:
        from scipy.linalg.blas import dsyrk

        self._squares = dsyrk(1.0, rows.T, beta=1.0, c=self._squares, overwrite_c=1)

    def moments(self) -> Moments:
        """Of all that was added.

        Raises:
            ValueError: fewer than two vectors.
        """
        if self._count < 2 or self._centre is None:
            raise ValueError("A covariance needs two vectors or more.")
        shift = self._sum / self._count
        mean = self._centre + shift
        if self._squares is None:
            centred = (np.concatenate(self._few) - shift) / np.sqrt(self._count - 1)
            return Moments(self._count, mean, centred.T @ centred, centred.T)
        covariance = np.triu(self._squares) + np.triu(self._squares, 1).T
        covariance -= self._count * np.outer(shift, shift)
        covariance /= self._count - 1
        return Moments(self._count, mean, covariance)


def frechet_distance(first: Moments, second: Moments) -> float:
    """‖μ₁ − μ₂‖² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁Σ₂)^½, ≥ 0.

    With Σᵢ = AᵢAᵢᵀ the last trace is the sum of the singular values of A₁ᵀA₂: the eigenvalues of Σ₁Σ₂ are their
    squares. So no square root of a matrix is taken, and rounding errors stay of the order of d·2⁻⁵² of the
    largest eigenvalue, where the eigenvalues of the product Σ₁Σ₂ would lose half of the digits. Aᵢ is the
    Cholesky factor; of no more vectors than dimensions, these vectors; of a covariance that is singular all the
    same, the eigenvectors with eigenvalues over that order.

    Raises:
        ValueError: vectors of different dimensions.
    """
    if first.mean.shape != second.mean.shape:
        raise ValueError(f"Vectors of {len(first.mean)} and {len(second.mean)} dimensions have no distance.")
    from scipy.linalg import svdvals

    apart = first.mean - second.mean
    common = svdvals(_factor(first).T @ _factor(second), check_finite=False).sum()
    traces = np.trace(first.covariance) + np.trace(second.covariance)
    return max(float(apart @ apart + traces - 2 * common), 0.0)


def _factor(moments: Moments) -> Reals:
    """A with AAᵀ = Σ, float64 (d, r)."""
    if moments.factor is not None:
        return moments.factor
    covariance, dimensions = moments.covariance, len(moments.mean)
    try:
        triangle: Reals = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
        return triangle
    except np.linalg.LinAlgError:
        pass  # some dimension is constant, or a sum of others
    values, vectors = np.linalg.eigh(covariance)
    kept = values > dimensions * np.finfo(np.float64).eps * max(values[-1], 0.0)
    factor: Reals = vectors[:, kept] * np.sqrt(values[kept])
    return factor if kept.any() else np.zeros((dimensions, 1))


# Samples as an embedding sees them: their moments, and some of their vectors.


KEPT = 10_000
"""Vectors kept of a set, at the most, for what looks at pairs or trains on them."""

MEMORY = 2**30
"""Bytes of vectors that are kept of all sets together."""


@dataclass(frozen=True, eq=False)
class Features:
    """A set of samples under an embedding.

    Attributes:
        moments: of all of them.
        kept: float32 (≤ KEPT, d), of a random choice, in random order.
    """

    moments: Moments
    kept: Vectors


class Seen:
    """An embedding that embeds an image once, whichever of an evaluation's sets it is in. It is an embedding, too.

    Vectors are kept while they take up to MEMORY; a set of more than KEPT images is embedded anew.

    Args:
        name: the embedding's, for the notes.
        embedding: maps samples to vectors.
    """

    def __init__(self, name: str, embedding: Embedding) -> None:
        self.name, self.embedding = name, embedding
        self._known: dict[bytes, Vectors] = {}
        self._room = MEMORY

    @property
    def batch_size(self) -> int:
        """The embedding's."""
        return self.embedding.batch_size

    @property
    def info(self) -> PluginInfo:
        """What the embedding declares."""
        return info_of(self.embedding)

    def embed(self, samples: Samples) -> Vectors:
        """The vectors of a block, float32 (n, d); one of which an image is new is embedded whole, in its own shape.

        Raises:
            PEError: see `pe.plugins.embed.embed_block`.
        """
        digests = _digests(samples)
        if any(digest not in self._known for digest in digests):
            return self._keep(digests, embed_block(self.embedding, samples))
        return np.stack([self._known[digest] for digest in digests])

    def blocks(self, samples: Samples) -> Iterator[Vectors]:
        """The vectors of all samples in their order, in the embedding's batches, each float32 (≤ batch_size, d).

        Raises:
            ContractError: a vector that is not finite.
        """
        for vectors in self._once(samples) if len(samples) <= KEPT else embed_batches(self.embedding, samples):
            if not np.isfinite(vectors).all():
                name = type(self.embedding).__name__
                raise ContractError(f"{name}.embed gave no finite vector for an image: see the log.")
            yield vectors

    def vectors(self, samples: Samples) -> Vectors:
        """float32 (n, d): the vectors of all samples.

        Raises:
            ContractError: one that is not finite.
        """
        return np.concatenate(list(self.blocks(samples)))

    def _once(self, samples: Samples) -> Iterator[Vectors]:
        """The vectors block by block; of images that are new, the first of each kind is embedded when it is needed."""
        digests, size = _digests(samples), self.batch_size
        known = {digest: self._known[digest] for digest in digests if digest in self._known}
        first = {digest: i for i, digest in reversed([*enumerate(digests)]) if digest not in known}
        new = np.array(sorted(first.values()), np.int64)
        batches = zip(range(0, len(new), size), embed_batches(self.embedding, samples.take(new)), strict=True)
        for start in range(0, len(digests), size):
            block = digests[start : start + size]
            while any(digest not in known for digest in block):
                place, vectors = next(batches)
                these = [digests[i] for i in new[place : place + size]]
                known |= zip(these, self._keep(these, vectors), strict=True)
            yield np.stack([known[digest] for digest in block])

    def _keep(self, digests: Sequence[bytes], vectors: Vectors) -> Vectors:
        """Remember `vectors`, which it returns, where there is room."""
        if vectors.nbytes <= self._room:
            self._room -= vectors.nbytes
            self._known |= zip(digests, vectors, strict=True)
        return vectors


def described(spec: PluginSpec) -> str:
    """An embedding's name: its kind with the settings that a recipe gives it."""
    settings = ", ".join(f"{key}={value}" for key, value in spec.settings.items())
    return f"{spec.kind} ({settings})" if settings else spec.kind


def _digests(samples: Samples) -> list[bytes]:
    return [sample_digest(each) for each in samples.array]


def features(samples: Samples, seen: Seen, seed: int, task: Task) -> Features:
    """Embed all samples, block by block; memory is d² and the kept vectors, whatever their number.

    Args:
        samples: two or more.
        seen: the embedding.
        seed: of the choice.
        task: told of every block.

    Raises:
        RecipeError: fewer than two samples.
        ContractError: a vector that is not finite.
    """
    if len(samples) < 2:
        raise RecipeError(f"A distance needs two samples or more of each set, not {len(samples)}.")
    order = generator(seed, "evaluation/kept").permutation(len(samples))[:KEPT]
    place = np.full(len(samples), -1)
    place[order] = np.arange(len(order))
    moments: StreamedMoments | None = None
    kept: Vectors | None = None
    start = 0
    for vectors in seen.blocks(samples):
        if moments is None or kept is None:
            moments = StreamedMoments(vectors.shape[1])
            kept = np.empty((len(order), vectors.shape[1]), np.float32)
        moments.add(vectors)
        places = place[start : start + len(vectors)]
        kept[places[places >= 0]] = vectors[places >= 0]
        start += len(vectors)
        task.advance(len(vectors))
    assert moments is not None
    assert kept is not None
    return Features(moments.moments(), kept)
