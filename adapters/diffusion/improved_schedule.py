"""The cosine schedule of improved diffusion, respaced, and DDIM on it (Nichol & Dhariwal 2021; Song et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pe.errors import APIError, RecipeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TRAINED = 4000
"""Timesteps of the published networks."""


@dataclass(frozen=True)
class Stepped:
    """What a step gives, named as diffusers' schedulers name it.

    Attributes:
        prev_sample: the image one step less noised.
    """

    prev_sample: Tensor


Spacing = Literal["ends", "stride"]


class CosineDDIM:
    """Deterministic DDIM on `steps` of the trained timesteps.

    Args:
        spacing: see `respaced`.

    Attributes:
        init_noise_sigma: standard deviation of the noise that sampling starts from.
        timesteps: int64 (steps,), from the noisiest down to 0.
        kept: ᾱ, float64 (TRAINED,): how much of the image's variance is left at each trained timestep.
    """

    init_noise_sigma = 1.0
    timesteps: Tensor

    def __init__(self, spacing: Spacing = "ends") -> None:
        self._spacing = spacing
        self.kept = cosine(TRAINED)
        self._next: dict[int, int | None] = {}

    def set_timesteps(self, steps: int) -> None:
        """Take `steps` of the timesteps.

        Raises:
            APIError: there are no so many.
        """
        import torch

        try:
            check_steps(steps, self._spacing)
        except RecipeError as error:
            raise APIError(str(error)) from error
        chosen = respaced(TRAINED, steps, self._spacing)
        self.timesteps = torch.tensor(chosen[::-1])
        self._next = dict(zip(chosen, [None, *chosen[:-1]], strict=True))

    def add_noise(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """√ᾱ·image + √(1−ᾱ)·noise, each image at its timestep."""
        kept = images.new_tensor(self.kept[timesteps.numpy()])[:, None, None, None]
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    def step(
        self, output: Tensor, timestep: int, x: Tensor, generator: Sequence[torch.Generator] | None = None
    ) -> Stepped:
        """One step less noise: the predicted image, cut to [−1, 1], with as much noise as the next timestep has.

        Args:
            output: ε, n×c×h×w: the network's first channels.
            timestep: of `timesteps`.
            x: the noised images at this timestep.
            generator: not used: nothing is drawn.
        """
        now, after = self.kept[timestep], self._next[timestep]
        then = 1.0 if after is None else self.kept[after]
        image = ((x - math.sqrt(1 - now) * output) / math.sqrt(now)).clamp(-1, 1)
        noise = (x - math.sqrt(now) * image) / math.sqrt(1 - now)  # that of the image as it was cut
        return Stepped(math.sqrt(then) * image + math.sqrt(1 - then) * noise)


def cosine(steps: int) -> npt.NDArray[np.float64]:
    """ᾱ = Π(1 − β) after each of T = `steps` timesteps, float64.

    β_t = 1 − f(t+1)/f(t), at most 0.999, with f(t) = cos²(π/2·(t/T + 0.008)/1.008).
    """
    times = (np.arange(steps + 1) / steps + 0.008) / 1.008
    left = np.cos(times * np.pi / 2) ** 2
    kept: npt.NDArray[np.float64] = np.cumprod(1 - np.minimum(1 - left[1:] / left[:-1], 0.999))
    return kept


def check_steps(steps: int, spacing: Spacing) -> None:
    """Raise RecipeError if the trained timesteps cannot be cut into so many steps."""
    if not 2 <= steps <= TRAINED:
        raise RecipeError(f"steps is {steps}: it must lie from 2 to {TRAINED}.")
    respaced(TRAINED, steps, spacing)


def respaced(trained: int, steps: int, spacing: Spacing) -> list[int]:
    """`steps` of the timesteps 0 … trained−1, 2 ≤ `steps` ≤ `trained`, ascending and evenly spaced from 0 on.

    `ends`: up to the last one, which is pure noise (`timestep_respacing` N of the published code). `stride`: the
    smallest whole number apart (its `ddimN`), so that the largest timestep is below the last one: of 10 steps 3,600
    of 4,000, where the noised image still holds 2.4 % of the image's variance.

    Raises:
        RecipeError: no whole stride gives so many steps.
    """
    if spacing == "ends":
        apart = (trained - 1) / (steps - 1)
        return [round(place) for place in accumulate(repeat(apart, steps - 1), initial=0.0)]  # summed, as published
    stride = -(-trained // steps)
    if len(range(0, trained, stride)) != steps:
        raise RecipeError(
            f"steps is {steps} and spacing is stride, but no whole stride cuts {trained:,} timesteps into {steps}: "
            f"take {len(range(0, trained, stride))} steps, or spacing: ends."
        )
    return list(range(0, trained, stride))
