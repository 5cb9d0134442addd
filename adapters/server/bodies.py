"""Bodies of requests, read within limits and never written to disk, and OpenAI's fields in them."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
from collections.abc import AsyncGenerator
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect, Request

from adapters.diffusion.items import GRID
from adapters.server.checks import ModelDescription
from adapters.server.errors import Refusal
from adapters.server.formats import BatchRequest, Degree, Guidance, Pixels
from pe.data.decoding import FORMATS, decode_image
from pe.data.quiet import quiet
from pe.errors import BadImage

JSON = "application/json"
FORM = "multipart/form-data"
MOST_OF_FIELDS = 2**20
"""Most bytes of a JSON body, or of a form without its file."""

_SILENCE = 30.0  # seconds between two pieces of a body
_PATIENCE = 20.0  # seconds for a body
_PACE = 2**14  # bytes of a body that buy a second more

# files of a form stay in memory, because `read_body` has counted their bytes
MultiPartParser.spool_max_size = 2**40


async def read_body(request: Request, kind: str, most: int) -> bytes:
    """Return the body of a request.

    Raises:
        Refusal: it has another content type, is too large, or comes too slowly.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Refusal(415, f"Send the body as {kind}.")
    too_large = Refusal(413, f"The body is larger than {most} bytes.")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    # A body may take longer the more of it has come, so that nobody can hold a connection for free.
    clock = asyncio.get_running_loop().time
    began = clock()
    pieces = []
    size = 0
    try:
        async with asyncio.timeout(_PATIENCE) as deadline:
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise too_large
                deadline.reschedule(min(clock() + _SILENCE, began + _PATIENCE + size / _PACE))
    except (TimeoutError, ClientDisconnect) as error:
        raise Refusal(408, "The body did not arrive in time.", wait=1) from error
    return b"".join(pieces)


async def read_json_body(request: Request) -> Any:
    """Return the JSON value in a body.

    Raises:
        Refusal: the body is not JSON.
    """
    try:
        return json.loads(await read_body(request, JSON, MOST_OF_FIELDS))
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "The body is not JSON.") from error


async def read_form(request: Request, most: int) -> dict[str, Any]:
    """Return a form's fields, and the bytes of its file as `image`.

    Raises:
        Refusal: a field comes twice, or the form is malformed.
    """
    body = await read_body(request, FORM, most)

    async def stream() -> AsyncGenerator[bytes]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_part_size=MOST_OF_FIELDS)
    try:
        form = await parser.parse()
        parts = form.multi_items()
        fields: dict[str, Any] = dict(parts)
        image = fields.pop("image[]", None) or fields.pop("image", None)
        data = await image.read() if isinstance(image, UploadFile) else None
        await form.close()
        is_once = len(fields) == len(parts) - 1
        is_text = all(isinstance(value, str) for value in fields.values())
        if is_once and is_text and data is not None:
            return fields | {"image": data}
    except Exception as error:  # the parser lets almost any exception out of malformed forms
        raise Refusal(400, "The form cannot be read.") from error
    raise Refusal(
        400,
        (
            "Send one image as 'image', no mask (all of the image is varied), and every other "
            "field once, as text."
        ),
        "image",
    )


def pixels_of(
    data: bytes, shape: tuple[int, int, int] | None, size: tuple[int, int] | None, most: int
) -> Pixels:
    """Return the pixels of an image file, scaled and cut.

    The size is the model's `shape`, else `size`, else the image's own, cut to multiples of GRID.

    Raises:
        Refusal: the file is no image, or its header, read before any pixel, states too few or too
            many pixels.
    """
    try:
        with quiet(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except Exception as error:  # Pillow's parsers let almost any exception out of a malformed file
        raise Refusal(
            400, "The file is not a PNG, JPEG, WebP, BMP, GIF or TIFF image.", "image"
        ) from error
    if width * height > most:
        raise Refusal(400, f"The image has more than {most} pixels.", "image")
    sides = shape[:2] if shape else size or (height // GRID * GRID, width // GRID * GRID)
    if 0 in sides or sides[0] * sides[1] > most:
        raise Refusal(
            400,
            f"An image needs sides of at least {GRID} pixels, and at most {most} pixels in all.",
            "size",
        )
    try:
        return decode_image(
            data, size=sides, resize="crop", channels=1 if shape and shape[2] == 1 else 3
        )
    except BadImage as error:
        raise Refusal(400, str(error), "image") from error


class ImageFields(BaseModel):
    """The fields that all requests in OpenAI's form have, with our extensions."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(description="for a model without words: a class's name, or empty")
    model: str | None = Field(None, description="the name of the model; there is one")
    n: int = Field(1, ge=1, description="images")
    size: str | None = Field(
        None,
        pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$",
        description="WIDTHxHEIGHT, or auto",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**64, description="of the first image; the others follow; random without"
    )
    num_inference_steps: int | None = Field(None, description="of a new image")
    guidance_scale: Guidance | None = None
    negative_prompt: str | None = Field(None, description="what the image should not be like")
    class_label: int | str | None = Field(
        None, description="the model's own class, by number or name"
    )
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png"] | None = None
    stream: Literal[False] | None = None
    background: Literal["auto", "opaque"] | None = None
    user: str | None = Field(None, description="ignored, as the three that follow")
    quality: str | None = None
    style: str | None = None
    moderation: str | None = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width, or None for the model's own or the image's."""
        width, x, height = (self.size or "").partition("x")
        return (int(height), int(width)) if x else None

    def to_request(
        self,
        model: ModelDescription,
        most: int,
        image: Pixels | None = None,
        degree: float | None = None,
    ) -> BatchRequest:
        """Return the request that these fields make.

        It is for new images, or for variations of `image` to `degree`.
        """
        if self.n > most:
            raise Refusal(
                400, f"`n` must be from 1 to {most}. POST /v1/batch/images takes more.", "n"
            )
        first = secrets.randbits(64) if self.seed is None else self.seed
        label = self.class_label
        # A client of OpenAI's can name a class by the prompt alone. Other words would be lost, so
        # they are refused.
        if not model.prompts and self.prompt:
            if self.prompt not in model.classes:
                raise Refusal(
                    400,
                    "The model takes no words. Name a class in `prompt` or `class_label`.",
                    "prompt",
                )
            if label is None:
                label = self.prompt
        return BatchRequest(
            # wraps at 2^64
            np.uint64(first) + np.arange(self.n, dtype=np.uint64),
            degree=degree,
            steps=self.num_inference_steps,
            guidance=self.guidance_scale,
            size=self.sides
            if image is None or model.shape is not None
            else (image.shape[0], image.shape[1]),
            images=None if image is None else np.stack([image] * self.n),
            classes=None
            if label is None
            else np.full(self.n, model.class_of(label), dtype=np.int64),
            prompts=(self.prompt,) * self.n if model.prompts else None,
            negative_prompts=(self.negative_prompt,) * self.n if self.negative_prompt else None,
            model=self.model,
        )


class GenerationFields(ImageFields):
    """POST /v1/images/generations."""

    model_config = ConfigDict(strict=True)


class EditFields(ImageFields):
    """POST /v1/images/edits, as a form with the file `image`."""

    image: bytes = Field(description="PNG, JPEG, WebP, BMP, GIF or TIFF")
    strength: Degree = Field(0.8, description="0: unchanged, 1: as new; /v1/models says how")


class VariationFields(EditFields):
    """POST /v1/images/variations, as a form with the file `image`."""

    prompt: str = Field("", description="as for generations")
