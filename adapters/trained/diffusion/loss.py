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


_UNLABELLED = 0.1
"""How often a draw has no class, in a network that is to be guided (Ho and Salimans 2022)."""


class Velocity:
    """The squared error of the velocity; a `Loss` of DP-SGD, and of plain training, too.

    Args:
        none: the number of the class that stands for none, for a network that is to be guided: it takes the place of
            the image's class in a tenth of the draws.
        levels: ᾱ of each timestep; None: those of the toolkit's own schedule.
    """

    def __init__(self, none: int | None = None, levels: Tensor | None = None) -> None:
        self._levels: Tensor = scheduler().alphas_cumprod if levels is None else levels
        self._none = none

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """Timesteps, their ᾱ, and noise: int64 and float32 (records, draws), float32 (records, draws, c, h, w).

        Then, for a network that is to be guided, where a draw has no class: bool (records, draws).

        A record's timesteps are spread: one from each of `draws` equal parts of the schedule, so that the mean over
        them, which is what is clipped, varies less.
        """
        device = generator.device
        within = torch.rand((records, 1), generator=generator, device=device)
        parts = (torch.arange(draws, device=device) + within) / draws
        steps = (parts * len(self._levels)).long().clamp(max=len(self._levels) - 1)
        noise = torch.randn((records, draws, *shape), generator=generator, device=device)
        drawn = steps, self._levels.to(device)[steps], noise
        if self._none is None:
            return drawn
        return *drawn, torch.rand((records, draws), generator=generator, device=device) < _UNLABELLED

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses, (draws,): of one image and label, or of as many of both as there are draws."""
        noisy, wanted, classes = self.noised(image, label, randomness)
        found = model(noisy, randomness[0], class_labels=classes).sample
        return square(found[:, : wanted.shape[1]] - wanted)

    def noised(self, image: Tensor, label: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor, Tensor]:
        """What the network sees, what it is to find, and the classes that it is told, of one image or of several."""
        steps, level, noise, *unlabelled = randomness
        signal, spread = level.sqrt()[:, None, None, None], (1 - level).sqrt()[:, None, None, None]
        classes = label.expand(len(steps))
        if unlabelled and self._none is not None:
            classes = classes.masked_fill(unlabelled[0], self._none)
        return signal * image + spread * noise, signal * noise - spread * image, classes


def square(difference: Tensor) -> Tensor:
    """The mean square of each image, (n,) from n×c×h×w."""
    found: Tensor = (difference**2).mean(dim=(1, 2, 3))
    return found
