"""Perceptual features: what the stages of a network that photographs have trained see of an image, and its square.

After each chosen stage s of EfficientNet-Lite0 stand the values v_s(x), one per channel and place, and their squares.
From each of these 2S blocks b_j the mean over public noise images is taken off, then each is brought to norm 1:
φ(x) = (√w_j · (b_j − c_j)/‖b_j − c_j‖)_j with Σ w_j = 1, so that ‖φ(x)‖ ≤ 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from adapters.trained.public import Noise
from adapters.trained.releases import Floats
from pe.plugins.weights import load_network, stage_values

if TYPE_CHECKING:
    from torch import Tensor


_LEAST = 1e-6
"""Norm below which a block counts as zero."""


@dataclass(frozen=True, eq=False)
class Perceptual:
    """A `Features`.

    Attributes:
        module: the network, frozen, in evaluation mode.
        side: pixels of the square that images are resized to.
        stages: whose values are taken, ascending, from 1 to 7.
        weights: w_j, of the values of each stage, then of their squares, if these count; they sum to 1.
        centres: c_j, float32 (1, d_j), in the same order.
    """

    module: Any
    side: int
    stages: tuple[int, ...]
    weights: tuple[float, ...]
    centres: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, side: int, stages: Sequence[int], squares: float, shape: tuple[int, int, int], seed: int, centred: int
    ) -> Perceptual:
        """Load the network, and take the centres from as many public noise images as `centred`.

        Args:
            side: pixels.
            stages: ascending.
            squares: the weight of all squares together, from 0 to 1.
            shape: of an image: height, width, channels.
            seed: of the noise images.
            centred: how many of them.

        Raises:
            RecipeError: the weights are not those that were published.
            MissingDependency: timm or the weights' package is not installed.
        """
        module = load_network(None, "Fitting 'dp_mepf'")
        shares = [1 - squares, squares] if squares else [1.0]
        each = [share / len(stages) for share in shares for _ in stages]
        plain = cls(module, side, tuple(stages), tuple(each), ())
        noise = Noise(count=centred).read(shape, seed).images
        with torch.inference_mode():
            centres = [block.mean(dim=0, keepdim=True).clone() for block in plain._blocks(_pixels(noise))]
        return cls(module, side, tuple(stages), tuple(each), tuple(torch.tensor(one.numpy()) for one in centres))

    @property
    def size(self) -> int:
        """D, how many there are."""
        return sum(centre.shape[1] for centre in self.centres)

    def of_record(self, image: npt.NDArray[np.uint8]) -> Floats:
        """φ(x), float64 (D,), of one image, which the network sees alone.

        Guarantee: the norm is at most 1, but for rounding, whatever the network gives: each block is brought to norm 1
        in float64, and one that is not finite, or nearly zero, counts as zero. No bit depends on another image: the
        network is frozen, and keeps no statistics.
        """
        with torch.inference_mode():
            blocks = [block[0].numpy().astype(np.float64) for block in self._centred(_pixels(image[None]))]
        return np.concatenate([np.sqrt(w) * _unit(block) for w, block in zip(self.weights, blocks, strict=True)])

    def of_batch(self, images: Tensor) -> Tensor:
        """φ of float32 images in [0, 1], (n, D)."""
        blocks = self._centred(images)
        parts = [w**0.5 * functional.normalize(b, dim=1, eps=_LEAST) for w, b in zip(self.weights, blocks, strict=True)]
        return torch.cat(parts, dim=1)

    def _centred(self, images: Tensor) -> list[Tensor]:
        return [block - centre for block, centre in zip(self._blocks(images), self.centres, strict=True)]

    def _blocks(self, images: Tensor) -> list[Tensor]:
        """b_j of float32 images (n, h, w, c) in [0, 1]: float32 (n, d_j)."""
        found = stage_values(self.module, images.permute(0, 3, 1, 2), self.side, self.stages)
        values = [value.flatten(1) for value in found]
        return values if len(self.weights) == len(values) else [*values, *(value.square() for value in values)]


def _pixels(images: npt.NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images / np.float32(255))


def _unit(vector: Floats) -> Floats:
    norm = float(np.linalg.norm(vector))
    return vector / norm if _LEAST < norm < np.inf else np.zeros_like(vector)
