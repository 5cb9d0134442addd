"""Teachers of a user's own, most of which cannot be trained."""

from __future__ import annotations

import torch
from torch import nn


def ending(front: nn.Module, classes: int) -> nn.Module:
    return nn.Sequential(
        front, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


def with_spectral_norm(channels: int, classes: int) -> nn.Module:
    return ending(nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, 4, 3)), classes)


class Changed(nn.Module):
    """A teacher with something before it."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.rest = ending(nn.Conv2d(channels, 4, 3), classes)
        self.register_buffer("mean", torch.zeros(()))
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.rest(self.before(images))


class RunningMean(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * images.mean()
        return images - self.mean


class Counting(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images * self.calls


class Tied(Changed):
    """Two layers share their weights, which can be trained."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.one, self.other = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.other.weight = self.one.weight

    def before(self, images: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(images))
