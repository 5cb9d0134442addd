"""Weights of candidates under labels.

Near candidates have near votes, so smooth votes tell which label wants a candidate. This is
post-processing: nothing here sees a private record. docs/plan.md says what it brings, and what else
was tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import Float32Array, Float64Array, Int32Array, Int64Array

LabelWeights = Float64Array
Vectors = Float32Array
Votes = Float64Array
Labels = Int32Array
Items = Int64Array
Matrix = Float64Array

LANDMARKS = 256
"""Most candidates in whose span the smooth votes lie (Nyström's method), so that time grows with
the others linearly alone."""
LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Lengths ℓ of the kernel that are tried, over the median distance between landmarks."""
VARIANCES = np.array([0.0, *2.0 ** np.arange(-8, 3)])
"""Prior variances that are tried, over the variance of a label's noisy votes."""
POWER = 4
"""The power of a label's smooth votes over the highest of any label's, which is the weight."""
TRIED = 4096
"""Most candidates of a label by which the kernel's length is chosen."""
COPY = 0.05
"""Distance between two candidates of a label, over the median distance between landmarks, up to
which the one of fewer votes is a near copy of the other."""
COMPARED = 2048
"""The best candidates of each label that are compared with each other."""
BLOCK = 4096
"""Candidates whose distances to landmarks are computed at once."""


def label_weights(
    noisy: Votes,
    labels: Labels,
    vectors: Vectors,
    sigma: float,
    rng: np.random.Generator,
) -> LabelWeights:
    """Return each candidate's weight, by which its noisy votes are multiplied.

    The weight is 1 if no other label wants the candidate more. The noisy votes of a label's
    candidates are taken as v = μ + f(x) + g + noise: f a Gaussian process over the vectors x with
    the kernel a·exp(−‖x − y‖²/2ℓ²), g of variance b for each candidate alone. ℓ, and a and b over
    the variance of a label's noisy votes, are those of the highest marginal likelihood, over all
    labels together (Rasmussen and Williams 2006, chapter 5). F is the posterior mean of μ + f, at
    least the standard error of the label's mean vote, over the square root of that mean: halfway
    between votes, by which large labels take what others want, and each label's shares of its own.
    A weight is (F of the candidate's own label / the highest F of any label)^POWER, at the
    candidate's vector.

    Guarantee: post-processing of `noisy`; everything else is public.

    Args:
        noisy: votes with noise, float64 (m,).
        labels: int32 (m,).
        vectors: the candidates' embeddings, float32 (m, d).
        sigma: standard deviation of the noise, in votes.
        rng: public randomness, by which landmarks are drawn.

    Returns:
        float64 (m,) in [0, 1]. Near copies weigh 0: candidates within COPY of one of their label
            that weighs more. Before copies are sought, all weights are 1 with one label and without
            noise, and so is that of a vector that is not finite.
    """
    weights = np.ones(len(noisy))
    rows = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    members = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    landmarks = vectors[rng.choice(rows, min(len(rows), LANDMARKS), replace=False)].astype(
        np.float64
    )
    distances = np.sqrt(_squares(landmarks, landmarks)[np.triu_indices(len(landmarks), 1)])
    median = float(np.median(distances)) if distances.size else 0.0
    if sigma and len(members) > 1 and median:
        bases = (_Basis.of(landmarks, median * length) for length in LENGTHS)
        # A sample decides the kernel; the posterior mean is then taken over all candidates.
        some = [rng.permutation(own)[:TRIED] if len(own) > TRIED else own for own in members]
        fit = max(
            (_fit(basis, some, noisy, vectors, sigma) for basis in bases),
            key=lambda fit: fit.likelihood,
        )
        if sum(map(len, some)) < len(rows):
            fit = _fit(fit.basis, members, noisy, vectors, sigma)
        least = sigma / np.sqrt([len(own) for own in members])
        scales = np.sqrt(np.maximum([noisy[own].mean() for own in members], least))
        for label, own in enumerate(members):
            for part, functions in fit.basis.blocks(vectors, own):
                smooth = np.maximum(fit.means + functions @ fit.coefficients, least) / scales
                weights[part] = (smooth[:, label] / smooth.max(axis=1)) ** POWER
    for own in members:
        weights[_near_copies(own, noisy * weights, vectors, COPY * median)] = 0
    return weights


def _near_copies(
    rows: Items,
    weights: Votes,
    vectors: Vectors,
    distance: float,
) -> Items:
    """Return those of the best COMPARED `rows` that are near to one that weighs more."""
    best = rows[np.argsort(-weights[rows], kind="stable")][:COMPARED]
    own = vectors[best].astype(np.float64)
    is_near = _squares(own, own) <= distance**2
    return best[np.tril(is_near, -1).any(axis=1)]


@dataclass(frozen=True)
class _Basis:
    """Functions of a vector in whose span the smooth votes lie.

    They are the kernel with each landmark, made orthonormal.
    """

    landmarks: Matrix
    length: float
    weights: Matrix

    @classmethod
    def of(cls, landmarks: Matrix, length: float) -> _Basis:
        values, directions = np.linalg.eigh(
            np.exp(-_squares(landmarks, landmarks) / (2 * length**2))
        )
        large = values > values.max() * 1e-8
        return cls(landmarks, length, directions[:, large] / np.sqrt(values[large]))

    def blocks(
        self,
        vectors: Vectors,
        rows: Items,
    ) -> Iterator[tuple[Items, Matrix]]:
        """Yield some rows of the vectors, block by block, and the functions' values at them."""
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            squares = _squares(vectors[part].astype(np.float64), self.landmarks)
            yield part, np.exp(-squares / (2 * self.length**2)) @ self.weights


@dataclass(frozen=True)
class _Sums:
    """Sums over a label's candidates, which are all that the likelihood of its votes takes.

    Attributes:
        values: eigenvalues of the products of the functions, (r,).
        directions: of these eigenvalues, in the functions, scaled to length 1 over the candidates,
            (functions, r).
        along: products of the directions with ones and with the votes, (r, 2).
        products: products of ones and the votes with each other, (2, 2).
    """

    values: Votes
    directions: Matrix
    along: Matrix
    products: Matrix

    @classmethod
    def of(
        cls,
        basis: _Basis,
        rows: Items,
        noisy: Votes,
        vectors: Vectors,
    ) -> _Sums:
        size = basis.weights.shape[1]
        products = np.zeros((size + 2, size + 2))
        for part, functions in basis.blocks(vectors, rows):
            block = np.column_stack([functions, np.ones(len(part)), noisy[part]])
            products += block.T @ block
        # Directions without weight would be divided by nearly zero.
        values, directions = np.linalg.eigh(products[:size, :size])
        large = values > values.max() * 1e-10
        values = values[large]
        directions = directions[:, large] / np.sqrt(values)
        along = directions.T @ products[:size, size:]
        return cls(values, directions, along, products[size:, size:])

    @property
    def spread(self) -> float:
        """The variance of the noisy votes."""
        mean, square = self.products[1] / self.products[0, 0]
        return max(float(square - mean**2), np.finfo(float).tiny)

    def likelihood(
        self,
        a: Matrix,
        b: Matrix,
        sigma: float,
    ) -> tuple[Matrix, Matrix]:
        """Return the log likelihood at variances a and b, arrays of one shape, and μ.

        μ follows by generalised least squares.
        """
        inside = a[..., None] * self.values + b[..., None] + sigma**2
        outside = b + sigma**2
        # The covariance is `inside` along the directions, and `outside` at right angles to them.
        rest = self.products - self.along.T @ self.along
        scaled = np.einsum("ri,...r,rj->ij...", self.along, 1 / inside, self.along)
        scaled += rest[:, :, None, None] / outside
        count = self.products[0, 0] - len(self.values)
        logs = np.log(inside).sum(-1) + count * np.log(outside)
        mean = scaled[0, 1] / scaled[0, 0]
        return -(logs + scaled[1, 1] - mean * scaled[0, 1]) / 2, mean


@dataclass(frozen=True)
class _Fit:
    """The smooth votes of all labels by one kernel.

    F = means + functions @ coefficients, (labels,).
    """

    likelihood: float
    basis: _Basis
    means: Votes
    coefficients: Matrix


def _fit(
    basis: _Basis,
    members: list[Items],
    noisy: Votes,
    vectors: Vectors,
    sigma: float,
) -> _Fit:
    """Return the posterior mean for one kernel, at the prior variances that fit all labels best."""
    sums = [_Sums.of(basis, rows, noisy, vectors) for rows in members]
    a, b = np.meshgrid(VARIANCES, VARIANCES, indexing="ij")
    likelihoods, means = zip(
        *(each.likelihood(a * each.spread, b * each.spread, sigma) for each in sums),
        strict=True,
    )
    likelihood = np.sum(likelihoods, axis=0)
    best = np.unravel_index(likelihood.argmax(), likelihood.shape)
    mean = np.array([each[best] for each in means])
    coefficients = []
    for each, mu in zip(sums, mean, strict=True):
        smooth = a[best] * each.spread * each.values
        noise = b[best] * each.spread + sigma**2
        shares = smooth / (smooth + noise)
        coefficients.append(each.directions @ (shares * (each.along @ [-mu, 1])))
    return _Fit(float(likelihood[best]), basis, mean, np.stack(coefficients, axis=1))


def _squares(x: Matrix, y: Matrix) -> Matrix:
    """Return the squared distances between rows of x and rows of y."""
    squares: Matrix = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1) - 2 * x @ y.T
    return np.maximum(squares, 0)
