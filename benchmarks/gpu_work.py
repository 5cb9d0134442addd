"""What a GPU would be asked to do, and what is left to the processor beside it, counted without one.

    python benchmarks/gpu_work.py

DP-SGD: the operations that a record of a micro-batch takes, each a kernel on a GPU, as PyTorch hands them on.
Diffusion: the seconds of one core that a batch of 16 images of 512×512 takes after the autoencoder, and those that a
batch of variations takes for the parents and for the safety checker. Writes results/gpu_work.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import time
from statistics import median
from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from noise import unet
from PIL import Image
from record import keep, where
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CLIPImageProcessor

from adapters.trained.diffusion_training import Velocity
from adapters.trained.dp_sgd.gradients import clipped_sum, record_gradients, trained_parameters

DRAWS, SHAPE = 4, (1, 28, 28)
BATCH, SIDE = 16, 512
_VIEWS = ("view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "split", "detach")
_NONE = {f"aten::{name}" for name in (*_VIEWS, "alias", "empty", "empty_like", "_unsafe_view", "_local_scalar_dense")}


class Kernels(TorchDispatchMode):
    """Counts operations, but for those that only look at memory in another way."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name().split(".")[0] not in _NONE
        return func(*args, **(kwargs or {}))


def per_record(records: int, singly: bool, draws_on_device: bool) -> float:
    """Operations of a micro-batch, over its records; `singly` and the draws as on a GPU before, or now."""
    model, loss = unet(), Velocity()
    images = torch.zeros(records, *SHAPE)
    labels = torch.zeros(records, dtype=torch.int64)
    with Kernels() as draws:
        drawn = [loss.draw(1, DRAWS, SHAPE, torch.Generator().manual_seed(i)) for i in range(records)]
        randomness = tuple(torch.cat(part) for part in zip(*drawn, strict=True))
    with Kernels() as kernels:
        gradients = record_gradients(model, loss, trained_parameters(model), images, labels, randomness)
        clipped_sum(gradients, torch.ones(records, dtype=torch.bool), 1.0, singly=singly)
    copies = len(randomness)
    return (kernels.count + (draws.count if draws_on_device else copies)) / records


def seconds(work: Any, rounds: int = 7) -> float:
    clocks = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        clocks.append(time.perf_counter() - begun)
    return median(clocks)


def tails() -> tuple[float, float]:
    """Of a batch: float32 to the processor and to bytes there, as it was; and bytes alone to the processor."""
    images = torch.rand(BATCH, 3, SIDE, SIDE)
    levels = (images.permute(0, 2, 3, 1) * 255).round().clamp(0, 255).byte().contiguous()

    def before() -> None:
        floats = images.permute(0, 2, 3, 1).float().clone().numpy()
        np.isfinite(floats).reshape(BATCH, -1).all(axis=1)
        (np.nan_to_num(floats) * 255).round().clip(0, 255).astype(np.uint8)

    return seconds(before), seconds(lambda: levels.clone().numpy())


def variations() -> tuple[float, float]:
    """Of a batch: parents and the checker's images by diffusers' own ways; and bytes of the parents to the device."""
    parents = np.random.default_rng(0).integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    made, processor, extractor = torch.rand(BATCH, 3, SIDE, SIDE), VaeImageProcessor(), CLIPImageProcessor()

    def pictures() -> list[Image.Image]:
        return [Image.fromarray(each) for each in parents]

    def before() -> None:
        processor.preprocess(pictures())
        extractor(processor.postprocess(made), return_tensors="pt")

    return seconds(before), seconds(lambda: torch.from_numpy(np.stack([np.asarray(each) for each in pictures()])))


def main() -> None:
    rows = [
        ("before: micro-batch 32, norms and sums record by record, draws on the GPU", per_record(32, True, True)),
        ("now: micro-batch 32", per_record(32, False, False)),
        ("now: micro-batch 512", per_record(512, False, False)),
    ]
    (before, now), (prepared, taken) = tails(), variations()
    lines = [
        "# Work for a GPU, and beside it",
        "",
        f"{where()}, torch {torch.__version__}. No GPU: operations are counted as PyTorch hands them on, seconds are "
        "those of one core. `python benchmarks/gpu_work.py`",
        "",
        f"DP-SGD over the UNet of benchmarks/noise.py, {'×'.join(map(str, SHAPE))}, {DRAWS} draws a record:",
        "",
        "| | kernels a record |",
        "|---|--:|",
        *(f"| {name} | {count:,.1f} |" for name, count in rows),
        "",
        f"A batch of {BATCH} images of {SIDE}×{SIDE}, from the autoencoder's answer to bytes:",
        "",
        "| | seconds of the host |",
        "|---|--:|",
        f"| before: float32 copied, turned into bytes by NumPy | {before:.3f} |",
        f"| now: bytes copied, which the GPU made | {now:.4f} |",
        "",
        f"A batch of {BATCH} variations of {SIDE}×{SIDE} with a safety checker, what is prepared beside that:",
        "",
        "| | seconds of the host |",
        "|---|--:|",
        f"| before: parents as float32, images as pictures for the checker, resized | {prepared:.3f} |",
        f"| now: the parents' bytes; the GPU does the rest | {taken:.4f} |",
    ]
    keep("gpu_work.md", "\n".join(lines))


if __name__ == "__main__":
    main()
