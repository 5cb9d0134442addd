"""How much memory a piece of work takes at its height."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from adapters.diffusion.device import free_memory

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
