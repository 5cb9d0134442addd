"""The generator that is fitted to a noisy mean embedding. It sees no private record: all here is post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

CODE = 8
"""Length of the code z that an image is made from, beside its label."""


class Generator(nn.Module):
    """Code and label → image in [0, 1], h×w×c: two dense layers, two up-sampling convolutions."""

    def __init__(self, classes: int, shape: tuple[int, int, int], width: int = 256, channels: int = 16) -> None:
        """A generator of images of `shape`: height, width, channels."""
        super().__init__()
        self.shape = shape
        height, across, depth = shape
        self._base = math.ceil(height / 4), math.ceil(across / 4)
        self.dense = nn.Sequential(
            nn.Linear(CODE + classes, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, channels * self._base[0] * self._base[1]),
            nn.BatchNorm1d(channels * self._base[0] * self._base[1]),
            nn.ReLU(),
        )
        self.middle = nn.Conv2d(channels, channels // 2, 5, padding=2)
        self.last = nn.Conv2d(channels // 2, depth, 5, padding=2)
        self._classes = classes

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        """float32 (n, h, w, c) from float32 (n, CODE) and int64 (n,)."""
        return torch.sigmoid(self.logits(code, labels))

    def logits(self, code: Tensor, labels: Tensor) -> Tensor:
        """The same before the sigmoid that ends it."""
        one_hot = functional.one_hot(labels, self._classes).to(code.dtype)
        x = self.dense(torch.cat([code, one_hot], dim=1)).unflatten(1, (-1, *self._base))
        x = functional.relu(self.middle(functional.interpolate(x, scale_factor=2.0, mode="bilinear")))
        found: Tensor = self.last(functional.interpolate(x, scale_factor=2.0, mode="bilinear"))
        return found[:, :, : self.shape[0], : self.shape[1]].permute(0, 2, 3, 1)

    def images(self, codes: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """uint8 (n, h, w, c); an image depends on its own code and label alone, to a grey level."""
        self.eval()
        with torch.no_grad():
            pixels = self(torch.from_numpy(codes), torch.from_numpy(labels))
        images: npt.NDArray[np.uint8] = (pixels * 255).round().clamp(0, 255).byte().numpy()
        return images


def fit_generator(
    target: npt.NDArray[np.float64],
    features: Callable[[Tensor], Tensor],
    shape: tuple[int, int, int],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    step_done: Callable[[], None],
) -> Generator:
    """A generator whose mean features, per label, point where the noisy ones do.

    For each label the distance ‖μ̃ − w·m‖² is least at w = ⟨μ̃, m⟩/‖m‖², whatever the label's private size, so that
    size need not be known: the sum over labels of −⟨μ̃, m⟩·|⟨μ̃, m⟩|/‖m‖² is minimised, whose sign leads a label that
    begins on the wrong side back.

    Args:
        target: μ̃, float64 (classes, D).
        features: of made images, float32 (n, h, w, c) in [0, 1] → (n, D).
        shape: height, width, channels.
        steps: of Adam, with a rate that falls as a cosine.
        batch: images per step.
        rate: Adam's.
        seed: of the weights and codes.
        step_done: called after every step.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        classes = len(target)
        model = Generator(classes, shape)
        wanted = torch.from_numpy(target.astype(np.float32))
        wanted = wanted / wanted.norm()
        labels = torch.arange(batch) % classes
        shares = functional.one_hot(labels, classes).float()
        shares = (shares / shares.sum(dim=0)).T
        optimiser = torch.optim.Adam(model.parameters(), lr=rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            mean = shares @ features(model(torch.randn(batch, CODE), labels))
            aligned = (wanted * mean).sum(dim=1)
            loss = -(aligned * aligned.abs() / mean.square().sum(dim=1)).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            falling.step()
            step_done()
    return model.eval()
