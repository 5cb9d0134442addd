"""Clipped images, and the noisy sum of their moments up to the second, per label or pooled, in one release.

An image x in [0, 1]^d becomes u = (x − c)/r, cut to ‖u‖ ≤ 1, with a public centre c and a public radius r. It adds
v = (√a, √b·u, √s·uuᵀ) with a + b + s = 1. Of the symmetric uuᵀ there is the diagonal, and √2 times what lies above it,
so ‖v‖² = a + b·‖u‖² + s·‖u‖⁴ ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adapters.trained.releases import BELOW_ONE, on_grid
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

GRID = 2**30
"""Grid steps per ‖v‖ = 1. Products of two coordinates of u then have about as many steps as each of the two squared."""

_BLOCK = 1024
"""Images in one matrix product. It adds integers below 2^31, so it is exact in float64, in whatever order."""


@dataclass(frozen=True)
class Shares:
    """Of the squared norm: public. Chosen on drawn digits (benchmarks/dp_gaussian.py).

    Attributes:
        count: a, of the 1 that counts a record.
        image: b, of u.
        product: s, of uuᵀ.
    """

    count: float = 0.05
    image: float = 0.45
    product: float = 0.5


@dataclass(frozen=True, eq=False)
class Ball:
    """Where images are cut: public.

    Attributes:
        centre: c, float64 (d,).
        radius: r.
    """

    centre: Floats
    radius: float

    @classmethod
    def of_public(cls, images: npt.NDArray[np.uint8], quantile: float) -> Ball:
        """The mean of public images, uint8 (m, h, w, c), and the quantile of their distances from it."""
        pixels = images.reshape(len(images), -1) / 255.0
        centre = pixels.mean(axis=0)
        distances = np.sqrt(np.square(pixels - centre).sum(axis=1))
        return cls(centre, max(float(np.quantile(distances, quantile)), 1 / 255))

    def inside(self, images: npt.NDArray[np.uint8]) -> Floats:
        """Vectors u, float64 (n, d), each a function of its own image alone, to the last bit; ‖u‖ ≤ 1."""
        u = (images.reshape(len(images), -1) / 255.0 - self.centre) / self.radius
        norms = np.sqrt(np.square(u).sum(axis=1, keepdims=True))
        cut: Floats = u / np.maximum(norms, 1)
        return cut


@dataclass(frozen=True)
class Layout:
    """How the sum lies in one vector.

    Attributes:
        classes: labels.
        dimensions: d.
        per_label: whether there is a sum of products for each label, or one for all.
        shares: of the squared norm.
    """

    classes: int
    dimensions: int
    per_label: bool
    shares: Shares = Shares()

    @property
    def groups(self) -> int:
        """How many sums of products there are."""
        return self.classes if self.per_label else 1

    @property
    def numbers(self) -> int:
        """Length of the vector."""
        d = self.dimensions
        return self.classes * (1 + d) + self.groups * (d * (d + 1) // 2)

    def split(self, total: Integers) -> tuple[Integers, Integers, Integers, list[Integers]]:
        """Views of it: counts, sums (classes, d), squares (groups, d), and each group's products above the diagonal."""
        k, d, g = self.classes, self.dimensions, self.groups
        counts, sums, squares, products = np.split(total, np.cumsum([k, k * d, g * d]))
        return counts, sums.reshape(k, d), squares.reshape(g, d), list(products.reshape(g, -1))


def noisy_sum(records: PrivateRecords, ball: Ball, layout: Layout, release: Release, noise: Noise) -> Integers:
    """The noisy sum of the records' v, each in its label's places, int64 (numbers,), in the release's grid steps.

    Guarantee: the release's. A unit's n records weigh 1/n each. The numbers of v are rounded toward zero on the grid;
    for the products those of u are, on a grid of their own, before they are multiplied as integers. So none grows: one
    unit more changes the clean sum by at most 1 in L2 norm, another in its place by at most 2.

    Args:
        records: the private ones; there may be none.
        ball: where they are cut.
        layout: of the sum.
        release: its declaration; its grid is at most GRID.
        noise: where noise comes from.
    """
    total = np.zeros(layout.numbers, dtype=np.int64)
    counts, sums, squares, products = layout.split(total)
    above = np.triu(np.ones((layout.dimensions, layout.dimensions), dtype=np.bool_), 1)
    shares, labels = layout.shares, records.labels.astype(np.int64)
    groups = labels if layout.per_label else np.zeros_like(labels)
    fine = math.sqrt(math.sqrt(2 * shares.product) * release.grid * BELOW_ONE)
    for rows, owned in _blocks(records):
        u = ball.inside(records.samples[rows])
        np.add.at(counts, labels[rows], on_grid(math.sqrt(shares.count) / owned, release.grid))
        np.add.at(sums, labels[rows], on_grid(math.sqrt(shares.image) * u / owned[:, None], release.grid))
        np.add.at(squares, groups[rows], on_grid(math.sqrt(shares.product) * u**2 / owned[:, None], release.grid))
        steps = np.trunc(u * (fine / np.sqrt(owned))[:, None])
        for group in np.unique(groups[rows]):
            some = steps[groups[rows] == group]
            products[group] += (some.T @ some)[above].astype(np.int64)
    return total + noise.discrete_gaussian(total.shape, release.scale)


def _blocks(records: PrivateRecords) -> Iterator[tuple[slice, Floats]]:
    """Which records, and how many their units own."""
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    owned = of_unit[unit].astype(np.float64)
    for start in range(0, len(owned), _BLOCK):
        rows = slice(start, start + _BLOCK)
        yield rows, owned[rows]
