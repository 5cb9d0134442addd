"""Devices, precisions, and the memory that pipelines share on a device."""

from __future__ import annotations

import ctypes
import gc
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from adapters.diffusion.description import Precision
from pe.errors import RecipeError
from pe.plugins.devices import count_cards, find_device, has_driver, require_torch

if TYPE_CHECKING:
    import torch

Offload = Literal["none", "model", "sequential", "group"]
Devices = str | list[str]

log = logging.getLogger(__name__)

_NAMES = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_WHOLE = 4  # images decoded at once; the autoencoder works on whole pictures, and needs more for each than the rest


def check_arithmetic(device: Devices, precision: str) -> None:
    """Raise RecipeError if these settings do not name devices and a precision; torch is not loaded."""
    names = [device] if isinstance(device, str) else device
    if not names or not all(_NAMES.fullmatch(name) for name in names) or ("auto" in names and len(names) > 1):
        raise RecipeError(f"device is {device!r}: it must be auto, cpu, mps, cuda, cuda:1, or a list of such cards.")
    if precision not in get_args(Precision):
        raise RecipeError(f"precision is '{precision}': it must be one of {', '.join(get_args(Precision))}.")


def choose_devices(
    device: Devices, extra: str = "diffusion", purpose: str = "A local diffusion model"
) -> list[torch.device]:
    """Return the visible devices of these names; auto: all GPUs, else mps, else cpu; RecipeError if one is missing."""
    require_torch(extra, purpose)
    if device == "auto":
        return [find_device(f"cuda:{i}") for i in range(count_cards())] or [find_device("auto")]
    devices = [find_device(name) for name in ([device] if isinstance(device, str) else device)]
    return [type(one)(one.type, one.index or 0) if one.type == "cuda" else one for one in devices]


def describe_precision(device: Devices, precision: Precision) -> str:
    """Describe the precision on this machine for the plan; torch is loaded only where there may be GPUs."""
    names = [device] if isinstance(device, str) else device
    if not has_driver() and {*names} <= {"auto", "cpu"}:
        return "auto, which is fp32 here" if precision == "auto" else precision
    if find_spec("torch") is None:
        return ""
    devices = choose_devices(device)
    if precision != "auto":
        return precision
    return "auto, which is " + ", ".join(f"{_automatic(one)} on {one}" for one in devices)


def dtype_on(device: torch.device, precision: Precision) -> torch.dtype:
    """Return the tensors' type; auto: bf16 on a GPU that computes in it, elsewhere fp32, noted in the log."""
    import torch

    if precision == "auto":
        precision = _automatic(device)
        log.info("precision: auto is %s on %s.", precision, device)
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _automatic(device: torch.device) -> Precision:
    if device.type != "cuda":
        return "fp32"
    import torch

    with torch.cuda.device(device):  # older GPUs are slow at an emulated bf16, or fail
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def free_memory(device: torch.device) -> None:
    """Give back what the allocator keeps for later, so that a smaller batch finds room in one piece."""
    import torch

    gc.collect()
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)


@dataclass(frozen=True)
class Memory:
    """The settings of `TextSettings` that save memory at the cost of time."""

    vae_slicing: bool | None = None
    vae_tiling: bool = False
    offload: Offload = "none"

    def place(self, pipelines: Sequence[Any], device: torch.device) -> None:
        """Put the weights where they belong; RecipeError if the device or a pipeline cannot."""
        if self.offload != "none" and device.type == "cpu":
            raise RecipeError(f"offload is '{self.offload}', but the model runs on the CPU already: leave it as none.")
        on_demand: list[Any] = []
        for pipeline in pipelines:
            if self.vae_slicing:
                _autoencoder(pipeline, "vae_slicing", "use_slicing").enable_slicing()
            if self.vae_tiling:
                _autoencoder(pipeline, "vae_tiling", "use_tiling").enable_tiling()
            if self.offload == "none":
                pipeline.to(device)
            elif self.offload == "group":
                parts = pipeline.components
                names = [name for name in parts if any(parts[name] is other for other in on_demand)]
                pipeline.enable_group_offload(
                    onload_device=device, num_blocks_per_group=1, use_stream=True, exclude_modules=names
                )
                on_demand += parts.values()

    def engage(self, pipeline: Any, device: torch.device) -> None:
        """Hand the shared weights over to one of the pipelines."""
        if self.offload == "model":
            pipeline.enable_model_cpu_offload(device=device)
        elif self.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=device)

    def slice(self, pipeline: Any, count: int) -> None:
        """Before a call for `count` images: decode them one at a time if they are many, unless the recipe says."""
        autoencoder: Any = getattr(pipeline, "vae", None)
        if self.vae_slicing is None and hasattr(autoencoder, "use_slicing"):
            (autoencoder.enable_slicing if count > _WHOLE else autoencoder.disable_slicing)()


def _autoencoder(pipeline: Any, setting: str, switch: str) -> Any:
    autoencoder = getattr(pipeline, "vae", None)
    if not hasattr(autoencoder, switch):
        raise RecipeError(f"{setting}: {type(pipeline).__name__} has no autoencoder that can, so leave it out.")
    return autoencoder
