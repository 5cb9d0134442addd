"""A server's settings, the description of its model, and the check of requests against both."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from adapters.diffusion.description import Way, degree_of
from adapters.server.errors import Refusal
from adapters.server.formats import BatchRequest
from pe.plugins.devices import Precision

Count = Annotated[int, Field(ge=1)]

GRID = 8
"""Pixels per side that a latent of a text-to-image model stands for."""


class Limits(BaseModel):
    """Limits of requests; `body`, `pixels` and `requests` are checked before an image is decoded.

    Attributes:
        body: bytes of a request's body.
        pixels: pixels of an image, sent or asked for.
        images: images in a batch request.
        n: images in a request in OpenAI's form.
        steps: denoising steps of an image.
        prompt: characters of a prompt.
        requests: requests of one key that are under way at once, at each ingress.
        waiting: images of all keys that are under way at once, at each ingress.
        seconds: seconds that the replicas may take over a request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    body: Count = 2**28
    pixels: Count = 2**22
    images: Count = 256
    n: Count = 16
    steps: Count = 1000
    prompt: Count = 4000
    requests: Count = 16
    waiting: Count = 4096
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 900.0


class Settings(BaseModel):
    """A server's settings; as JSON they are the arguments of the application in a file for `serve deploy`.

    Attributes:
        model: `small`, a folder, a checkpoint's file, or a repository of the Hugging Face hub.
        precision: of the network's arithmetic; auto: bf16 on a GPU that computes in it, else fp32.
        generator: further settings of the local generator for the model: `diffusion`, `pixel_diffusion` or
            `improved_diffusion`.
        steps: denoising steps for a request that names none.
        guidance: scale for a request that names none; None: the pipeline's own, or no guidance for a model with
            classes. Any number, even 1, says that such a model's last class means "no class", which guidance needs.
        max_batch: most images per forward pass; None: what suits the kind of model. Memory may make it fewer.
        replicas: copies of the engine; None: more with the load, at least 1, while the cluster has room.
        gpus_per_replica: below 1, a share of a GPU and of its memory; 0: the CPU; None: 1 where there are GPUs, else 0.
        key_digests: SHA-256 of each API key; without any, only connections from the machine itself are answered.
        limits: see `Limits`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    precision: Precision = "auto"
    generator: dict[str, Any] = {}
    steps: Count = 50
    guidance: Annotated[float, Field(ge=0, le=100)] | None = None
    max_batch: Count | None = None
    replicas: Count | None = None
    gpus_per_replica: Annotated[float, Field(ge=0)] | None = None
    key_digests: tuple[str, ...] = ()
    limits: Limits = Limits()


def digest_of(key: str) -> str:
    """Return the SHA-256 of an API key, which the server keeps in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Return true if a host is localhost or a loopback address, which only this machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(url: str) -> bool:
    """Return true if a URL's host is localhost or a loopback address; other names may be a foreign site's."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


@dataclass(frozen=True)
class Description:
    """The served model, as GET /v1/models describes it."""

    name: str  # as given at the start
    batch: int  # most images per forward pass
    prompts: bool = False  # the model takes prompts
    negative_prompts: bool = False  # the model takes negative prompts, too
    class_count: int | None = None  # number of the model's classes; None: it takes no classes
    classes: tuple[str, ...] = ()  # names of the classes, in order; empty if they have no names
    # height, width and channels of all images; None: the model draws many sizes, of 3 channels
    shape: tuple[int, int, int] | None = None
    guidance: bool = False  # the model takes a guidance scale
    vary: Way = "noise"  # the way to vary images

    @property
    def degree(self) -> Literal["exact", "wording"]:
        """`wording` if the model is told a degree in words, else `exact`."""
        return degree_of(self.vary)

    def class_of(self, label: int | str) -> int:
        """Return the number of the class with this number or name; Refusal if there is no such class."""
        if isinstance(label, str) and label in self.classes:
            return self.classes.index(label)
        is_number = isinstance(label, int) or (label.isascii() and label.isdigit() and len(label) < 9)
        if is_number and 0 <= int(label) < (self.class_count or 0):
            return int(label)
        raise Refusal(400, f"The model has {self.class_count or 0} classes, and none is that.", "class_label")


def check(request: BatchRequest, model: Description, settings: Settings) -> BatchRequest:
    """Return the request with the server's values filled in; Refusal if the model or the limits do not allow it."""
    limits = settings.limits
    if request.model not in (None, model.name):
        raise Refusal(404, f"The model served here is '{model.name}'.", "model", "model_not_found")
    if request.vary is not None and request.vary != model.vary:
        why = f"The server varies images by {model.vary}, not by {request.vary[:20]}"
        raise Refusal(400, f"{why}: put `vary: {model.vary}` in the recipe, or ask another server.", "vary")
    _within("n", len(request), 1, limits.images)
    steps = settings.steps if request.steps is None else request.steps
    _within("num_inference_steps", steps, 1, limits.steps)
    if request.degree is not None:
        _within("strength", request.degree, 0, 1)
    if (request.degree is None) != (request.images is None):
        raise Refusal(400, "Images are varied by a degree: send both, or neither for new images.", "strength")
    _check_prompts(request, model, limits.prompt)
    guidance = _guidance(request, model, settings.guidance)
    _check_sizes(request, model, limits.pixels)
    size = None if model.shape else request.size
    classes = _classes(request, model)
    return replace(request, steps=steps, guidance=guidance, size=size, classes=classes, model=model.name)


def _check_prompts(request: BatchRequest, model: Description, longest: int) -> None:
    if model.prompts and request.prompts is None:
        raise Refusal(400, "The model takes prompts: send one for each image.", "prompt")
    if not model.prompts and request.prompts is not None:
        raise Refusal(400, "The model knows no words: send classes instead of prompts.", "prompt")
    for text in {*(request.prompts or ()), *(request.negative_prompts or ())}:
        if len(text) > longest:
            raise Refusal(400, f"A prompt is longer than {longest} characters.", "prompt")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise Refusal(400, "A prompt holds half of a surrogate pair, which is no text.", "prompt")


def _guidance(request: BatchRequest, model: Description, usual: float | None) -> float | None:
    if not model.guidance and request.guidance not in (None, 1):
        raise Refusal(400, "The model has no guidance: leave it out.", "guidance_scale")
    usual = 1.0 if usual is None and not model.prompts else usual
    guidance = usual if request.guidance is None else request.guidance
    if guidance is not None:
        _within("guidance_scale", guidance, 0, 100)
    if any(request.negative_prompts or ()) and not (model.negative_prompts and (guidance is None or guidance > 1)):
        why = "at a guidance of 1 or less" if model.negative_prompts else "for this model"
        raise Refusal(400, f"A negative prompt has no effect {why}: leave it out.", "negative_prompt")
    return guidance


def _check_sizes(request: BatchRequest, model: Description, most: int) -> None:
    if request.size is not None:
        if model.shape is None:
            _check_size(request.size, "size", most)
        elif request.size != model.shape[:2]:
            height, width = model.shape[:2]
            raise Refusal(400, f"The model draws {width}x{height} (width, height) alone: leave size out.", "size")
    if request.images is None:
        return
    shape = request.images.shape[1:]
    if model.shape is None:
        _check_size((shape[0], shape[1]), "image", most)
        if shape[2] != 3:
            raise Refusal(400, "The model varies images of 3 channels, red, green and blue.", "image")
    elif shape != model.shape:
        sides = "×".join(map(str, model.shape))
        raise Refusal(400, f"The model varies images of {sides} (height, width, channels).", "image")


def _check_size(size: tuple[int, int], name: str, most: int) -> None:
    if any(side < GRID or side % GRID for side in size) or size[0] * size[1] > most:
        raise Refusal(400, f"The sides are multiples of {GRID} pixels, and an image has {most} at the most.", name)


def _classes(request: BatchRequest, model: Description) -> Any:
    """Return the class of each image; draw it by the image's seed, as local adapters do, if the request has none."""
    if model.class_count is None:
        if request.classes is not None:
            raise Refusal(400, "The model has no classes: leave them out.", "class_label")
        return None
    if request.classes is None:
        return ((request.seeds >> np.uint64(16)) % np.uint64(model.class_count)).astype(np.int64)
    if ((request.classes < 0) | (request.classes >= model.class_count)).any():
        raise Refusal(400, f"The model has {model.class_count} classes, from 0 on.", "class_label")
    return request.classes


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # the comparison is false for NaN
        raise Refusal(400, f"{name} lies from {least:g} to {most:g}.", name)
