"""Noised sums of drawn subsets of the private images, and the central images that follow from them (DP-FETA)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from adapters.trained.releases import on_grid
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

Sums = npt.NDArray[np.int64]
Shape = tuple[int, int, int]

COUNTING = 0.2
"""What a record adds to its label's count; the rest of a norm of 1 is its image's."""

_FEWEST = 0.25
"""Least share of an even share of the records that a label is taken to have."""


@dataclass(frozen=True)
class Reading:
    """How an image becomes a vector of L2 norm ≤ 1; all of it public.

    Attributes:
        shrink: pixels of a side that are averaged into one.
        centre: the brightness in [0, 1] that counts as 0.
        clip: the L2 norm that an image is cut to, over the root of the number of its values.
    """

    shrink: int
    centre: float
    clip: float

    def small(self, shape: Shape) -> Shape:
        """Height, width and channels of a shrunken image."""
        height, width, channels = shape
        return -(-height // self.shrink), -(-width // self.shrink), channels

    def __call__(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Float64, of norm ≤ 1: the shrunken image, cut, and the label's count."""
        height, width, _ = self.small(image.shape)
        wide = ((0, height * self.shrink - image.shape[0]), (0, width * self.shrink - image.shape[1]), (0, 0))
        padded = np.pad(image, wide, mode="edge").reshape(height, self.shrink, width, self.shrink, -1)
        values = (padded.mean(axis=(1, 3)) / 255.0 - self.centre).reshape(-1) / (self.clip * self._root(image.shape))
        values *= np.sqrt(1 - COUNTING**2) / max(1.0, float(np.linalg.norm(values)))
        return np.append(values, COUNTING)

    def images(self, sums: Sums, release: Release, expected: float, shape: Shape) -> npt.NDArray[np.uint8]:
        """The central images of noised sums, uint8 (subsets, classes, h, w, c). Post-processing.

        Args:
            sums: int64 (subsets, classes, D + 1), in grid steps.
            release: which they are.
            expected: records of a subset and a label, if all labels have as many.
            shape: of an image.
        """
        vectors = sums / release.grid
        counts = np.maximum(vectors[..., -1].mean(axis=0) / COUNTING, _FEWEST * expected)
        means = vectors[..., :-1] / counts[:, None] / np.sqrt(1 - COUNTING**2)
        pixels = self.centre + self.clip * self._root(shape) * means.reshape(*sums.shape[:2], *self.small(shape))
        wide = ndimage.zoom(pixels, (1, 1, self.shrink, self.shrink, 1), order=1, mode="nearest", grid_mode=True)
        whole = wide[:, :, : shape[0], : shape[1]]
        return np.asarray((whole * 255).round().clip(0, 255), dtype=np.uint8)

    def _root(self, shape: tuple[int, ...]) -> float:
        return float(np.sqrt(np.prod(self.small((shape[0], shape[1], shape[2])))))


def noisy_sums(records: PrivateRecords, classes: int, reading: Reading, release: Release, noise: Noise) -> Sums:
    """The noised sums of the drawn subsets, int64 (subsets, classes, D + 1), in the release's grid steps.

    Guarantee: the release's, `count` times. Each subset has a coin for every unit. A unit's records share a weight of
    1, each vector is rounded toward zero on the grid and depends on its record alone: one unit more changes a subset's
    clean sums by at most 1 in L2 norm, another in its place by at most 2.
    """
    names, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    length = int(np.prod(reading.small(records.samples.shape[1:]))) + 1
    sums = np.zeros((release.count, classes, length), dtype=np.int64)
    rate = 1.0 if release.sampling is None else release.sampling.rate
    taken = [noise.coins(len(names), rate) if rate < 1 else np.ones(len(names), bool) for _ in sums]
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        vector = on_grid(reading(image) / of_unit[owner], release.grid)
        for each, drawn in zip(sums, taken, strict=True):
            if drawn[owner]:
                each[label] += vector
    return sums + noise.discrete_gaussian(sums.shape, release.scale)
