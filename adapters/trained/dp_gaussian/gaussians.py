"""Gaussians that follow from the noisy sums. They see no private record: all here is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from adapters.trained.dp_gaussian.sums import Ball, Floats, Integers, Layout
from pe.errors import RecipeError

_NAMES = ("classes", "shape", "means", "factors")


def edge(layout: Layout, deviation: float, records: float) -> float:
    """The largest eigenvalue that noise alone has, near enough, in a covariance of so many records; public.

    The noise of a mean of uuᵀ is a symmetric matrix whose numbers off the diagonal have the standard deviation
    t = deviation/(√2·√s·records): its largest eigenvalue is about 2·t·√d (Wigner).
    """
    return deviation * math.sqrt(2 * layout.dimensions / layout.shares.product) / records


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A Gaussian of images for each label.

    Attributes:
        classes: the label names.
        shape: height, width, channels.
        means: float64 (labels, d), of pixels in [0, 1].
        factors: float64 (labels, or 1 for all, d, r): F, of the covariance F·Fᵀ.
    """

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    means: Floats
    factors: Floats

    @property
    def code_length(self) -> int:
        """r, of the code z that an image is made from."""
        return int(self.factors.shape[2])

    def images(self, codes: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Mean + F·z for each code, uint8 (n, h, w, c); an image depends on its own code and label alone."""
        made = np.empty((len(codes), self.means.shape[1]), dtype=np.uint8)
        for image, code, label in zip(made, codes, labels, strict=True):
            pixels = self.means[label] + self.factors[label % len(self.factors)] @ code.astype(np.float64)
            image[:] = np.rint(np.clip(pixels, 0, 1) * 255)
        return made.reshape(-1, *self.shape)

    def surprises(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> Floats:
        """−2·log density of each image, uint8 (n, h, w, c), but for a constant: float64 (n,).

        Across the directions that the noise left, the variance is taken to be the least that it left: σ². With
        F = U·S·Vᵀ, x − mean = y: Σ (uᵢ·y)²/sᵢ² + (‖y‖² − Σ (uᵢ·y)²)/σ² + log det.
        """
        found = np.empty(len(images))
        parts = [_directions(factor) for factor in self.factors]
        pixels = images.reshape(len(images), -1) / 255.0
        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            along, variances = parts[label % len(parts)]
            y = image - self.means[label]
            squares, least = np.square(along.T @ y), variances.min(initial=1.0)
            across = max(0.0, float(y @ y - squares.sum()))
            logs = np.log(variances).sum() + (len(y) - len(variances)) * math.log(least)
            found[i] = (squares / variances).sum() + across / least + logs
        return found

    def write(self, file: Path) -> None:
        """Write them to an .npz file."""
        np.savez(
            file,
            classes=np.array(self.classes, dtype=np.str_),
            shape=np.array(self.shape),
            means=self.means,
            factors=self.factors,
        )

    @classmethod
    def read(cls, file: Path) -> Gaussians:
        """What `write` wrote.

        Raises:
            RecipeError: it is not there, or damaged.
        """
        try:
            with np.load(file, allow_pickle=False) as stored:
                classes, shape, means, factors = (stored[name] for name in _NAMES)
            height, width, channels = map(int, shape)
            found = cls(tuple(map(str, classes)), (height, width, channels), means, factors)
            fits = means.shape == (len(classes), height * width * channels) and factors.shape[1] == means.shape[1]
        except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, BadZipFile) as error:
            raise RecipeError(f"{file.parent} holds no fitted Gaussians: fit them in a new run.") from error
        if not fits or len(factors) not in (1, len(classes)):
            raise RecipeError(f"{file.parent} holds no fitted Gaussians: fit them in a new run.")
        return found


def gaussians_of(
    total: Integers,
    layout: Layout,
    ball: Ball,
    *,
    grid: int,
    deviation: float,
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
) -> Gaussians:
    """The Gaussians of the noisy sums; eigenvalues under the edge of the noise are dropped.

    A label with fewer records than the noise of its count counts as that many.

    Args:
        total: `noisy_sum`.
        layout: of `total`.
        ball: where images were cut.
        grid: of the release.
        deviation: of the noise, in units of ‖v‖.
        classes: the label names.
        shape: height, width, channels.
    """
    counts, sums, squares, products = layout.split(total)
    a, b, s = (math.sqrt(share) * grid for share in (layout.shares.count, layout.shares.image, layout.shares.product))
    sizes = np.maximum(counts / a, deviation / math.sqrt(layout.shares.count))
    means = sums / b / sizes[:, None]
    kept = []
    for group, (diagonal, above) in enumerate(zip(squares, products, strict=True)):
        of = slice(group, group + 1) if layout.per_label else slice(None)
        second = _symmetric(diagonal / s, above / (s * math.sqrt(2))) / sizes[of].sum()
        second -= (means[of].T * sizes[of]) @ means[of] / sizes[of].sum()
        kept.append(_factor(second, edge(layout, deviation, float(sizes[of].sum()))))
    factors = np.zeros((len(kept), layout.dimensions, max(1, *(factor.shape[1] for factor in kept))))
    for padded, factor in zip(factors, kept, strict=True):
        padded[:, : factor.shape[1]] = factor
    return Gaussians(classes, shape, ball.centre + ball.radius * means, ball.radius * factors)


def _directions(factor: Floats) -> tuple[Floats, Floats]:
    """Unit vectors, float64 (d, r'), and the variance along each, of a factor's r' columns that are not zero."""
    along, deviations, _ = np.linalg.svd(factor, full_matrices=False)
    kept = deviations > 1e-9
    return along[:, kept], np.square(deviations[kept])


def _symmetric(diagonal: Floats, above: Floats) -> Floats:
    matrix = np.zeros((len(diagonal), len(diagonal)))
    matrix[np.triu(np.ones(matrix.shape, dtype=np.bool_), 1)] = above
    return matrix + matrix.T + np.diag(diagonal)


def _factor(covariance: Floats, least: float) -> Floats:
    """F with the eigenvalues above `least`, largest first: F·Fᵀ is what they explain of the covariance."""
    from scipy.linalg import eigh

    values, vectors = eigh(covariance, subset_by_value=(least, np.inf))
    factor: Floats = (vectors * np.sqrt(values))[:, ::-1]
    return factor
