"""The check `exhaustion`: what torch's libraries raise on a full GPU is recognised as a lack of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pe.plugins.devices import memory_refused
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

if TYPE_CHECKING:
    from torch import Tensor

_MIB = 2**20
_ROOM = (0, 64, 512)
"""MiB that torch's own cache keeps for the operations' results, while the GPU has none left for the libraries."""

_SMALLEST = _MIB
_LARGEST = 2**30
_OTHERS = 3 * 2**30
"""Bytes on the GPU, this process's context among them, above which somebody else is taken to be working there."""


def exhaustion(device: str, _size: Size) -> Found:
    """Fill the memory, run a convolution and a matrix product in new threads, and see what they raise.

    A new thread takes new handles of cuDNN and cuBLAS, which do not ask torch for their memory. Afterwards the same
    operations must work. On a processor results are asked for that no memory holds.
    """
    import torch

    is_gpu = torch.device(device).type == "cuda"
    if is_gpu:
        free, total = torch.cuda.mem_get_info(device)
        if total - free > _OTHERS:
            return Found("skipped", f"other programs hold {(total - free) / 2**30:.1f} GiB of {device}")
    figures: dict[str, Figure] = {}
    faults: list[str] = []
    works = _works(device, is_gpu)
    for room in _ROOM if is_gpu else (0,):
        held = _fill(device, room * _MIB) if is_gpu else []
        for name, work in works.items():
            error = _raised(work)
            told = "works" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            figures[f"{name}, {room} MiB in torch's cache"] = told
            if error is not None and not memory_refused(error):
                faults.append(f"not recognised as a lack of memory, from a {name}: {told}")
        held.clear()
        if is_gpu:
            torch.cuda.empty_cache()
    if is_gpu:
        for name, work in works.items():
            if (error := _raised(work)) is not None:
                faults.append(f"a {name} still fails when memory is free again: {error}")
    return judged(figures, faults)


def _works(device: str, is_gpu: bool) -> dict[str, Callable[[], object]]:
    """Operations whose inputs are there already; on a processor their results would take a petabyte."""
    import torch
    from torch.nn import functional

    if is_gpu:
        images, kernels = torch.ones(4, 64, 64, 64, device=device), torch.ones(64, 64, 3, 3, device=device)
        rows, columns = torch.ones(1024, 1024, device=device), torch.ones(1024, 1024, device=device)
        torch.cuda.synchronize(device)
    else:
        images, kernels = torch.ones(1, 1, 8, 8).expand(2**45, 1, 8, 8), torch.ones(1, 1, 3, 3)
        rows, columns = torch.ones(1, 1).expand(2**24, 1), torch.ones(1, 1).expand(1, 2**24)

    def done(result: Tensor) -> None:
        if is_gpu:
            float(result.sum())

    return {
        "convolution": lambda: done(functional.conv2d(images, kernels, padding=1)),
        "matrix product": lambda: done(rows @ columns),
    }


def _fill(device: str, room: int) -> list[Any]:
    """Take all memory that the GPU gives; then let torch's cache, not the GPU, have `room` bytes of it again."""
    import torch

    held, size = [], _LARGEST
    spare = torch.empty(room, dtype=torch.uint8, device=device) if room else None
    while size >= _SMALLEST:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    del spare
    return held


def _raised(work: Callable[[], object]) -> Exception | None:
    """What `work` raises in a thread of its own."""
    found: list[Exception] = []

    def carry_out() -> None:
        try:
            work()
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=carry_out)
    thread.start()
    thread.join()
    return found[0] if found else None


CHECK = GPUCheck(exhaustion, seconds=90)
