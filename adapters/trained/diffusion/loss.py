"""The denoising loss, the same for public and private images: the velocity, at random timesteps.

For x_t = √ᾱ·x + √(1−ᾱ)·ε the network is to find v = √ᾱ·ε − √(1−ᾱ)·x (Salimans and Ho 2022). The squared error of v is
that of x weighed by 1 + ᾱ/(1−ᾱ): like EDM's preconditioning it asks for a target of variance near 1 at every timestep,
and it is what the engine's schedulers sample from as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adapters.trained.diffusion.network import scheduler

Randomness = tuple[Tensor, ...]


class Velocity:
    """The squared error of the velocity; a `Loss` of DP-SGD, and of plain training, too."""

    def __init__(self) -> None:
        self._levels: Tensor = scheduler().alphas_cumprod

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """Timesteps, their ᾱ, and noise: int64 and float32 (records, draws), float32 (records, draws, c, h, w).

        A record's timesteps are spread: one from each of `draws` equal parts of the schedule, so that the mean over
        them, which is what is clipped, varies less.
        """
        device = generator.device
        within = torch.rand((records, 1), generator=generator, device=device)
        parts = (torch.arange(draws, device=device) + within) / draws
        steps = (parts * len(self._levels)).long().clamp(max=len(self._levels) - 1)
        noise = torch.randn((records, draws, *shape), generator=generator, device=device)
        return steps, self._levels.to(device)[steps], noise

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses, (draws,): of one image and label, or of as many of both as there are draws."""
        steps, level, noise = randomness
        signal, spread = level.sqrt()[:, None, None, None], (1 - level).sqrt()[:, None, None, None]
        noisy, velocity = signal * image + spread * noise, signal * noise - spread * image
        found = model(noisy, steps, class_labels=label.expand(len(steps))).sample
        losses: Tensor = ((found - velocity) ** 2).mean(dim=(1, 2, 3))
        return losses
