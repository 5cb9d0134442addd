"""Vary by structure: a ControlNet keeps the parent's lines or layout, and the rest is drawn anew from the prompt.

The degree takes from its hold: at degree v the ControlNet weighs 1 − v.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from adapters.diffusion.description import inputs_of
from adapters.diffusion.items import Item, Job
from adapters.diffusion.vary.way import pictures_of
from pe.errors import ContractError, MissingDependency, RecipeError

Control = Callable[[Image.Image], Image.Image]
"""From a parent to what the ControlNet is shown, an RGB image of the same size."""


class Structure:
    """A text-to-image pipeline with a ControlNet.

    Args:
        pipeline: whose call takes `controlnet_conditioning_scale`.
        control: makes what the ControlNet is shown.
    """

    alone = False

    def __init__(self, pipeline: Any, control: Control) -> None:
        self.pipeline, self._control = pipeline, control
        self._name = "control_image" if "control_image" in inputs_of(type(pipeline)) else "image"

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the ControlNet is shown of each parent, and how much it weighs."""
        assert job.degree is not None
        shown = [self._shown(parent) for parent in pictures_of(items)]
        return {self._name: shown, "controlnet_conditioning_scale": 1 - job.degree}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing: the pipeline without the ControlNet draws new images."""
        return {}

    def _shown(self, parent: Image.Image) -> Image.Image:
        found = self._control(parent)
        if not isinstance(found, Image.Image) or found.size != parent.size:
            raise ContractError(
                f"control made {found!r} of a parent of {parent.size}: an image of that size is wanted."
            )
        return found.convert("RGB")


def control_of(setting: str) -> Control:
    """From the recipe's `control`: `image`, `canny`, or a function of one's own as module:function.

    Raises:
        RecipeError: there is no such function.
        MissingDependency: OpenCV is not installed, and `canny` needs it.
    """
    if setting == "image":
        return lambda parent: parent
    if setting == "canny":
        return _canny()
    module, _, name = setting.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise RecipeError(f"control is '{setting}': it must be image, canny or module:function ({error}).") from error
    if not callable(found):
        raise RecipeError(f"control is '{setting}': it must be image, canny or module:function.")
    return found  # type: ignore[no-any-return]


def _canny() -> Control:
    """Canny's edges, white on black, with the thresholds that published ControlNets were trained on."""
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise MissingDependency.of("cv2", "control", "control: canny") from error
    return lambda parent: Image.fromarray(cv2.Canny(np.array(parent), 100, 200)).convert("RGB")
