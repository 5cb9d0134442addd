"""Compare the time of a private training step with an ordinary one.

    OMP_NUM_THREADS=1 python benchmarks/dp_sgd.py

Network, loss and draws are those of `dpdm`. Both kinds of step take turns. Seconds are those of the
processor, so other work on the machine counts little. Writes a part of results/speed.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from record import keep, where

from adapters.trained.diffusion_networks import Denoising, unet
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import DPSGD, NetworkSize
from pe.plugins.devices import keep_memory
from pe.privacy.noise import SystemNoise

RECORDS, DRAWS, SIDE, CLASSES = 32, 4, 14, 10
ROUNDS = int(os.environ.get("ROUNDS", "15"))
SHAPE = (1, SIDE, SIDE)


def network() -> torch.nn.Module:
    return unet(NetworkSize(), (SIDE, SIDE, 1), CLASSES, 0, "weights")


def training(records: int) -> Training:
    """DP-SGD with every record, noise included, in micro-batches of RECORDS."""
    settings = DPSGD(
        steps=2**20, expected_batch=records, declared_size=records, noise_multiplier=1.0, draws=DRAWS, block=1,
        micro_batch=RECORDS,
    )  # fmt: skip
    return Training(network(), Denoising(), settings)


def step_of(training: Training, images: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    state = training.start()

    def step() -> None:
        training.block(state, images, labels, SystemNoise())

    return step


def ordinary(images: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    """Adam and a moving average over the same images, drawn as often, in one batch."""
    model, loss, generator = network(), Denoising(), torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )

    def step() -> None:
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
        per_record = [loss.draw(DRAWS, SHAPE, generator) for _ in range(RECORDS)]
        drawn = map(torch.cat, zip(*per_record, strict=True))
        optimiser.zero_grad()
        y = torch.from_numpy(labels).repeat_interleave(DRAWS)
        loss(model, x.repeat_interleave(DRAWS, dim=0), y, tuple(drawn)).mean().backward()
        optimiser.step()
        average.update_parameters(model)

    return step


def seconds(steps: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Of the processor, in turn; a first turn is not counted."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            if turn:
                found[name].append(time.process_time() - begun)
    return found


def main() -> None:
    torch.set_num_threads(1)
    keep_memory()  # as in a fit
    images = np.random.default_rng(0).integers(0, 256, (RECORDS, SIDE, SIDE, 1), dtype=np.uint8)
    labels = np.arange(RECORDS) % CLASSES
    found = seconds(
        {
            "ordinary, with Adam and a moving average": ordinary(images, labels),
            "private": step_of(training(RECORDS), images, labels),
        }
    )
    base = next(iter(found.values()))
    count = sum(value.numel() for value in network().parameters())
    lines = [
        "## What a private step costs",
        "",
        f"{where()}, torch {torch.__version__}, one thread. `python benchmarks/dp_sgd.py`",
        "",
        f"A UNet of {count:,} parameters, {SIDE}×{SIDE}, {RECORDS} records × {DRAWS} draws. "
        f"Seconds of the processor, {ROUNDS} rounds in turn: the least, the median, and a round's "
        "ratio to the ordinary.",
        "",
        "| step | least: s | median: s | over an ordinary one |",
        "|---|--:|--:|--:|",
    ]
    for name, each in found.items():
        ratio = median(one / other for one, other in zip(each, base, strict=True))
        lines.append(f"| {name} | {min(each):.3f} | {median(each):.3f} | {ratio:.2f} × |")
    lines += [
        "",
        "The aim was 1.4 ×. Each record's gradient is clipped and rounded to the integer grid by "
        "itself, which makes the guarantee exact in integers. So it must be there as numbers: "
        "norms without gradients (ghost clipping), whose clipped sum comes from one more backward "
        "pass, cannot take its place.",
    ]
    keep("speed.md", "\n".join(lines))


if __name__ == "__main__":
    main()
