"""Features of images, and their noisy sum per label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from adapters.trained.releases import on_grid
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]


class Features(Protocol):
    """Features of an image; all that they are computed from but the image is public."""

    @property
    def size(self) -> int:
        """D, how many there are."""
        ...

    def of_record(self, image: npt.NDArray[np.uint8]) -> Floats:
        """φ(x), float64 (D,), of one private image (h, w, c).

        Guarantee: ‖φ(x)‖₂ ≤ 1, and no bit of it depends on anything but this image and public values.
        """
        ...

    def of_batch(self, images: Tensor) -> Tensor:
        """c·φ(x) of made images, float32 (n, h, w, c) in [0, 1] → (n, D), with one c > 0 for all; differentiable."""
        ...


def noisy_sum(
    records: PrivateRecords, classes: int, features: Features, release: Release, noise: Noise
) -> npt.NDArray[np.int64]:
    """The noisy sum of the features of each label's records, int64 (classes, D), in the release's grid steps.

    Guarantee: the release's. A unit's records share a weight of 1, each vector is rounded toward zero on the grid,
    and a record's features depend on that record alone to the last bit: one unit more changes the clean sum by at
    most 1 in L2 norm, another in its place by at most 2.
    """
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    total = np.zeros((classes, features.size), dtype=np.int64)
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        total[label] += on_grid(features.of_record(image) / of_unit[owner], release.grid)
    return total + noise.discrete_gaussian(total.shape, release.scale)
