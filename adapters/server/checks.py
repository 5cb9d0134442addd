"""Whether the model that is served can do what is wanted, within the limits; what a request left open is filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from adapters.diffusion.description import Way, degree_of
from adapters.server.errors import Refusal
from adapters.server.formats import Wanted
from adapters.server.settings import Settings

GRID = 8
"""Pixels that a text-to-image model's latent stands for."""


@dataclass(frozen=True)
class Description:
    """What is to be known of a served model; GET /v1/models says it.

    Attributes:
        name: as it was named at the start.
        batch: images per forward pass, at the most.
        prompts: whether it takes prompts.
        negative_prompts: whether it takes negative ones, too.
        class_count: how many classes it knows; None: it takes none.
        classes: their names, in order; empty where it names none.
        shape: height, width and channels of all its images; None: it draws many sizes, of 3 channels.
        guidance: whether it takes a guidance.
        vary: how it varies images.
    """

    name: str
    batch: int
    prompts: bool = False
    negative_prompts: bool = False
    class_count: int | None = None
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] | None = None
    guidance: bool = False
    vary: Way = "noise"

    @property
    def degree(self) -> Literal["exact", "wording"]:
        """How a degree is obeyed."""
        return degree_of(self.vary)

    def class_of(self, named: int | str) -> int:
        """The number of a class that is named by its number or its name.

        Raises:
            Refusal: the model has no such class.
        """
        if isinstance(named, str) and named in self.classes:
            return self.classes.index(named)
        is_number = isinstance(named, int) or (named.isascii() and named.isdigit() and len(named) < 9)
        if is_number and 0 <= int(named) < (self.class_count or 0):
            return int(named)
        raise Refusal(400, f"The model has {self.class_count or 0} classes, and none is that.", "class_label")


def checked(wanted: Wanted, model: Description, settings: Settings) -> Wanted:
    """`wanted` with the server's values where it names none.

    Raises:
        Refusal: the model cannot do it, or it is beyond the limits.
    """
    limits = settings.limits
    if wanted.model not in (None, model.name):
        raise Refusal(404, f"The model served here is '{model.name}'.", "model", "model_not_found")
    if wanted.vary is not None and wanted.vary != model.vary:
        why = f"The server varies images by {model.vary}, not by {wanted.vary[:20]}"
        raise Refusal(400, f"{why}: put `vary: {model.vary}` in the recipe, or ask another server.", "vary")
    _within("n", len(wanted), 1, limits.images)
    steps = settings.steps if wanted.steps is None else wanted.steps
    _within("num_inference_steps", steps, 1, limits.steps)
    if wanted.degree is not None:
        _within("strength", wanted.degree, 0, 1)
    if (wanted.degree is None) != (wanted.images is None):
        raise Refusal(400, "Images are varied by a degree: send both, or neither for new images.", "strength")
    _check_prompts(wanted, model, limits.prompt)
    guidance = _guidance(wanted, model, settings.guidance)
    _check_sizes(wanted, model, limits.pixels)
    size = None if model.shape else wanted.size
    return replace(wanted, steps=steps, guidance=guidance, size=size, classes=_classes(wanted, model), model=model.name)


def _check_prompts(wanted: Wanted, model: Description, longest: int) -> None:
    if model.prompts and wanted.prompts is None:
        raise Refusal(400, "The model takes prompts: send one for each image.", "prompt")
    if not model.prompts and wanted.prompts is not None:
        raise Refusal(400, "The model knows no words: send classes instead of prompts.", "prompt")
    for text in {*(wanted.prompts or ()), *(wanted.negative_prompts or ())}:
        if len(text) > longest:
            raise Refusal(400, f"A prompt is longer than {longest} characters.", "prompt")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise Refusal(400, "A prompt holds half of a surrogate pair, which is no text.", "prompt")


def _guidance(wanted: Wanted, model: Description, usual: float | None) -> float | None:
    if not model.guidance and wanted.guidance not in (None, 1):
        raise Refusal(400, "The model has no guidance: leave it out.", "guidance_scale")
    usual = 1.0 if usual is None and not model.prompts else usual
    guidance = usual if wanted.guidance is None else wanted.guidance
    if guidance is not None:
        _within("guidance_scale", guidance, 0, 100)
    if any(wanted.negative_prompts or ()) and not (model.negative_prompts and (guidance is None or guidance > 1)):
        why = "at a guidance of 1 or less" if model.negative_prompts else "for this model"
        raise Refusal(400, f"A negative prompt has no effect {why}: leave it out.", "negative_prompt")
    return guidance


def _check_sizes(wanted: Wanted, model: Description, most: int) -> None:
    if wanted.size is not None:
        if model.shape is None:
            _check_size(wanted.size, "size", most)
        elif wanted.size != model.shape[:2]:
            height, width = model.shape[:2]
            raise Refusal(400, f"The model draws {width}x{height} (width, height) alone: leave size out.", "size")
    if wanted.images is None:
        return
    height, width, channels = wanted.images.shape[1:]
    if model.shape is None:
        _check_size((height, width), "image", most)
        if channels != 3:
            raise Refusal(400, "The model varies images of 3 channels, red, green and blue.", "image")
    elif (height, width, channels) != model.shape:
        sides = "×".join(map(str, model.shape))
        raise Refusal(400, f"The model varies images of {sides} (height, width, channels).", "image")


def _check_size(size: tuple[int, int], name: str, most: int) -> None:
    if any(side < GRID or side % GRID for side in size) or size[0] * size[1] > most:
        raise Refusal(400, f"The sides are multiples of {GRID} pixels, and an image has {most} at the most.", name)


def _classes(wanted: Wanted, model: Description) -> Any:
    """The class of each image; drawn by its seed where none is named, as the local adapters draw it."""
    if model.class_count is None:
        if wanted.classes is not None:
            raise Refusal(400, "The model has no classes: leave them out.", "class_label")
        return None
    if wanted.classes is None:
        return ((wanted.seeds >> np.uint64(16)) % np.uint64(model.class_count)).astype(np.int64)
    if ((wanted.classes < 0) | (wanted.classes >= model.class_count)).any():
        raise Refusal(400, f"The model has {model.class_count} classes, from 0 on.", "class_label")
    return wanted.classes


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # false for what is no number
        raise Refusal(400, f"{name} lies from {least:g} to {most:g}.", name)
