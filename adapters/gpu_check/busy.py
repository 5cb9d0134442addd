"""The check `busy`: the share of time in which the GPU works while images are made, by the driver's counters."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from statistics import fmean

from adapters.diffusion.pixel_space import PixelSpace
from adapters.gpu_check.models import SD_15, STEPS, new_images, stable_diffusion, text_to_image
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size
from pe.plugins.protocols import GenerationAPI

_INTERVAL = 200  # milliseconds between two readings
_SECONDS: dict[Size, float] = {"tiny": 0.0, "small": 5.0, "real": 12.0}
"""For which each kind of work goes on, at least; at least one request each of two threads is made."""

_TEXT_BATCH: dict[Size, int] = {"tiny": 1, "small": 16, "real": 16}
_SMALL_BATCH: dict[Size, int] = {"tiny": 2, "small": 1024, "real": 1024}
_REQUESTS = 2
"""Requests at once, as in a run."""


def busy(device: str, size: Size) -> Found:
    """Images per second and the busy share of Stable Diffusion 1.5's shape, as such and with few steps, and of 28×28.

    Nothing fails: the figures are for a person to read. Without nvidia-smi there is no share.
    """
    shape, steps = SD_15[size], STEPS[size]
    figures: dict[str, Figure] = {"text model": f"Stable Diffusion 1.5's shape, {shape.words}, bf16, random weights"}
    with stable_diffusion(shape, device, "bf16") as folder:
        batch = _TEXT_BATCH[size]
        guided = text_to_image(folder, shape, device, "bf16", batch_size=batch, steps=steps, guidance=7.5)
        figures |= _measured(f"{steps} steps, guided", guided, device, batch, _SECONDS[size])
        del guided  # its weights go, before the next are loaded
        quick = text_to_image(folder, shape, device, "bf16", batch_size=batch, steps=4, sampler="lcm")
        figures |= _measured("4 steps, lcm", quick, device, batch, _SECONDS[size])
    batch = _SMALL_BATCH[size]
    small = PixelSpace(model="small", steps=max(4, steps), device=device, batch_size=batch)
    figures |= _measured(f"28×28, {max(4, steps)} steps", small, device, batch, _SECONDS[size])
    return Found(figures=figures)


def _measured(name: str, api: GenerationAPI, device: str, batch: int, seconds: float) -> dict[str, Figure]:
    """Images per second of requests of two batches, two at once, and the busy share meanwhile."""
    new_images(api, batch)
    firsts = count(0, 2 * batch)
    begun = time.perf_counter()

    def ask(_worker: int) -> int:
        made = 0
        while not made or time.perf_counter() - begun < seconds:
            made += len(new_images(api, 2 * batch, next(firsts)))
        return made

    with readings(_identity(device)) as shares, ThreadPoolExecutor(_REQUESTS) as threads:
        made = sum(threads.map(ask, range(_REQUESTS)))
    taken = time.perf_counter() - begun
    told: Figure = f"{fmean(shares):.0f} %" if shares else "not told by this driver"
    return {f"{name}: images/s": made / taken, f"{name}: busy": told}


def _identity(device: str) -> str | None:
    """By what nvidia-smi knows a GPU, whichever CUDA_VISIBLE_DEVICES leaves; None: it is none."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device != "cpu" else None


@contextmanager
def readings(gpu: str | None) -> Iterator[list[float]]:
    """nvidia-smi's readings of a GPU's utilisation, in per cent, filled in at the end; none without that program."""
    found: list[float] = []
    command = shutil.which("nvidia-smi")
    if command is None or gpu is None:
        yield found
        return
    query = [command, f"--id={gpu}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(  # noqa: S603
        [*query, f"--loop-ms={_INTERVAL}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield found
    finally:
        process.terminate()
        lines = process.communicate()[0].splitlines()
        found += [float(line) for line in lines[1:] if line.strip().isdecimal()]  # the first is of the time before


CHECK = GPUCheck(busy, seconds=240)
