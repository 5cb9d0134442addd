"""Plain training on public images: Adam, the same for all that is trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adapters.trained.public import PublicSet
from adapters.trained.sections import PlainTraining
from pe.data.seeds import generator as seeded
from pe.errors import RecipeError
from pe.plugins.devices import memory_refused

Model = TypeVar("Model", bound=nn.Module)
LossOf = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""The mean loss of float32 n×c×h×w images in [−1, 1] and int64 (n,) labels; its randomness from the generator."""

_RISING = 20
"""The rate rises in one of so many parts of the steps."""

_LARGEST_GRADIENT = 1.0
_DECAY = 0.999


def train(
    model: Model,
    public: PublicSet,
    settings: PlainTraining,
    loss_of: LossOf,
    seed: int,
    phase: str,
    step_done: Callable[[], None],
) -> Model:
    """`model` with the moving average of its weights; on a CPU, settled to the last bit by the arguments.

    Args:
        model: on the device where it is to be trained.
        public: what it is trained on.
        settings: how.
        loss_of: what is to be small.
        seed: the recipe's.
        phase: what the training is for.
        step_done: called after every step; what it raises ends the training.

    Raises:
        RecipeError: memory does not suffice.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(torch_seed(seed, phase))
    batches = np.random.default_rng(torch_seed(seed, f"{phase}/batches"))
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, settings.steps))
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(settings.steps):
        chosen = batches.integers(len(public.images), size=settings.batch)
        optimiser.zero_grad()
        try:
            images, labels = tensors(public.images[chosen], device), torch.from_numpy(public.labels[chosen]).to(device)
            loss_of(images, labels, generator).backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, MemoryError) as error:
            if memory_refused(error):
                raise _too_large(settings.batch, device) from error
            raise
        nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        schedule.step()
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - min(_DECAY, (step + 1) / (step + 10)))
        step_done()
    with torch.no_grad():
        for mean, parameter in zip(average, model.parameters(), strict=True):
            parameter.copy_(mean)
    return model


def tensors(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """float32 n×c×h×w in [−1, 1]."""
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def torch_seed(seed: int, phase: str) -> int:
    """A seed for PyTorch's generators, for one phase of the run; public."""
    return int(seeded(seed, f"diffusion/{phase}").integers(2**63))


def rate_at(step: int, steps: int) -> float:
    """Of the highest rate, the share at a step: it rises, then falls as a cosine."""
    return min(1.0, (step + 1) * _RISING / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _too_large(batch: int, device: torch.device) -> RecipeError:
    if batch > 1:
        return RecipeError(
            f"A batch of {batch} public images is more than {device} has memory for: take batch: {batch // 2}."
        )
    return RecipeError(f"{device} has no memory to train on one public image: take a smaller network.")
