"""What pipelines of diffusers prepare on the processor while their device waits, done on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

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
