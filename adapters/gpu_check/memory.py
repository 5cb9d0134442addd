"""The checks `memory` and `compile`: what saves memory or time changes no image by more than rounding."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from adapters.diffusion.device import free_memory
from adapters.gpu_check.models import Build, full_float32, grey_levels, new_images, reduced
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_COUNT = 4
_NEAR = 2
"""Grey levels, in fp32 without TF32, between an image with the setting and without."""

_SLICES: dict[str, dict[str, Any]] = {"vae_slicing": {"vae_slicing": True}}
_OFFLOADS: dict[str, dict[str, Any]] = {f"offload: {how}": {"offload": how} for how in ("model", "sequential", "group")}


def memory(device: str, size: Size) -> Found:
    """The grey levels between an image with each setting that saves memory and without; on a processor, of slices."""
    return compared(device, size, _SLICES | ({} if device == "cpu" else _OFFLOADS))


def compiled(device: str, size: Size) -> Found:
    """The same of a compiled network; on a processor the compiler is passed over."""
    import torch

    if device == "cpu":
        torch.compiler.set_stance("force_eager")
    try:
        return compared(device, size, {"compile": {"compile": True}})
    finally:
        torch.compiler.set_stance("default")


def compared(device: str, size: Size, settings: dict[str, dict[str, Any]], batch_size: int = _COUNT) -> Found:
    """Grey levels between images with each of these settings and without any, seconds and memory."""
    faults: list[str] = []
    with reduced(device, size) as (words, build), full_float32():
        figures: dict[str, Figure] = {"model": f"{words}, fp32 without TF32"}
        wanted, seconds, most = _made(build, device, {"batch_size": batch_size})
        figures |= _costs("without", seconds, most)
        for name, changes in settings.items():
            found, seconds, most = _made(build, device, changes | {"batch_size": batch_size})
            figures |= {f"{name}: grey levels apart": (apart := grey_levels(wanted, found))}
            figures |= _costs(name, seconds, most)
            if apart > _NEAR:
                faults.append(f"{name} moves an image by {apart} grey levels, and {_NEAR} are allowed")
    return judged(figures, faults)


def _made(build: Build, device: str, changes: dict[str, Any]) -> tuple[np.ndarray, float, int]:
    """Images, the seconds that they took once the model was there, and the bytes of the GPU that were taken at most."""
    import torch

    free_memory(torch.device(device))  # of the model before
    api = build("fp32", **changes)
    new_images(api, _COUNT)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    images = new_images(api, _COUNT)
    seconds = time.perf_counter() - begun
    return images, seconds, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _costs(name: str, seconds: float, most: int) -> dict[str, Figure]:
    memory: dict[str, Figure] = {f"{name}: GiB": most / 2**30} if most else {}
    return {f"{name}: images/s": _COUNT / seconds} | memory


MEMORY = GPUCheck(memory, seconds=150)
COMPILE = GPUCheck(compiled, seconds=240)
