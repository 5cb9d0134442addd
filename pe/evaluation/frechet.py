"""The Fréchet distance of two Gaussians (Dowson & Landau 1982; FID: Heusel et al. 2017), fitted to streamed vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
