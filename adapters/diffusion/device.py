"""Where the arithmetic is done, in what precision, and with what memory."""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from PIL import Image

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


# How pipelines share a device's memory: slices, tiles, and parts that wait on the CPU until they are at work.


Offload = Literal["none", "model", "sequential", "group"]

_WHOLE = 4  # images decoded at once; the autoencoder works on whole pictures, and so needs more for each than the rest


@dataclass(frozen=True)
class Memory:
    """How memory is saved at the cost of time.

    Attributes:
        attention_slicing: attention head by head on MPS; elsewhere torch fuses attention, which takes less memory yet.
        vae_slicing: decode latents one at a time; None: those of a batch above 4.
        vae_tiling: decode an image tile by tile.
        offload: keep in the accelerator's memory only what is at work: none, model (a part), group (a few blocks), or
            sequential (layers).
    """

    attention_slicing: bool = False
    vae_slicing: bool | None = None
    vae_tiling: bool = False
    offload: Offload = "none"

    def place(self, pipelines: Sequence[Any], device: torch.device) -> None:
        """Put the weights where they belong.

        Raises:
            RecipeError: offloading from a CPU, or a pipeline has not what is to be sliced.
        """
        if self.offload != "none" and device.type == "cpu":
            raise RecipeError(f"offload is '{self.offload}', but the model runs on the CPU already: leave it as none.")
        offloaded: list[Any] = []
        for pipeline in pipelines:
            if self.attention_slicing and device.type == "mps":
                pipeline.enable_attention_slicing()
            if self.vae_slicing:
                _autoencoder(pipeline, "vae_slicing", "use_slicing").enable_slicing()
            if self.vae_tiling:
                _autoencoder(pipeline, "vae_tiling", "use_tiling").enable_tiling()
            if self.offload == "none":
                pipeline.to(device)
            elif self.offload == "group":
                done = [name for name, part in pipeline.components.items() if any(part is other for other in offloaded)]
                pipeline.enable_group_offload(
                    onload_device=device, num_blocks_per_group=1, use_stream=True, exclude_modules=done
                )
                offloaded += pipeline.components.values()

    def engage(self, pipeline: Any, device: torch.device) -> None:
        """Hand shared weights over to this of the pipelines."""
        if self.offload == "model":
            pipeline.enable_model_cpu_offload(device=device)
        elif self.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=device)

    def slice(self, pipeline: Any, count: int) -> None:
        """Before each call: decode `count` images one at a time or together, where that is not set for good."""
        autoencoder: Any = getattr(pipeline, "vae", None)
        if self.vae_slicing is not None or not hasattr(autoencoder, "use_slicing"):
            return
        (autoencoder.enable_slicing if count > _WHOLE else autoencoder.disable_slicing)()


def _autoencoder(pipeline: Any, setting: str, switch: str) -> Any:
    found = getattr(pipeline, "vae", None)
    if not hasattr(found, switch):
        raise RecipeError(f"{setting}: {type(pipeline).__name__} has no autoencoder that can, so leave it out.")
    return found


# What pipelines of diffusers prepare on the processor while their device waits, done on the device.


_PROCESSORS = ("image_processor", "control_image_processor")


def prepare_on_device(pipeline: Any) -> None:
    """Let a pipeline make numbers of its parents, and of what its safety checker is shown, where it computes.

    The same numbers as before, but that the checker's images are resized by the device's own rounding.
    """
    from diffusers.image_processor import VaeImageProcessor
    from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

    for processor in {id(found): found for name in _PROCESSORS if (found := getattr(pipeline, name, None))}.values():
        if type(processor) is VaeImageProcessor:
            _take_bytes(pipeline, processor)
    extractor = getattr(pipeline, "feature_extractor", None)
    if (
        isinstance(getattr(pipeline, "safety_checker", None), StableDiffusionSafetyChecker)
        and getattr(extractor, "backend", "") == "torchvision"
    ):
        _show_bytes(pipeline)


def _take_bytes(pipeline: Any, processor: Any) -> None:
    """Pictures that need no resizing reach the device as bytes."""
    usual = processor.preprocess

    def preprocess(image: Any, height: int | None = None, width: int | None = None, **more: Any) -> Any:
        if not more and _are_pictures(image):
            sides = processor.get_default_height_width(image[0], height, width)
            if {picture.size[::-1] for picture in image} == {sides}:
                image = _tensor(np.stack([np.asarray(picture) for picture in image]), pipeline._execution_device)
        return usual(image, height, width, **more)

    processor.preprocess = preprocess


def _are_pictures(image: Any) -> bool:
    return isinstance(image, list) and all(isinstance(each, Image.Image) and each.mode == "RGB" for each in image)


def _tensor(pixels: np.ndarray, device: Any) -> Any:
    import torch

    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255


def _show_bytes(pipeline: Any) -> None:
    """The safety checker is shown bytes on the device, not pictures on the processor."""
    import torch

    usual = pipeline.run_safety_checker

    def run(image: Any, device: Any, dtype: Any) -> Any:
        if not torch.is_tensor(image):
            return usual(image, device, dtype)
        levels = (pipeline.image_processor.denormalize(image).float() * 255).round().byte()
        given = pipeline.feature_extractor(levels, return_tensors="pt").pixel_values
        return pipeline.safety_checker(images=image, clip_input=given.to(device, dtype))

    pipeline.run_safety_checker = run
