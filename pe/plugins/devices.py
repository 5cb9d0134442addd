"""Which device torch computes on: by name, among those that this machine lets be used."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING

from pe.errors import MissingDependency, RecipeError

if TYPE_CHECKING:
    import torch

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of malloc.h


def require_torch(extra: str, purpose: str) -> None:
    """Refuse to go on without torch.

    Args:
        extra: of this toolkit that installs it.
        purpose: what it is needed for, the subject of the message.

    Raises:
        MissingDependency: it is not.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency.of("torch", extra, purpose) from error


def find_device(name: str) -> torch.device:
    """The device of this name among those that CUDA_VISIBLE_DEVICES leaves; auto is the first of cuda, mps, cpu.

    Raises:
        RecipeError: this machine does not have it.
    """
    import torch

    cards, mps = count_cards(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cards else "mps" if mps else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= cards:
        raise RecipeError(
            f"device is '{name}', and this machine has {cards} CUDA devices to use (CUDA_VISIBLE_DEVICES hides "
            "others): give one that is there, or auto."
        )
    if device.type == "mps" and not mps:
        raise RecipeError("device is 'mps', and this machine has none: give cpu, or auto.")
    if device.type == "cpu":
        keep_memory()
    return device


@cache
def keep_memory() -> None:
    """Let this process keep the memory that a layer's output took, for the next one; before torch computes on the CPU.

    The C library of most Linux systems returns large blocks to the system at once, which clears them anew for the next
    layer: that can take longer than the arithmetic. Elsewhere this does nothing.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def count_cards() -> int:
    """CUDA devices that may be used."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
