"""The check `dp_sgd`: how many records a second DP-SGD takes, by micro-batch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapters.diffusion.device import free_memory
from adapters.trained.diffusion.levels import Network
from adapters.trained.diffusion.loss import Velocity
from adapters.trained.diffusion.network import unet
from adapters.trained.dp_sgd.gradients import clipped_sum, record_gradients
from adapters.trained.dp_sgd.hyperparameters import FineTuning
from adapters.trained.dp_sgd.suitable import trained_parameters
from pe.plugins.devices import memory_refused
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_SIZES: dict[Size, tuple[int, ...]] = {
    "tiny": (2, 4),
    "small": (8, 32, 128),
    "real": (8, 16, 32, 64, 128, 256, 512, 1024),
}
_SHAPES: dict[Size, tuple[tuple[int, int, int], ...]] = {
    "tiny": ((8, 8, 1),),
    "small": ((28, 28, 1),),
    "real": ((28, 28, 1), (32, 32, 3)),
}
_CLASSES = 10
_SECONDS = 1.0  # that a micro-batch is repeated for, at least once
_NEAR = 1e-2
"""Of the sum's norm, by which it may differ in another micro-batch: TF32 rounds each factor by up to 5e-4."""


def dp_sgd(device: str, size: Size) -> Found:
    """Records per second for the network of `dpdm` by micro-batch, up to the first that memory does not hold.

    It fails if the clipped sum of the same records differs between the smallest micro-batch and a larger one by more
    than rounding.
    """
    figures: dict[str, Figure] = {}
    faults: list[str] = []
    for shape in _SHAPES[size]:
        sweep = _Sweep(device, shape)
        few = _SIZES[size][0]
        wanted: Tensor | None = None
        for micro in _SIZES[size]:
            name = f"{'×'.join(map(str, shape))}, micro-batch {micro}"
            try:
                total, rate = sweep.measured(micro, few, 0.0 if size == "tiny" else _SECONDS)
            except (RuntimeError, MemoryError) as error:
                if not memory_refused(error):
                    raise
                figures[name] = "no memory"
                free_memory(sweep.device)
                break
            figures[f"{name}: records/s"] = rate
            wanted = total if wanted is None else wanted
            apart = float((total - wanted).norm() / wanted.norm())
            if not apart <= _NEAR:
                faults.append(f"{name}: the sum over the same {few} records differs by {apart:.1e} of its norm")
    return judged(figures, faults)


class _Sweep:
    """A new network of `dpdm`, with its default size, loss and draws."""

    def __init__(self, device: str, shape: tuple[int, int, int]) -> None:
        self.device = torch.device(device)
        self._shape = height, width, channels = shape
        self._model: Any = unet(Network(), (height, width, channels), _CLASSES, 0, "weights").to(self.device)
        self._parameters, self._loss = trained_parameters(self._model), Velocity()

    def measured(self, micro: int, counted: int, seconds: float) -> tuple[Tensor, float]:
        """The clipped sum over the first `counted` records, and the records a second of whole micro-batches.

        Gradients and clipping are timed; what the loss draws is there before.
        """
        given = self._given(micro)
        total = self._sum(given, counted)
        done, begun = 0, time.perf_counter()
        while not done or time.perf_counter() - begun < seconds:
            self._sum(given, micro).sum().item()  # waits for the GPU
            done += micro
        return total.double(), done / (time.perf_counter() - begun)

    def _given(self, micro: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Images, labels and the loss's randomness; the first of them are the same for every micro-batch."""
        height, width, channels = self._shape
        rng, drawn = np.random.default_rng(0), torch.Generator().manual_seed(0)
        draws = [self._loss.draw(1, FineTuning().draws, (channels, height, width), drawn) for _ in range(micro)]
        images = torch.from_numpy(rng.uniform(-1, 1, (micro, channels, height, width)).astype(np.float32))
        randomness = tuple(torch.cat(part).to(self.device) for part in zip(*draws, strict=True))
        return images.to(self.device), torch.arange(micro, device=self.device) % _CLASSES, randomness

    def _sum(self, given: tuple[Tensor, Tensor, tuple[Tensor, ...]], counted: int) -> Tensor:
        gradients = record_gradients(self._model, self._loss, self._parameters, *given)
        rows = torch.arange(len(given[0]), device=self.device)
        return clipped_sum(gradients, rows < counted, FineTuning().clip)


CHECK = GPUCheck(dp_sgd, seconds=180)
