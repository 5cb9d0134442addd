"""The check `batches`: by how much an image depends on the batch that it is made in, by precision."""

from __future__ import annotations

from typing import Any

from adapters.diffusion.device import Precision
from adapters.diffusion.pixel_space import PixelSpace
from adapters.gpu_check.models import REDUCED, grey_levels, in_batches, stable_diffusion, text_to_image
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged
from pe.plugins.protocols import GenerationAPI

_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
_CLAIMED = 1
"""Grey levels, in fp32: docs/diffusion.md."""

_BATCHES: dict[Size, tuple[int, ...]] = {"tiny": (2, 4), "small": (4, 16), "real": (4, 16)}
_STEPS: dict[Size, int] = {"tiny": 2, "small": 10, "real": 20}


def batches(device: str, size: Size) -> Found:
    """The largest difference, in grey levels, to images made one at a time; fails where fp32 differs by more than 1."""
    shape, faults = REDUCED[size], list[str]()
    figures: dict[str, Figure] = {"text model": f"Stable Diffusion 1.5's shape, {shape.words}, random weights"}
    more: dict[str, Any] = {"steps": _STEPS[size], "batch_size": max(_BATCHES[size])}
    with stable_diffusion(shape, device) as folder:
        for precision in _PRECISIONS:
            models: dict[str, GenerationAPI] = {
                "text model": text_to_image(folder, shape, device, precision, **more),
                "small": PixelSpace(model="small", device=device, precision=precision, **more),
            }
            for name, api in models.items():
                apart = _apart(api, _BATCHES[size])
                for batch, levels in apart.items():
                    figures[f"{name}, {precision}, batch 1 against {batch}: grey levels"] = levels
                    if precision == "fp32" and levels > _CLAIMED:
                        faults.append(f"{name} in fp32: batches of {batch} differ by {levels} grey levels, not 1")
    return judged(figures, faults)


def _apart(api: GenerationAPI, sizes: tuple[int, ...]) -> dict[int, int]:
    """Batch → grey levels between its images and those made alone."""
    alone = in_batches(api, max(sizes), 1)
    return {size: grey_levels(alone, in_batches(api, max(sizes), size)) for size in sizes}


CHECK = GPUCheck(batches, seconds=180)
