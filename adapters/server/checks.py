"""A server's settings, the description of its model, and the check of requests against both."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from adapters.diffusion.description import Way, degree_of
from adapters.diffusion.items import GRID
from adapters.prompts import Classes
from adapters.server.errors import Refusal
from adapters.server.formats import BatchRequest, Guidance
from pe.plugins.devices import Precision
from pe.plugins.settings import Count, Settings

_SURROGATE = re.compile("[\ud800-\udfff]")

Rule = tuple[bool, str, str]
"""True if a request breaks the rule, then the field that does, and what to do."""


class RequestLimits(Settings):
    """Limits of requests.

    `body`, `pixels` and `requests` are checked before an image is decoded.

    Attributes:
        body: bytes of a request's body.
        pixels: pixels of an image, sent or asked for.
        images: images in a batch request.
        n: images in a request in OpenAI's form.
        steps: denoising steps of an image.
        prompt: characters of a prompt.
        requests: requests of one key at the same time, at each replica.
        waiting: images of all keys at the same time, at each replica.
        seconds: seconds that a replica may take over a request.
    """

    body: Count = 2**28
    pixels: Count = 2**22
    images: Count = 256
    n: Count = 16
    steps: Count = 1000
    prompt: Count = 4000
    requests: Count = 16
    waiting: Count = 4096
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 900.0


class ServeSettings(Settings):
    """A server's settings.

    As JSON they are the arguments of the application in a file for `serve deploy`.

    Attributes:
        model: `small`, a folder, a checkpoint's file, or a repository of the Hugging Face hub.
        precision: precision of the network's arithmetic. auto: bf16 on a GPU that computes in it,
            else fp32.
        generator: more settings of the local generator for the model: `diffusion`,
            `pixel_diffusion` or `improved_diffusion`.
        steps: denoising steps for a request that names none.
        guidance: scale for a request that names none. None: the pipeline's own, or no guidance for
            a model with classes. Any number, even 1, says that such a model's last class means "no
            class", which guidance needs.
        max_batch: most images per forward pass. None: what suits the kind of model. Memory may
            allow fewer.
        replicas: copies of the engine. None: more with the load, at least 1, while the cluster has
            room.
        gpus_per_replica: below 1, a share of a GPU and of its memory. 0: the CPU. None: 1 if there
            are GPUs, else 0.
        key_digests: SHA-256 of each API key. Without any, only connections from the machine itself
            are answered.
        limits: see `RequestLimits`.
    """

    model: str
    precision: Precision = "auto"
    generator: dict[str, Any] = Field({})
    steps: Count = 50
    guidance: Guidance | None = None
    max_batch: Count | None = None
    replicas: Count | None = None
    gpus_per_replica: Annotated[float, Field(ge=0)] | None = None
    key_digests: tuple[str, ...] = ()
    limits: RequestLimits = RequestLimits()


def digest_of(key: str) -> str:
    """Return the SHA-256 of an API key, which the server keeps in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Return true if a host is localhost or a loopback address.

    Only this machine can reach such a host.
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(url: str) -> bool:
    """Return true if a URL's host is localhost or a loopback address.

    Any other name may belong to a foreign site.
    """
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


@dataclass(frozen=True)
class ModelDescription:
    """The served model, as GET /v1/models describes it."""

    name: str  # as given at the start
    batch: int = 0  # most images per forward pass; 0: not loaded yet
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
        """Return the number of the class with this number or name.

        Raises:
            Refusal: the model has no such class.
        """
        numbers = {str(number): number for number in range(self.class_count or 0)}
        if isinstance(label, str):
            numbers |= {name: number for number, name in enumerate(self.classes)}
        if str(label) not in numbers:
            raise Refusal(
                400,
                f"The model has {self.class_count or 0} classes, and this is none of them.",
                "class_label",
            )
        return numbers[str(label)]


def check_request(
    request: BatchRequest, model: ModelDescription, settings: ServeSettings
) -> BatchRequest:
    """Return the request with the server's values filled in.

    Raises:
        Refusal: the model or the limits do not allow it.
    """
    if request.model not in (None, model.name):
        raise Refusal(404, f"The model served here is '{model.name}'.", "model", "model_not_found")
    classes = request.classes
    if classes is None:
        # drawn by the seeds, as local adapters do
        known = Classes(model.name, model.class_count, model.classes)
        classes = known.draw([""] * len(request), request.seeds, None)
    guidance = settings.guidance if request.guidance is None else request.guidance
    if guidance is None and not model.prompts:
        guidance = 1.0
    steps = settings.steps if request.steps is None else request.steps
    checked = replace(
        request,
        model=model.name,
        steps=steps,
        guidance=guidance,
        classes=classes,
    )
    for is_wrong, field, message in [
        *_rules(checked, model, settings.limits),
        *_rules_of_sizes(checked, model, settings.limits),
    ]:
        if is_wrong:
            raise Refusal(400, message, field)
    return replace(checked, size=None if model.shape else request.size)


def _rules(
    request: BatchRequest,
    model: ModelDescription,
    limits: RequestLimits,
) -> list[Rule]:
    """Return the rules for all fields but sizes."""
    steps = request.steps or 0
    guidance = request.guidance
    classes = request.classes
    prompts = request.prompts
    negative = request.negative_prompts or ()
    texts = {*(prompts or ()), *negative}
    is_guided = guidance is None or guidance > 1  # None: the pipeline's own scale
    return [
        (
            request.vary not in (None, model.vary),
            "vary",
            (
                f"The server varies images by {model.vary}, not by {str(request.vary)[:20]}. Set "
                f"`vary: {model.vary}` in the recipe, or ask another server."
            ),
        ),
        (not 1 <= len(request) <= limits.images, "n", f"`n` must be from 1 to {limits.images}."),
        (
            not 1 <= steps <= limits.steps,
            "num_inference_steps",
            f"`num_inference_steps` must be from 1 to {limits.steps}.",
        ),
        (
            (request.degree is None) != (request.images is None),
            "strength",
            "Variations need both images and a degree. Send both, or neither for new images.",
        ),
        (
            model.prompts == (prompts is None),
            "prompt",
            "The model takes prompts. Send one for each image."
            if model.prompts
            else "The model takes no words. Send classes instead of prompts.",
        ),
        (
            any(len(text) > limits.prompt for text in texts),
            "prompt",
            f"A prompt is longer than {limits.prompt} characters.",
        ),
        (
            any(map(_SURROGATE.search, texts)),
            "prompt",
            "A prompt holds half of a surrogate pair. Send valid Unicode text.",
        ),
        (
            not model.guidance and guidance not in (None, 1),
            "guidance_scale",
            "The model takes no guidance. Leave it out.",
        ),
        (
            any(negative) and not (model.negative_prompts and is_guided),
            "negative_prompt",
            (
                "A negative prompt has no effect here. Leave it out, or send a guidance above 1 if "
                "the model takes one."
            ),
        ),
        (
            classes is not None and not {*classes.tolist()} <= {*range(model.class_count or 0)},
            "class_label",
            f"The model has {model.class_count or 0} classes, counted from 0.",
        ),
    ]


def _rules_of_sizes(
    request: BatchRequest, model: ModelDescription, limits: RequestLimits
) -> Iterator[Rule]:
    """Yield the rules for the sizes of new images and of images to vary."""
    # A model of one shape makes nothing else. Others work on a grid, in colour, up to a limit.
    shape = None if request.images is None else request.images.shape[1:]
    for field, sides in (("size", request.size), ("image", shape)):
        if sides is None:
            continue
        if model.shape is not None:
            whole = "×".join(map(str, model.shape))
            message = (
                f"The model makes and varies only images of {whole} (height, width, channels)."
            )
            yield tuple(sides) != model.shape[: len(sides)], field, message
            continue
        height, width, *channels = sides
        off_grid = min(height, width) < GRID or height % GRID or width % GRID
        message = (
            f"The sides must be multiples of {GRID} pixels, and the image may have "
            f"{limits.pixels} pixels at most."
        )
        yield bool(off_grid) or height * width > limits.pixels, field, message
        message = "The model varies images of 3 channels: red, green and blue."
        yield channels not in ([], [3]), field, message
