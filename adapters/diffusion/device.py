"""Where the arithmetic is done, in what precision, and with what memory."""

from __future__ import annotations

import ctypes
import logging
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from pe.errors import RecipeError
from pe.plugins.devices import count_cards, find_device, has_driver, require_torch

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Devices = str | list[str]

log = logging.getLogger(__name__)

_NAMES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def check_arithmetic(device: Devices, precision: str) -> None:
    """Raise RecipeError if these settings do not name devices and a precision; torch is not loaded."""
    names = [device] if isinstance(device, str) else device
    if not names or not all(_NAMES.fullmatch(name) for name in names) or ("auto" in names and len(names) > 1):
        raise RecipeError(f"device is {device!r}: it must be auto, cpu, mps, cuda, cuda:1, or a list of such cards.")
    if precision not in get_args(Precision):
        raise RecipeError(f"precision is '{precision}': it must be one of {', '.join(get_args(Precision))}.")


def choose_devices(device: Devices) -> list[torch.device]:
    """The devices of these names among those that CUDA_VISIBLE_DEVICES leaves; auto: all cards, else mps, else cpu.

    Raises:
        RecipeError: this machine lacks one of them.
        MissingDependency: torch is not installed.
    """
    require_torch("diffusion", "A local diffusion model")
    if device == "auto":
        return [find_device(f"cuda:{i}") for i in range(count_cards())] or [find_device("auto")]
    found = [find_device(name) for name in ([device] if isinstance(device, str) else device)]
    return [type(one)(one.type, one.index or 0) if one.type == "cuda" else one for one in found]


def describe_precision(device: Devices, precision: Precision) -> str:
    """The precision on this machine, as the plan states it; torch is loaded where there may be GPUs.

    Raises:
        RecipeError: see `choose_devices`.
    """
    names = [device] if isinstance(device, str) else device
    if not has_driver() and {*names} <= {"auto", "cpu"}:
        return "auto, which is fp32 here" if precision == "auto" else precision
    if find_spec("torch") is None:
        return ""
    found = choose_devices(device)
    if precision != "auto":
        return precision
    return "auto, which is " + ", ".join(f"{_chosen(one)} on {one}" for one in found)


def dtype_on(device: torch.device, precision: Precision) -> torch.dtype:
    """The tensors' type on a device; auto: bf16 on a GPU that computes in it, elsewhere fp32, told in the log."""
    import torch

    if precision == "auto":
        precision = _chosen(device)
        log.info("precision: auto is %s on %s.", precision, device)
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _chosen(device: torch.device) -> Precision:
    return "bf16" if device.type == "cuda" and _computes_in_bf16(device) else "fp32"


def _computes_in_bf16(device: torch.device) -> bool:
    """Whether a GPU does so itself: older ones are slow at it, or fail."""
    import torch

    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def free_memory(device: torch.device) -> None:
    """Give back what the allocator keeps for later, so that a smaller batch finds room in one piece."""
    import gc

    import torch

    gc.collect()
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)
