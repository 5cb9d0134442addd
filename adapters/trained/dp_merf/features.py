"""Random Fourier features of images, and their noisy sum per label (Harder et al., AISTATS 2021).

φ(x) = √(2/D)·(cos Wx, sin Wx) with W's rows from N(0, I/bandwidth²): ⟨φ(x), φ(y)⟩ is near the Gaussian kernel
exp(−‖x − y‖²/2·bandwidth²), and ‖φ(x)‖ = 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from adapters.trained.releases import on_grid
from pe.data.seeds import generator
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

Floats = npt.NDArray[np.float64]


def frequencies(count: int, dimensions: int, bandwidth: float, seed: int) -> Floats:
    """W, float64 (count/2, dimensions): public, from the recipe's seed."""
    rng = generator(seed, "dp_merf/frequencies")
    return rng.standard_normal((count // 2, dimensions)) / bandwidth


def noisy_sum(
    records: PrivateRecords, classes: int, frequencies: Floats, release: Release, noise: Noise
) -> npt.NDArray[np.int64]:
    """The noisy sum of the features of each label's records, int64 (classes, D), in the release's grid steps.

    Guarantee: the release's. A unit's records share a weight of 1, each vector is rounded toward zero on the grid,
    and a record's features are a product of its own, so that they depend on that record alone to the last bit:
    one unit more changes the clean sum by at most 1 in L2 norm, another in its place by at most 2.
    """
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    total = np.zeros((classes, 2 * len(frequencies)), dtype=np.int64)
    length = np.sqrt(len(frequencies))
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        angles = frequencies @ (image.reshape(-1) / 255.0)
        features = np.concatenate([np.cos(angles), np.sin(angles)])
        total[label] += on_grid(features / (length * of_unit[owner]), release.grid)
    return total + noise.discrete_gaussian(total.shape, release.scale)
