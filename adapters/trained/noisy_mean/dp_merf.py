"""DP-MERF: the noisy mean of random Fourier features (Harder, Adamczewski and Park, AISTATS 2021).

φ(x) = √(2/D)·(cos Wx, sin Wx) with W's rows from N(0, I/bandwidth²): ⟨φ(x), φ(y)⟩ is near the Gaussian kernel
exp(−‖x − y‖²/2·bandwidth²), and ‖φ(x)‖ = 1. With several bandwidths, each for its share of the rows, it is near the
mean of their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adapters.trained.noisy_mean.base import NoisyMean
from adapters.trained.noisy_mean.features import Floats
from pe.data.seeds import generator
from pe.errors import RecipeError
from pe.fit.trainer import FitTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, eq=False, repr=False)
class DPMERF(NoisyMean):
    """RANDOM_API and VARIATION_API by DP-MERF (Harder, Adamczewski and Park, AISTATS 2021).

    Every private image becomes a vector of random features of norm 1; their sum per label is released once, with
    noise, and a small generator is fitted to it without seeing the images again. A sample carries the code that it
    was made from; a variation of degree d moves it to √(1−d²)·z + d·ξ: 0 changes nothing, 1 forgets all.

    Conditions: `code` (float32, n×8).

    Args:
        features: D, an even number of random features.
        bandwidth: of the Gaussian kernel, per root of the number of pixel values, which lie in [0, 1]; or a list of
            bandwidths, each for an equal share of the features: the mean of these kernels.
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's learning rate.

    Raises:
        RecipeError: a setting out of range.
        MissingDependency: torch is not installed.
    """

    features: int = 4000
    bandwidth: float | list[float] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features < 2 or self.features % 2:
            raise RecipeError(f"features is {self.features}: it must be an even number of at least 2.")
        if not self._bandwidths or not all(bandwidth > 0 for bandwidth in self._bandwidths):
            raise RecipeError(f"bandwidth is {self.bandwidth}: it must lie above 0, or be a list of such numbers.")
        if self.features < 2 * len(self._bandwidths):
            raise RecipeError(
                f"features is {self.features}, too few for {len(self._bandwidths)} bandwidths: take at least "
                f"{2 * len(self._bandwidths)}."
            )

    def _features(self, terms: FitTerms) -> RandomFourier:
        dimensions = int(np.prod(terms.image_shape))
        bandwidths = [bandwidth * float(np.sqrt(dimensions)) for bandwidth in self._bandwidths]
        return RandomFourier(frequencies(self.features, dimensions, bandwidths, terms.seed))

    @property
    def _bandwidths(self) -> list[float]:
        return self.bandwidth if isinstance(self.bandwidth, list) else [self.bandwidth]


def frequencies(count: int, dimensions: int, bandwidths: Sequence[float], seed: int) -> Floats:
    """W, float64 (count/2, dimensions): public, from the recipe's seed; the rows are shared out in blocks."""
    rows = count // 2
    of_row = np.array(bandwidths)[np.arange(rows) * len(bandwidths) // rows]
    normal = generator(seed, "dp_merf/frequencies").standard_normal((rows, dimensions))
    scaled: Floats = normal / of_row[:, None]
    return scaled


@dataclass(frozen=True, eq=False)
class RandomFourier:
    """φ of these frequencies W, float64 (D/2, h·w·c); a `Features`."""

    frequencies: Floats

    @property
    def size(self) -> int:
        """D, how many there are."""
        return 2 * len(self.frequencies)

    def of_record(self, image: npt.NDArray[np.uint8]) -> Floats:
        """φ(x), float64 (D,), of one image, by a matrix-vector product of its own.

        Guarantee: the norm is 1, but for rounding, and no bit depends on anything but this image and W.
        """
        angles = self.frequencies @ (image.reshape(-1) / 255.0)
        features: Floats = np.concatenate([np.cos(angles), np.sin(angles)]) / np.sqrt(len(self.frequencies))
        return features

    def of_batch(self, images: Tensor) -> Tensor:
        """(cos Wx, sin Wx) of float32 images in [0, 1], (n, D)."""
        import torch

        angles = images.flatten(1) @ self._transposed
        return torch.cat([angles.cos(), angles.sin()], dim=1)

    @cached_property
    def _transposed(self) -> Tensor:
        import torch

        return torch.from_numpy(self.frequencies.astype(np.float32)).T.contiguous()
