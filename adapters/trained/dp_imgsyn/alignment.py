"""Alignment: public images are moved until the classifier sees in them what it saw in the private ones (Algorithm 1).

It uses the classifier, the released moments and public images only: post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from adapters.trained.dp_imgsyn.moments import LEAST_VARIANCE
from adapters.trained.dp_imgsyn.reader import Reader
from adapters.trained.dp_imgsyn.sections import Alignment

_BETAS = (0.5, 0.99)


@dataclass(frozen=True, eq=False)
class Way:
    """What the companions' moments were before each step: so another image can be aligned as one more of them.

    Attributes:
        means: float32 (k, d).
        squares: float32 (k, d).
    """

    means: Tensor
    squares: Tensor


@dataclass(frozen=True, eq=False)
class Aim:
    """What images are aligned with.

    Attributes:
        reader: the classifier.
        means: of the private images, noisy, float32 (d,).
        deviations: float32 (d,).
    """

    reader: Reader
    means: Tensor
    deviations: Tensor


def align_companions(images: Tensor, targets: Tensor, aim: Aim, settings: Alignment) -> Way:
    """Align `images` together, and note their moments before each step.

    Args:
        images: public, float32 n×c×h×w in [−1, 1].
        targets: int64 (n,), each label as often.
        aim: the classifier and the moments.
        settings: how.
    """
    pixels = images.clone().requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    means, squares = [], []
    for _ in range(settings.steps):
        logits, mean, square = aim.reader(pixels)
        means.append(mean.detach().mean(dim=0))
        squares.append(square.detach().mean(dim=0))
        feature = settings.feature * len(images) * _distance(mean.mean(dim=0), square.mean(dim=0), aim)
        _step(optimiser, feature + _others(pixels, logits, targets, settings).sum(), pixels)
    none = torch.zeros((0, len(aim.means)), device=images.device)
    return Way(torch.stack(means), torch.stack(squares)) if means else Way(none, none)


def align(images: Tensor, targets: Tensor, aim: Aim, way: Way, begin: Tensor, settings: Alignment) -> Tensor:
    """Each image aligned as if it were one more of the companions; it depends on no other image.

    Args:
        images: public, or evolved from public ones, float32 n×c×h×w in [−1, 1].
        targets: int64 (n,).
        aim: the classifier and the moments.
        way: the companions'.
        begin: int64 (n,), the step at which each image joins: 0 for all steps, k for none.
        settings: how.
    """
    size = settings.companions + 1
    pixels = images.clone().requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    found, least = images, total_variation(images)
    moving = torch.ones(len(images), dtype=torch.bool, device=images.device)
    for step in range(len(way.means)):
        logits, mean, square = aim.reader(pixels)
        means = ((size - 1) * way.means[step] + mean) / size
        squares = ((size - 1) * way.squares[step] + square) / size
        feature = settings.feature * size * _distance(means, squares, aim)
        here, joined = pixels.detach().clone(), begin <= step
        _step(optimiser, ((feature + _others(pixels, logits, targets, settings)) * joined).sum(), pixels)
        with torch.no_grad():
            pixels.copy_(torch.where(joined[:, None, None, None], pixels, here))
            rough = total_variation(pixels)
            moving &= ~joined | (rough <= settings.roughest * least)
            found = torch.where((joined & moving)[:, None, None, None], pixels, found)
            least = torch.minimum(least, rough)
    return found.detach()


def total_variation(images: Tensor) -> Tensor:
    """Of each image (Equation 3), float32 (n,)."""
    down = functional.pad(images.diff(dim=2), (0, 0, 0, 1))
    right = functional.pad(images.diff(dim=3), (0, 1))
    return (down.square() + right.square() + 1e-12).sqrt().sum(dim=(1, 2, 3))


def _distance(means: Tensor, squares: Tensor, aim: Aim) -> Tensor:
    """Equation 1: over the last axis."""
    deviations = (squares - means**2).clamp(min=LEAST_VARIANCE).sqrt()
    return (means - aim.means).square().sum(dim=-1) + (deviations - aim.deviations).square().sum(dim=-1)


def _others(pixels: Tensor, logits: Tensor, targets: Tensor, settings: Alignment) -> Tensor:
    """Equations 2 to 4 of each image, (n,); the weights are those of a batch that has `companions` + 1 images."""
    size = settings.companions + 1
    prior = settings.total_variation * total_variation(pixels) + settings.norm * pixels.square().sum(dim=(1, 2, 3))
    return settings.classification * functional.cross_entropy(logits, targets, reduction="none") + size * prior


def _step(optimiser: torch.optim.Adam, loss: Tensor, pixels: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    with torch.no_grad():
        pixels.clamp_(-1, 1)
