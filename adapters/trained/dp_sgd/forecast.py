"""What a training will take, time and memory, measured on random public images before it begins."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adapters.diffusion.device import free_memory
from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.dp_sgd.training import Images, Training
from adapters.trained.settings import DPSGD
from pe.fit.trainer import DryRun
from pe.privacy.noise import SystemNoise


def dry_run(
    model: nn.Module,
    loss: Loss,
    image_shape: tuple[int, int, int],
    settings: DPSGD,
    device: str | torch.device = "cpu",
    part: str = "training",
) -> DryRun:
    """Measure two full micro-batches and an empty step; the model stays as it is.

    Args:
        model: to be trained.
        loss: of one record.
        image_shape: h, w, c.
        settings: of the training; the noise may be open.
        device: where the training will run.
        part: what its releases are named by.

    Raises:
        PluginError: a model that DP-SGD cannot train.
        RecipeError: memory does not suffice; it says which micro_batch to take.
    """
    noise = SystemNoise()
    others = [torch.device(device)] * (settings.processes - 1)  # they are not started
    size = Training(model, loss, settings, device, *others).micro_batch(image_shape, noise)
    few = {
        "steps": 1,
        "micro_batch": size,
        "processes": 1,
        "block": 1,
        "expected_batch": size,
        "declared_size": size,
        "noise_multiplier": 0.0,
    }
    training = Training(model, loss, settings.model_copy(update=few), device)
    state = training.start()
    images = np.random.default_rng(0).integers(0, 256, (size, *image_shape), dtype=np.uint8)

    def step(images: Images) -> float:
        begun = time.perf_counter()
        training.block(state, images, np.zeros(len(images), dtype=np.int64), noise)
        return time.perf_counter() - begun

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // settings.processes))  # as many as each process will have
    try:
        memory = peak_memory(torch.device(device), lambda: step(images))  # the first time, when libraries load, too
        full, empty = step(images), step(images[:0])
    finally:
        torch.set_num_threads(threads)
    return DryRun(
        part=part,
        steps=settings.steps,
        seconds_per_step=empty + settings.rounds(size) * max(0.0, full - empty),
        parameters=training.count,
        memory=memory,
        blocks=settings.blocks,
        state_bytes=state.nbytes,
        noise_multiplier=settings.noise_multiplier,
    )


_SELF = Path("/proc/self")


def peak_memory(device: torch.device, work: Callable[[], object]) -> int | None:
    """Bytes that `work` held at most, beyond what was held before it; None where the system does not tell.

    On a CUDA device, of its memory, as PyTorch counts it; on a CPU, of the process, as Linux does.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    free_memory(device)  # else the work would take what was kept, uncounted
    try:
        (_SELF / "clear_refs").write_text("5")  # the high-water mark starts anew
        before = _kilobytes("VmRSS")
    except OSError:
        work()
        return None
    work()
    return max(0, _kilobytes("VmHWM") - before) * 1024


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", (_SELF / "status").read_text())
    if found is None:
        raise OSError(f"/proc/self/status does not tell {name}")
    return int(found[1])
