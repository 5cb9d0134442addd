"""DP-Gaussian: a Gaussian per label, from one noisy sum of first and second moments.

An image x in [0, 1]^d becomes u = (x − c)/r, cut to ‖u‖ ≤ 1, with a public centre c and a public
radius r. It adds v = (√a, √b·u, √s·uuᵀ) to the sum, a + b + s = 1. Of the symmetric uuᵀ, v holds
the diagonal, and √2 times the numbers above the diagonal, so ‖v‖² = a + b·‖u‖² + s·‖u‖⁴ ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from adapters.trained.answers import AnswersByCodes
from adapters.trained.fit import BELOW_ONE, Fit, FittedMethod, label_numbers, on_grid, reading
from adapters.trained.public import Public, ReadsPublic
from pe.data.arrays import Float32Array, Float64Array, ImageShape, Int64Array, UInt8Array
from pe.data.samples import slices
from pe.errors import PrivacyError, RecipeError
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.plugins.specs import plugin
from pe.privacy.noise import Noise
from pe.privacy.release import Release

# Grid steps per 1 in v. For products, u is rounded to about √GRID steps per 1, so that a product
# has about GRID.
GRID = 2**30

Covariance = Literal["auto", "pooled", "per_label"]

# Quantile of the public images' distances from their mean: the radius to which private images are
# cut.
CUT = 0.25

# With `auto`, labels have separate covariances if the noise on one has an `edge` of at most this,
# in squared radii.
CLEAR = 0.1

MOST_NUMBERS = 2**25

_MODEL = "gaussians.npz"

# Images in one matrix product, whose sums of integers below 2^31 are then exact in float64, in any
# order.
_BLOCK = 1024


@dataclass(frozen=True)
class Shares:
    """Public shares of ‖v‖², chosen by trials on drawn digits."""

    count: float = 0.05  # a, the share of the coordinate that counts records
    image: float = 0.45  # b, the share of u
    product: float = 0.5  # s, the share of uuᵀ


@dataclass(frozen=True, eq=False)
class Ball:
    """The public ball to which images are cut."""

    centre: Float64Array  # c, float64 (d,)
    radius: float  # r

    @classmethod
    def of_public(cls, images: UInt8Array, quantile: float) -> Ball:
        """Return the ball around the mean of public images, uint8 (m, h, w, c).

        Radius: a quantile of distances.
        """
        pixels = images.reshape(len(images), -1) / 255.0
        centre = pixels.mean(axis=0)
        distances = np.sqrt(np.square(pixels - centre).sum(axis=1))
        return cls(centre, max(float(np.quantile(distances, quantile)), 1 / 255))

    def inside(self, images: UInt8Array) -> Float64Array:
        """Return vectors u with ‖u‖ ≤ 1, float64 (n, d).

        Each is a function of its own image alone, to the last bit.
        """
        u = (images.reshape(len(images), -1) / 255.0 - self.centre) / self.radius
        norms = np.sqrt(np.square(u).sum(axis=1, keepdims=True))
        return np.asarray(u / np.maximum(norms, 1))


@dataclass(frozen=True)
class Layout:
    """Places of the sums in the one vector that is released."""

    classes: int  # number of labels
    dimensions: int  # d, the number of pixel values
    per_label: bool  # True: a sum of products for each label; False: one for all labels
    shares: Shares = Shares()  # of ‖v‖²

    @property
    def groups(self) -> int:
        """Number of sums of products."""
        return self.classes if self.per_label else 1

    @property
    def numbers(self) -> int:
        """Length of the vector."""
        d = self.dimensions
        return self.classes * (1 + d) + self.groups * (d * (d + 1) // 2)

    def split(
        self, total: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array, list[Int64Array]]:
        """Return views of the four parts of the vector.

        They are the counts, the sums (classes, d), the squares (groups, d) and, for each group, the
        products above the diagonal.

        Products are those above the diagonal, for each group.
        """
        k = self.classes
        d = self.dimensions
        g = self.groups
        counts, sums, squares, products = np.split(total, np.cumsum([k, k * d, g * d]))
        return counts, sums.reshape(k, d), squares.reshape(g, d), list(products.reshape(g, -1))


def noisy_sum(
    records: PrivateRecords,
    ball: Ball,
    layout: Layout,
    release: Release,
    noise: Noise,
) -> Int64Array:
    """Return the noisy sum of all records' v, int64 (numbers,), in grid steps.

    `layout` gives each label its places.

    Guarantee: the release's. A unit's n records weigh 1/n each. The numbers of v/n are rounded
    toward zero on the grid; for products above the diagonal, u/√n is rounded toward zero on a
    coarser grid, then multiplied in integers. No number grows: adding or removing a unit changes
    the clean sum by at most 1 in L2 norm, replacing one by at most 2.
    """
    total = np.zeros(layout.numbers, dtype=np.int64)
    counts, sums, squares, products = layout.split(total)
    above = np.triu(np.ones((layout.dimensions, layout.dimensions), dtype=np.bool_), 1)
    shares = layout.shares
    labels = records.labels.astype(np.int64)
    groups = labels if layout.per_label else np.zeros_like(labels)
    # Products of integers are exact, so u itself is put on a grid whose square is about that of v.
    fine = math.sqrt(math.sqrt(2 * shares.product) * release.grid * BELOW_ONE)
    for rows, unit_sizes in _blocks(records):
        u = ball.inside(records.samples[rows])
        np.add.at(counts, labels[rows], on_grid(math.sqrt(shares.count) / unit_sizes, release.grid))
        np.add.at(
            sums,
            labels[rows],
            on_grid(math.sqrt(shares.image) * u / unit_sizes[:, None], release.grid),
        )
        np.add.at(
            squares,
            groups[rows],
            on_grid(math.sqrt(shares.product) * u**2 / unit_sizes[:, None], release.grid),
        )
        steps = np.trunc(u * (fine / np.sqrt(unit_sizes))[:, None])
        for group in np.unique(groups[rows]):
            some = steps[groups[rows] == group]
            products[group] += (some.T @ some)[above].astype(np.int64)
    return total + noise.discrete_gaussian(total.shape, release.scale)


def _blocks(records: PrivateRecords) -> Iterator[tuple[slice, Float64Array]]:
    """Yield slices of the records, with the size of the privacy unit of each record."""
    unit, sizes = records.by_unit()
    unit_sizes = sizes[unit].astype(np.float64)
    for rows in slices(len(unit_sizes), _BLOCK):
        yield rows, unit_sizes[rows]


# Gaussians that follow from the noisy sums: post-processing.


def edge(layout: Layout, deviation: float, records: float) -> float:
    """Return about the largest eigenvalue that noise alone gives a covariance.

    It follows from public or released numbers.

    The noise on the mean of uuᵀ over `records` records is a symmetric matrix. Its numbers off the
    diagonal have the standard deviation t = deviation/(√2·√s·records), so its largest eigenvalue is
    about 2·t·√d (Wigner).
    """
    return deviation * math.sqrt(2 * layout.dimensions / layout.shares.product) / records


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A Gaussian of images for each label."""

    classes: tuple[str, ...]  # the label names
    shape: ImageShape  # height, width, channels
    means: Float64Array  # float64 (labels, d), of pixels in [0, 1]
    # float64 (labels, d, r), or (1, d, r) for all labels: F, which gives the covariance F·Fᵀ
    factors: Float64Array

    @property
    def code_length(self) -> int:
        """r, the length of the code z that an image is made from."""
        return int(self.factors.shape[2])

    def images(self, codes: Float32Array, labels: Int64Array) -> UInt8Array:
        """Return mean + F·z for each code, uint8 (n, h, w, c).

        An image depends on its own code and label alone.
        """
        images = np.empty((len(codes), *self.shape), dtype=np.uint8)
        for image, code, label in zip(images, codes, labels, strict=True):
            factor = self.factors[label % len(self.factors)]
            pixels = self.means[label] + factor @ code.astype(np.float64)
            image[:] = np.rint(np.clip(pixels, 0, 1) * 255).reshape(self.shape)
        return images

    def surprises(self, images: UInt8Array, labels: Int64Array) -> Float64Array:
        """Return −2·log density of each image, uint8 (n, h, w, c), up to a constant: float64 (n,).

        In the directions that noise hid, which F lacks, the variance is taken to be σ²: the least
        of the variances that F has, at most 1. With F = U·S·Vᵀ and y = x − mean, return Σ
        (uᵢ·y)²/sᵢ² + (‖y‖² − Σ (uᵢ·y)²)/σ² + log det.
        """
        losses = np.empty(len(images))
        parts = [_directions(factor) for factor in self.factors]
        pixels = images.reshape(len(images), -1) / 255.0
        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            along, variances = parts[label % len(parts)]
            y = image - self.means[label]
            squares = np.square(along.T @ y)
            least = variances.min(initial=1.0)
            across = max(0.0, float(y @ y - squares.sum()))
            logs = np.log(variances).sum() + (len(y) - len(variances)) * math.log(least)
            losses[i] = (squares / variances).sum() + across / least + logs
        return losses

    def write(self, file: Path) -> None:
        """Write the Gaussians to an .npz file."""
        np.savez(file, **vars(self))

    @classmethod
    def read(cls, file: Path) -> Gaussians:
        """Read a file that `write` wrote.

        Raise ValueError or another error if it is missing or damaged.
        """
        with np.load(file, allow_pickle=False) as archive:
            classes, shape, means, factors = (archive[one.name] for one in fields(cls))
        height, width, channels = map(int, shape)
        model = cls(tuple(map(str, classes)), (height, width, channels), means, factors)
        fits = (
            means.shape == (len(classes), height * width * channels)
            and factors.shape[1] == means.shape[1]
        )
        if not fits or len(factors) not in (1, len(classes)):
            raise ValueError("arrays of other shapes")
        return model


def gaussians_of(
    total: Int64Array, layout: Layout, ball: Ball, release: Release, terms: FitTerms
) -> Gaussians:
    """Return the Gaussians that follow from the noisy sums.

    Eigenvalues up to the `edge` of the noise are dropped. A label's noisy count is raised to at
    least the standard deviation of the count's noise.
    """
    counts, sums, squares, products = layout.split(total)
    deviation = release.sensitivity * release.noise_multiplier
    shares = layout.shares
    product = math.sqrt(shares.product) * release.grid
    sizes = np.maximum(
        counts / (math.sqrt(shares.count) * release.grid),
        deviation / math.sqrt(shares.count),
    )
    means = sums / (math.sqrt(shares.image) * release.grid) / sizes[:, None]
    each = []
    for group, (diagonal, above) in enumerate(zip(squares, products, strict=True)):
        # Of uuᵀ only one half was released, times √2: the covariance is the mean of uuᵀ less that
        # of the means.
        of = slice(group, group + 1) if layout.per_label else slice(None)
        own = sizes[of]
        records = own.sum()
        second = np.zeros((layout.dimensions, layout.dimensions))
        second[np.triu_indices(layout.dimensions, 1)] = above / (product * math.sqrt(2))
        second = (second + second.T + np.diag(diagonal / product)) / records
        second -= (means[of].T * own) @ means[of] / records
        each.append(_factor(second, edge(layout, deviation, float(records))))
    columns = max(1, *(factor.shape[1] for factor in each))
    factors = np.stack(
        [np.pad(factor, ((0, 0), (0, columns - factor.shape[1]))) for factor in each]
    )
    means = ball.centre + ball.radius * means
    return Gaussians(terms.classes, terms.image_shape, means, ball.radius * factors)


def _directions(factor: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the r' unit vectors along which a Gaussian of covariance F·Fᵀ varies, and how much.

    The directions are unit vectors, float64 (d, r').
    """
    along, deviations, _ = np.linalg.svd(factor, full_matrices=False)
    columns = deviations > 1e-9
    return along[:, columns], np.square(deviations[columns])


def _factor(covariance: Float64Array, least: float) -> Float64Array:
    """Return F such that F·Fᵀ is the covariance without eigenvalues up to `least`.

    Columns go by falling eigenvalue.
    """
    from scipy.linalg import eigh

    values, vectors = eigh(covariance, subset_by_value=(least, np.inf))
    return np.asarray((vectors * np.sqrt(values))[:, ::-1])


@plugin
class DPGaussian(ReadsPublic, AnswersByCodes, FittedMethod):
    """The fit to try first, as it takes seconds: Gaussians, the baseline of all fits.

    It is for small aligned images. Every private image is cut to a ball around the mean of public
    images. One noisy sum then releases, for each label, the number of images, their sum, and the
    sum of their products xxᵀ; or one sum of products for all labels. Means and covariances follow
    from it, without eigenvalues that noise alone could cause. A sample carries the code z that it
    was made from; a variation of degree d carries √(1−d²)·z + d·ξ with a new code ξ: 0 changes
    nothing, 1 gives ξ.

    Conditions: `code` (float32, n×r).

    Args:
        public: images; only their mean, and a quantile of the distances from it, are used.
            `kind: noise` if you have none.
        covariance: `per_label`, `pooled` for one that all labels share, or `auto`: per label if the
            noise is small enough, judged by the declared size, the number of labels, the images'
            size and the budget.
    """

    public: Public
    covariance: Covariance = "auto"

    def _fit(self, fit: Fit) -> None:
        terms = fit.terms
        self.public.check(terms.image_shape)
        release = fit.sum("sums", grid=GRID)
        deviation = release.sensitivity * release.noise_multiplier
        layout = self._layout(terms, deviation)
        if layout.numbers > MOST_NUMBERS:
            raise RecipeError(
                f"`api.covariance: {self.covariance}` takes {layout.numbers:,} numbers for these "
                f"images and labels, more than {MOST_NUMBERS:,}. Make `private.size` smaller, or "
                "set `api.covariance: auto`."
            )
        # With more noise than records on the counts, the means would be noise alone.
        noise_of_count = deviation / np.sqrt(layout.shares.count)
        if noise_of_count > terms.declared_size:
            raise PrivacyError(
                f"`dp_gaussian` would add noise of {noise_of_count:,.0f} to the number of "
                f"records, of which {terms.declared_size:,} are declared. Raise `privacy.epsilon`."
            )
        fit.begin()
        ball = Ball.of_public(self.public.read(terms.image_shape, terms.seed).images, CUT)
        total = fit.release(
            release,
            lambda records, noise: noisy_sum(records, ball, layout, release, noise),
        )
        model = gaussians_of(total, layout, ball, release, terms)
        model.write(fit.folder / _MODEL)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        with reading(folder, "fitted Gaussians"):
            self._model = Gaussians.read(folder / _MODEL)
        self._classes = self._model.classes

    def record_losses(
        self, folder: Path, samples: UInt8Array, labels: Sequence[str]
    ) -> Float64Array:
        """Return −2·log density of each image under its label's Gaussian, float64 (n,).

        A constant is left out.
        """
        self.load(folder)
        assert isinstance(self._model, Gaussians)
        return self._model.surprises(samples, label_numbers(labels, self._classes))

    def _layout(self, terms: FitTerms, deviation: float) -> Layout:
        """Return the layout, chosen by public numbers alone."""
        classes = len(terms.classes)
        dimensions = int(np.prod(terms.image_shape))
        if self.covariance != "auto":
            return Layout(classes, dimensions, self.covariance == "per_label")
        each = Layout(classes, dimensions, per_label=True)
        is_clear = edge(each, deviation, terms.declared_size / classes) <= CLEAR
        return Layout(classes, dimensions, is_clear and each.numbers <= MOST_NUMBERS)
