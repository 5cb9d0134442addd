"""The check `recovery`: Stable Diffusion XL in fp16 goes on, in smaller batches, after memory was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from adapters.diffusion.device import free_memory
from adapters.diffusion.items import Pixels
from adapters.gpu_check.models import SDXL, grey_levels, in_batches, new_images, stable_diffusion_xl, text_to_image
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_BATCH = 4
_NEAR = 2
"""Grey levels by which an image may differ after the recovery: its kernels may be others, its batch is the same."""


def recovery(device: str, size: Size) -> Found:
    """Refuse memory in decoding by an injected error and, on a GPU, in earnest under a bounded memory fraction.

    Each time a batch of 4 is asked for, halved by the engine, and compared with the images that batches of 2 gave
    before; and once more when memory is plentiful again.
    """
    import torch

    shape, faults = SDXL[size], list[str]()
    figures: dict[str, Figure] = {"model": f"SDXL's shape, {shape.words}, fp16, autoencoder in float32"}
    with stable_diffusion_xl(shape, device) as folder:
        api = text_to_image(folder, shape, device, "fp16", batch_size=_BATCH)
        _peak(device)  # of the building
        before = in_batches(api, _BATCH, _BATCH // 2)
        half = _peak(device)
        new_images(api, _BATCH)
        whole = _peak(device)
        ways: dict[str, Any] = {"injected in decoding": _refused_in_decoding()}
        if torch.device(device).type == "cuda":
            figures |= {"memory of 2 and of 4 images, GiB": f"{half / 2**30:.2f}, {whole / 2**30:.2f}"}
            ways["bounded memory"] = _bounded(device, (half + whole) // 2)
        for name, refusing in ways.items():
            api = text_to_image(folder, shape, device, "fp16", batch_size=_BATCH)
            free_memory(torch.device(device))  # of the model before
            new_images(api, 1)  # loads this one
            with _batches() as batches, refusing:
                during = new_images(api, _BATCH)
            after = new_images(api, _BATCH)
            figures[f"{name}: batches"] = ", ".join(map(str, dict.fromkeys(batches)))
            _compare(name, before, {"during": during, "after": after}, figures, faults)
            if min(batches) == _BATCH:
                faults.append(f"{name}: a batch of {_BATCH} was not refused, so nothing was tried")
    return judged(figures, faults)


def _compare(
    name: str, before: Pixels, found: dict[str, Pixels], figures: dict[str, Figure], faults: list[str]
) -> None:
    for when, images in found.items():
        figures[f"{name}: grey levels apart, {when}"] = apart = grey_levels(before, images)
        if apart > _NEAR:
            faults.append(f"{name}: images {when} the refusal differ by {apart} grey levels, and {_NEAR} are allowed")


@contextmanager
def _refused_in_decoding() -> Iterator[None]:
    """The first call of an autoencoder's decoder is refused, as torch refuses memory."""
    import torch

    left = [1]

    def refuse(_given: Any) -> None:
        if left:
            left.clear()
            raise torch.OutOfMemoryError("out of memory, injected by the check")

    with _before("Decoder", refuse):
        yield


@contextmanager
def _batches() -> Iterator[list[int]]:
    """How many images each call of a UNet had."""
    seen: list[int] = []
    with _before("UNet2DConditionModel", lambda given: seen.append(len(given[0]))):
        yield seen


@contextmanager
def _before(kind: str, act: Callable[[Any], None]) -> Iterator[None]:
    """`act` gets what each call of a module of this kind is given, before it."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    handle = register_module_forward_pre_hook(lambda one, given: act(given) if type(one).__name__ == kind else None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _bounded(device: str, most: int) -> Iterator[None]:
    """At most so many bytes of the GPU's memory for this process."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _peak(device: str) -> int:
    """Most bytes that were taken since the last call; 0 on a processor."""
    import torch

    if torch.device(device).type != "cuda":
        return 0
    found = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return int(found)


CHECK = GPUCheck(recovery, seconds=180)
