"""Models of a few thousand parameters, losses to train them by, and noise that remembers what it
was asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import UNet2DModel
from torch import Tensor, nn

from adapters.trained import diffusion_networks
from adapters.trained.settings import DPSGD, NetworkSize
from pe.privacy.noise import Shape
from tests.seeded_noise import UnsafeSeededNoise

SIDE = 8
SHAPE = (SIDE, SIDE, 1)
CLASSES = 3


def unet(phase: str = "test") -> UNet2DModel:
    """Class-conditional, with attention at half the resolution."""
    return diffusion_networks.unet(NetworkSize(channels=(8, 16)), SHAPE, CLASSES, 0, phase)


class Residual(nn.Module):
    """A ResNet of one block, with GroupNorm and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Sequential(
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
            nn.GroupNorm(4, 8),
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        return self.head((x + self.block(x)).relu().mean(dim=(2, 3)))


def resnet() -> Residual:
    torch.manual_seed(0)
    return Residual()


class Classifying:
    """Cross-entropy; nothing is drawn."""

    def draw(self, draws: int, shape: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
        return ()

    def __call__(
        self, model: Any, image: Tensor, label: Tensor, randomness: tuple[Tensor, ...]
    ) -> Tensor:
        return nn.functional.cross_entropy(model(image[None]), label[None])


class Weights(nn.Module):
    """Two vectors of parameters, both 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(SIDE * SIDE))
        self.second = nn.Parameter(torch.zeros(SIDE * SIDE))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return first @ self.first + second @ self.second


class Showing(Classifying):
    """A record's gradient IS its image, in [0, 1]: by the first vector as it is, by the second
    upside down.

    Of a record with the label 1 it is not a number, with the label 2 infinite.
    """

    def __call__(
        self, model: Any, image: Tensor, label: Tensor, randomness: tuple[Tensor, ...]
    ) -> Tensor:
        image = (image.flatten() + 1) / 2
        spoilt = torch.where(label == 1, torch.nan, torch.where(label == 2, torch.inf, 1.0))
        return model(image, image.flip(0)) * spoilt


def gradients_of(images: np.ndarray) -> np.ndarray:
    """What `Showing` makes of images: float64 n×p."""
    flat = images.reshape(len(images), SIDE * SIDE) / 255
    return np.concatenate([flat, flat[:, ::-1]], axis=1)


def images_of(count: int, seed: int = 0, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 1), dtype=np.uint8)


def labels_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CLASSES, count)


def plain(**changes: Any) -> DPSGD:
    """Every record in every step, no noise; SGD at rate 1, so that the parameters move by minus the
    gradient.
    """
    settings: dict[str, Any] = {
        "steps": 1,
        "expected_batch": 8,
        "declared_size": 8,
        "clip": 1.0,
        "learning_rate": 1.0,
        "noise_multiplier": 0.0,
        "optimiser": "sgd",
        "draws": 1,
        "micro_batch": 4,
        "block": 1,
    }
    return DPSGD(**settings | changes)


class Recording(UnsafeSeededNoise):
    """Seeded noise that remembers: the coins of records (of any rate but ½) and the scales of the
    noise.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.coined: list[np.ndarray] = []
        self.rates: list[float] = []
        self.gaussians: list[tuple[Shape, float]] = []

    def coins(self, count: int, rate: float) -> np.ndarray:
        fallen = super().coins(count, rate)
        if rate != 0.5:
            self.coined.append(np.flatnonzero(fallen))
            self.rates.append(rate)
        return fallen

    def discrete_gaussian(self, shape: Shape, scale: float) -> np.ndarray:
        self.gaussians.append((shape, scale))
        return super().discrete_gaussian(shape, scale)
