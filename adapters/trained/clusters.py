"""Classes for records that have no labels, or only coarse ones: by centroids of PUBLIC images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2

from adapters.trained.plain import torch_seed
from adapters.trained.public import PublicSet
from pe.errors import RecipeError

Images = npt.NDArray[np.uint8]

_GRID = 16
"""Cells a side, at most, over whose means images are compared."""

_MOST = 20_000
"""Public images that the centroids are found from, at most."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """The nearest of k centroids, which k-means found among public images.

    Guarantee: an image's cluster is a function of that image and of public values alone; so a record's class is a part
    of the record, nothing is released, and the ledger needs no entry. (Centroids of private images would need one.)

    Attributes:
        centroids: float64 (k, d).
    """

    centroids: npt.NDArray[np.float64]

    @classmethod
    def of(cls, public: PublicSet, count: int, seed: int) -> Clusters:
        """k-means++ and Lloyd's steps over public images, evenly chosen where there are many.

        Raises:
            RecipeError: there are fewer public images than clusters.
        """
        if len(public.images) < count:
            raise RecipeError(
                f"clusters is {count}, and the public set has {len(public.images)} images: take fewer clusters."
            )
        chosen = np.unique(np.linspace(0, len(public.images) - 1, _MOST).astype(np.int64))
        features = np.stack([_features(image) for image in public.images[chosen]])
        rng = np.random.default_rng(torch_seed(seed, "clusters"))
        centroids, _ = kmeans2(features, count, minit="++", rng=rng)
        return cls(centroids.astype(np.float64))

    def of_image(self, image: Images) -> int:
        """The cluster of one image, uint8 h×w×c; ties go to the first."""
        distances = ((self.centroids - _features(image)) ** 2).sum(axis=1)
        return int(distances.argmin())

    def split(self, images: Images, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Each label split into k classes, int32 (n,): label·k + cluster."""
        found = np.array([self.of_image(image) for image in images], dtype=np.int32)
        return (labels * len(self.centroids) + found).astype(np.int32)


def _features(image: Images) -> npt.NDArray[np.float64]:
    """Means over a grid of cells, in [0, 1]."""
    rows, columns = (np.linspace(0, side, min(side, _GRID) + 1).astype(np.int64)[:-1] for side in image.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows, axis=0), columns, axis=1)
    ones = np.ones(image.shape[:2])
    sizes = np.add.reduceat(np.add.reduceat(ones, rows, axis=0), columns, axis=1)
    return (sums / sizes[..., None] / 255).ravel()
