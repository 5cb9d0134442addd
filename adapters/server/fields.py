"""The fields of OpenAI's image requests and our scalar extensions, checked before anything is decoded."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.server.checks import Description
from adapters.server.errors import Refusal
from adapters.server.formats import Pixels, Wanted

Finite = Annotated[float, Field(allow_inf_nan=False)]
Fields = TypeVar("Fields", bound="ImageFields")

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


class ImageFields(BaseModel):
    """What every image request may hold."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="the name of the model; there is one")
    n: int = Field(1, ge=1, description="images")
    size: str | None = Field(None, description="WIDTHxHEIGHT, or auto")
    seed: int | None = Field(None, ge=0, lt=2**64, description="of the first image; the others follow; random without")
    num_inference_steps: int | None = Field(None, ge=1, description="of a new image")
    guidance_scale: Finite | None = Field(None, ge=0, le=100)
    negative_prompt: str | None = Field(None, description="what the image should not be like")
    class_label: int | str | None = Field(None, description="the model's own class, by number or name")
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png"] | None = None
    stream: Literal[False] | None = None
    user: str | None = Field(None, description="ignored, as the four that follow")
    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None


class Generation(ImageFields):
    """POST /v1/images/generations."""

    prompt: str = Field(description="for a model without words: a class's name, or empty")


class Variation(ImageFields):
    """POST /v1/images/variations, as a form with the file `image`."""

    prompt: str = Field("", description="as for generations")
    strength: Finite = Field(0.8, ge=0, le=1, description="0: unchanged, 1: as new")


class Edit(Variation):
    """POST /v1/images/edits, as a form with the file `image`."""

    prompt: str = Field(description="as for generations")


def fields_of_json(kind: type[Fields], body: bytes) -> Fields:
    """The fields in a JSON body.

    Raises:
        Refusal: it is no JSON object of these.
    """
    try:
        content = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "The body is no JSON.") from error
    if not isinstance(content, dict):
        raise Refusal(400, "The body is no JSON object.")
    return _validate(kind, content, strict=True)


def fields_of_form(kind: type[Fields], form: Mapping[str, str]) -> Fields:
    """The fields in a form.

    Raises:
        Refusal: it holds others, or one of a wrong kind.
    """
    return _validate(kind, form, strict=False)


def wanted_of(fields: ImageFields, image: Pixels | None, model: Description, most: int) -> Wanted:
    """What the fields ask for, of the one image that came with them.

    Raises:
        Refusal: more than `most` images, or a class that the model has not.
    """
    if fields.n > most:
        raise Refusal(400, f"n lies from 1 to {most}; POST /v1/batch/images takes more.", "n")
    first = secrets.randbits(64) if fields.seed is None else fields.seed
    prompt: str = getattr(fields, "prompt", "")
    label = fields.class_label
    if not model.prompts and prompt and label is None:
        if prompt not in model.classes:
            raise Refusal(400, "The model knows no words: name a class by prompt or class_label.", "prompt")
        label = prompt
    return Wanted(
        np.array([(first + i) % 2**64 for i in range(fields.n)], dtype=np.uint64),
        degree=getattr(fields, "strength", None),
        steps=fields.num_inference_steps,
        guidance=fields.guidance_scale,
        size=size_of(fields.size),
        images=None if image is None else np.stack([image] * fields.n),
        classes=None if label is None else np.full(fields.n, model.class_of(label), dtype=np.int64),
        prompts=(prompt,) * fields.n if model.prompts else None,
        negative_prompt=fields.negative_prompt or "",
        model=fields.model,
    )


def size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width.

    Raises:
        Refusal: the text is no size.
    """
    if text in (None, "auto"):
        return None
    found = _SIZE.fullmatch(text or "")
    if not found:
        raise Refusal(400, "size is WIDTHxHEIGHT in pixels, or auto.", "size")
    return int(found[2]), int(found[1])


def _validate(kind: type[Fields], content: Mapping[str, Any], strict: bool) -> Fields:
    try:
        return kind.model_validate(content, strict=strict)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        name = str(fault["loc"][0])[:40] if fault["loc"] else ""
        where = name.encode("ascii", "replace").decode() or None
        raise Refusal(400, f"{where or 'The body'}: {fault['msg'][:200]}.", where) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
