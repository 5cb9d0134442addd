"""The device on which torch computes: found by name, among those that this machine lets be used."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pe.errors import MissingDependency, RecipeError

if TYPE_CHECKING:
    import torch

DRIVER = Path("/dev")
"""Where NVIDIA's driver for Linux has a file for each GPU: nvidia0, nvidia1, …"""
FITTING_TORCH = "install a torch that fits the driver (nvidia-smi names the CUDA version that it supports)"

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of malloc.h
_REFUSALS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "invalid buffer size",  # MPS
    "alloc_failed",  # cuBLAS
    "allocation_failed",  # cuDNN
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
    "unable to find an engine",  # cuDNN, where none of its ways finds room for its workspace
)
"""In small letters. The last three may have another cause."""


@runtime_checkable
class DescribesPrecision(Protocol):
    """A generator that computes on this machine, and says in what precision."""

    def describe_precision(self) -> str:
        """The precision of its arithmetic here, in one clause without a full stop; empty: it is not known yet.

        Raises:
            RecipeError: this machine lacks a device; asked before there is a run.
        """


def import_library(name: str, extra: str, purpose: str) -> Any:
    """Import a library that an extra brings; `purpose` is the subject of the message of MissingDependency."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDependency.of(name, extra, purpose) from error


def require_torch(extra: str, purpose: str) -> None:
    """Raise MissingDependency without torch, as `import_library`."""
    import_library("torch", extra, purpose)


def find_device(name: str) -> torch.device:
    """The device of this name among those that CUDA_VISIBLE_DEVICES leaves; auto is the first of cuda, mps, cpu.

    Raises:
        RecipeError: this machine does not have it, or torch sees none of the driver's GPUs.
    """
    import torch

    cards = find_cards("device: cpu") if name.startswith(("auto", "cuda")) else 0
    mps = torch.backends.mps.is_available()
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
    """Let this process keep the memory of a layer's output for the next one; before torch computes on the CPU.

    The C library of most Linux systems returns large blocks to the system at once, which clears them anew for the next
    layer: that can take longer than the arithmetic. Elsewhere this does nothing.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def find_cards(instead: str) -> int:
    """Return how many GPUs `auto` may take, by torch; with the setting `instead` none is needed."""
    if fault := unseen_cards():
        raise RecipeError(f"{fault[:1].upper()}{fault[1:]}: {FITTING_TORCH}, or set {instead}.")
    return count_cards()


def unseen_cards() -> str:
    """Describe the fault if torch sees none of the driver's GPUs; else return nothing."""
    cards = listed_cards()
    if not cards or count_cards():
        return ""
    import torch

    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"the driver has {words_for(cards)}, and torch {torch.__version__}, {build}, sees none"


def listed_cards() -> int:
    """GPUs of NVIDIA's driver on Linux, whatever torch sees; 0 if CUDA_VISIBLE_DEVICES hides all of them."""
    count = len(list(DRIVER.glob("nvidia[0-9]*")))
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    is_visible = first.startswith(("GPU-", "MIG-")) or (first.isdecimal() and int(first) < count)
    return count if is_visible else 0


def has_driver() -> bool:
    """True if there is NVIDIA's driver; else torch, which is slow to load, need not be asked for GPUs."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return listed_cards() > 0  # a container may have the GPUs, and not the driver's library
    return True


def words_for(cards: int) -> str:
    """As in a sentence: 1 GPU, 2 GPUs."""
    return f"{cards} GPU{'s' * (cards != 1)}"


def count_cards() -> int:
    """CUDA devices that torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def memory_refused(error: Exception) -> bool:
    """True if the device lacked memory, as far as the error's words tell; some of these have other causes, too."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _REFUSALS)


def words_of(error: Exception) -> str:
    """The first of an error's words, on one line, for a message that names it as the cause."""
    return (" ".join(str(error).split())[:200] or type(error).__name__).rstrip(".")
