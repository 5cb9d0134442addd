"""The check `batches`: by how much an image depends on the batch that it is made in, by precision."""

from __future__ import annotations

from contextlib import nullcontext

from adapters.diffusion.device import Precision
from adapters.diffusion.pixel_space import PixelSpace
from adapters.gpu_check.models import STEPS, full_float32, grey_levels, in_batches, reduced
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged
from pe.plugins.protocols import GenerationAPI

_JUDGED = "fp32 without TF32"
_PRECISIONS: dict[str, Precision] = {_JUDGED: "fp32", "fp32 as torch has it": "fp32", "bf16": "bf16", "fp16": "fp16"}
_CLAIMED = 1
"""Grey levels, without TF32: docs/diffusion.md."""

_BATCHES: dict[Size, tuple[int, ...]] = {"tiny": (2,), "small": (4, 16), "real": (4, 16)}


def batches(device: str, size: Size) -> Found:
    """The largest difference, in grey levels, to images made one at a time; fails where full float32 differs by over 1.

    As torch has it, float32 on a GPU is TF32 in convolutions: for that, bf16 and fp16 nothing is claimed.
    """
    faults: list[str] = []
    most, steps = max(_BATCHES[size]), STEPS[size]
    with reduced(device, size) as (words, build):
        figures: dict[str, Figure] = {"text model": words}
        for told, precision in _PRECISIONS.items():
            models: dict[str, GenerationAPI] = {
                "text model": build(precision, batch_size=most),
                "small": PixelSpace(model="small", device=device, precision=precision, steps=steps, batch_size=most),
            }
            for name, api in models.items():
                with full_float32() if told == _JUDGED else nullcontext():
                    apart = _apart(api, _BATCHES[size])
                for batch, levels in apart.items():
                    figures[f"{name}, {told}, batch 1 against {batch}: grey levels"] = levels
                    if told == _JUDGED and levels > _CLAIMED:
                        faults.append(f"{name} in {told}: batches of {batch} differ by {levels} grey levels, not 1")
    return judged(figures, faults)


def _apart(api: GenerationAPI, sizes: tuple[int, ...]) -> dict[int, int]:
    """Batch → grey levels between its images and those made alone."""
    alone = in_batches(api, max(sizes), 1)
    return {size: grey_levels(alone, in_batches(api, max(sizes), size)) for size in sizes}


CHECK = GPUCheck(batches, seconds=240)
