"""The devices on which torch may compute on this machine, and the precision to compute in."""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pe.errors import MissingDependency, PEError, RecipeError

if TYPE_CHECKING:
    import torch

    from pe.plugins.settings import Devices

STATUS = "/proc/self/status"
"""The file in which Linux tells what memory this process has."""
DRIVER = Path("/dev")
"""The folder in which NVIDIA's driver for Linux has a file for each GPU: nvidia0, nvidia1, …"""
FITTING_TORCH = (
    "install a torch that fits the driver (nvidia-smi names the CUDA version that it supports)"
)

Precision = Literal["auto", "fp32", "bf16", "fp16"]

log = logging.getLogger(__name__)

# of malloc.h
_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1
# Parts of the messages, in lower case, of errors that lack of memory causes. The last three can
# have other causes.
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


def import_library(name: str, extra: str, purpose: str) -> Any:
    """Import and return a library that an extra brings.

    `purpose` is the subject of MissingDependency's message.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDependency.of(name, extra, purpose) from error


def require_torch(extra: str, purpose: str) -> None:
    """Raise MissingDependency if torch is not installed.

    `import_library` explains `extra` and `purpose`.
    """
    import_library("torch", extra, purpose)


def find_device(name: str) -> torch.device:
    """Return the device of this name.

    `auto` is the first of cuda, mps and cpu that there is.

    Raises:
        RecipeError: this machine lacks it, CUDA_VISIBLE_DEVICES hides it, or torch sees none of the
            driver's GPUs.
    """
    import torch

    cards = find_cards("device: cpu") if name.startswith(("auto", "cuda")) else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cards else "mps" if mps else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= cards:
        raise RecipeError(
            f"`device` is '{name}', but this machine has {cards} CUDA devices to use "
            "(CUDA_VISIBLE_DEVICES hides others). Use one of them, or auto."
        )
    if device.type == "mps" and not mps:
        raise RecipeError("`device` is 'mps', but this machine has no MPS. Use cpu or auto.")
    if device.type == "cpu":
        keep_memory()
    return device


def choose_devices(
    device: Devices, extra: str = "diffusion", purpose: str = "A local diffusion model"
) -> list[torch.device]:
    """Return the devices of these names, and for `auto` all GPUs, or else mps or the CPU.

    Raises:
        RecipeError: one is missing.
    """
    require_torch(extra, purpose)
    if device == "auto":
        return [find_device(f"cuda:{i}") for i in range(count_cards())] or [find_device("auto")]
    devices = [find_device(name) for name in ([device] if isinstance(device, str) else device)]
    return [type(one)(one.type, one.index or 0) if one.type == "cuda" else one for one in devices]


def describe_precision(device: Devices, precision: Precision) -> str:
    """Describe the precision on this machine for the plan.

    Torch is loaded only if there may be GPUs.
    """
    names = [device] if isinstance(device, str) else device
    if not has_driver() and {*names} <= {"auto", "cpu"}:
        return "auto, which is fp32 here" if precision == "auto" else precision
    if find_spec("torch") is None:
        return ""
    devices = choose_devices(device)
    if precision != "auto":
        return precision
    return "auto, which is " + ", ".join(f"{_usual_precision(one)} on {one}" for one in devices)


def dtype_on(device: torch.device, precision: Precision) -> torch.dtype:
    """Return torch's type for a precision.

    `auto` is bf16 on a GPU that computes in it, elsewhere fp32; the choice is logged.
    """
    import torch

    if precision == "auto":
        precision = _usual_precision(device)
        log.info("precision: auto is %s on %s.", precision, device)
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _usual_precision(device: torch.device) -> Precision:
    if device.type != "cuda":
        return "fp32"
    import torch

    with torch.cuda.device(device):  # older GPUs are slow at an emulated bf16, or fail
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def free_memory(device: torch.device) -> None:
    """Give back the memory that the allocator keeps, so that a smaller batch fits in one piece."""
    import torch

    gc.collect()
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)


@cache
def keep_memory() -> None:
    """Let this process keep one layer's memory for the next layer.

    The C library of most Linux systems returns large blocks to the system at once, which clears
    them anew for the next layer: that can take longer than the arithmetic. Call this before torch
    computes on the CPU. On other systems it does nothing.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def find_cards(instead: str) -> int:
    """Return how many GPUs torch sees.

    Raises:
        RecipeError: it sees none of the driver's GPUs; the message proposes `instead`.
    """
    fault = unseen_cards()
    if fault:
        raise RecipeError(f"{fault[:1].upper()}{fault[1:]}: {FITTING_TORCH}, or set {instead}.")
    return count_cards()


def unseen_cards() -> str:
    """Describe the fault that torch sees none of the driver's GPUs, or return an empty text."""
    cards = listed_cards()
    if not cards or count_cards():
        return ""
    import torch

    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"the driver has {words_for(cards)}, and torch {torch.__version__}, {build}, sees none"


def listed_cards() -> int:
    """Return the number of GPUs of NVIDIA's driver on Linux, whatever torch sees.

    It is 0 if CUDA_VISIBLE_DEVICES hides all of them.
    """
    count = len(list(DRIVER.glob("nvidia[0-9]*")))
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    is_visible = first.startswith(("GPU-", "MIG-")) or (first.isdecimal() and int(first) < count)
    return count if is_visible else 0


def has_driver() -> bool:
    """Return true if NVIDIA's driver is here.

    Without it nobody need load torch, which is slow, to look for GPUs.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return listed_cards() > 0  # a container may have the GPUs, and not the driver's library
    return True


def words_for(cards: int) -> str:
    """Return the number of GPUs in words: 1 GPU, 2 GPUs."""
    return f"{cards} GPU{'s' * (cards != 1)}"


def count_cards() -> int:
    """Return the number of CUDA devices that torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Raise RecipeError if this process can take fewer than `needed` bytes.

    The machine, its container and the process itself have limits. Linux tells them; elsewhere
    nothing is refused.
    """
    held = told_bytes(STATUS, "VmRSS:")
    available = min(
        told_bytes("/proc/meminfo", "MemAvailable:"),
        told_bytes("/proc/self/limits", "Max address space") - told_bytes(STATUS, "VmSize:"),
        told_bytes("/sys/fs/cgroup/memory.max") - held,
        told_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes") - held,
    )
    if needed > available:
        sizes = (
            f"about {needed / 1e9:,.1f} GB of memory, but {available / 1e9:,.1f} GB are free here"
        )
        raise RecipeError(f"{what} takes {sizes}: {remedy}.")


def told_bytes(file: str, name: str = "") -> float:
    """Return the bytes that one of Linux's files states after a name.

    If the file is missing or states none, they are infinite.
    """
    try:
        found = re.search(rf"{name}\s*(\d+)( kB)?", Path(file).read_text())
    except OSError:
        return math.inf
    return math.inf if found is None else int(found[1]) * (1024 if found[2] else 1)


def memory_refused(error: Exception) -> bool:
    """Return true if the error's words say that the device lacked memory.

    Some of these words can have other causes.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in _REFUSALS
    )


@contextmanager
def with_attributes(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes for the time of a block, then restore them.

    Each change is an object, the attribute's name and its value.
    """
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


@contextmanager
def raising_for_memory(refusal: PEError) -> Iterator[None]:
    """Raise `refusal` in place of an error of the block if `memory_refused` is true of it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if memory_refused(error):
            raise refusal from error
        raise


def words_of_error(error: Exception) -> str:
    """Return the first 200 characters of an error's message on one line, to quote as a cause."""
    return (" ".join(str(error).split())[:200] or type(error).__name__).rstrip(".")
