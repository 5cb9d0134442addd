"""What a training will take, measured on random public images before it begins."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.dp_sgd.memory import peak_memory
from adapters.trained.dp_sgd.settings import DPSGD
from adapters.trained.dp_sgd.training import Images, Training
from pe.privacy.noise import SystemNoise


@dataclass(frozen=True)
class DryRun:
    """What a training will take.

    Attributes:
        steps: how many.
        blocks: in how many releases.
        noise_multiplier: σ; None where no budget has settled it yet.
        parameters: how many numbers are trained.
        state_bytes: of one kept state; there is one per block.
        memory: bytes that a micro-batch holds at most, beside the model; None where the system does not tell.
        seconds_per_step: on average.
    """

    steps: int
    blocks: int
    noise_multiplier: float | None
    parameters: int
    state_bytes: int
    memory: int | None
    seconds_per_step: float

    @property
    def seconds(self) -> float:
        """For all steps."""
        return self.steps * self.seconds_per_step


def dry_run(
    model: nn.Module,
    loss: Loss,
    image_shape: tuple[int, int, int],
    settings: DPSGD,
    device: str | torch.device = "cpu",
) -> DryRun:
    """Measure two full micro-batches and an empty step; the model stays as it is.

    Args:
        model: to be trained.
        loss: of one record.
        image_shape: h, w, c.
        settings: of the training; the noise may be open.
        device: where the training will run.

    Raises:
        PluginError: a model that DP-SGD cannot train.
        RecipeError: memory does not suffice; it says which micro_batch to take.
    """
    size = settings.micro_batch
    alone = replace(settings, steps=1, block=1, expected_batch=size, declared_size=size, noise_multiplier=0.0)
    training = Training(model, loss, alone, device)
    state, noise = training.start(), SystemNoise()
    images = np.random.default_rng(0).integers(0, 256, (size, *image_shape), dtype=np.uint8)

    def step(images: Images) -> float:
        begun = time.perf_counter()
        training.block(state, images, np.zeros(len(images), dtype=np.int64), noise)
        return time.perf_counter() - begun

    memory = peak_memory(torch.device(device), lambda: step(images))  # the first time, when libraries load, too
    full, empty = step(images), step(images[:0])
    micro_batches = settings.expected_batch / size + 0.5  # the last of a step is half full, on average
    return DryRun(
        steps=settings.steps,
        blocks=settings.blocks,
        noise_multiplier=settings.noise_multiplier,
        parameters=training.count,
        state_bytes=state.nbytes,
        memory=memory,
        seconds_per_step=empty + micro_batches * max(0.0, full - empty),
    )
