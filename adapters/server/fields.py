"""The fields of OpenAI's image requests and our scalar extensions, checked before anything is decoded."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from adapters.server.checks import Description
from adapters.server.errors import Refusal
from adapters.server.formats import Pixels, Wanted

Finite = Annotated[float, Field(allow_inf_nan=False)]


class ImageFields(BaseModel):
    """What every image request may hold."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(description="for a model without words: a class's name, or empty")
    model: str | None = Field(None, description="the name of the model; there is one")
    n: int = Field(1, ge=1, description="images")
    size: str | None = Field(
        None, pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$", description="WIDTHxHEIGHT, or auto"
    )
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

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width; None: the model's own, or the image's."""
        width, x, height = (self.size or "").partition("x")
        return (int(height), int(width)) if x else None

    @property
    def degree(self) -> float | None:
        """Of a variation; None: a new image."""
        return None

    def wanted(self, model: Description, most: int, image: Pixels | None = None) -> Wanted:
        """What the fields ask for, of the one image that came with them.

        Raises:
            Refusal: more than `most` images, or a class that the model has not.
        """
        if self.n > most:
            raise Refusal(400, f"n lies from 1 to {most}; POST /v1/batch/images takes more.", "n")
        first = secrets.randbits(64) if self.seed is None else self.seed
        label = self.class_label
        if not model.prompts and self.prompt and label is None:
            if self.prompt not in model.classes:
                raise Refusal(400, "The model knows no words: name a class by prompt or class_label.", "prompt")
            label = self.prompt
        return Wanted(
            np.array([(first + i) % 2**64 for i in range(self.n)], dtype=np.uint64),
            degree=self.degree,
            steps=self.num_inference_steps,
            guidance=self.guidance_scale,
            size=self.sides if image is None or model.shape is not None else (image.shape[0], image.shape[1]),
            images=None if image is None else np.stack([image] * self.n),
            classes=None if label is None else np.full(self.n, model.class_of(label), dtype=np.int64),
            prompts=(self.prompt,) * self.n if model.prompts else None,
            negative_prompts=(self.negative_prompt,) * self.n if self.negative_prompt else None,
            model=self.model,
        )


class Generation(ImageFields):
    """POST /v1/images/generations."""

    model_config = ConfigDict(strict=True)


class Edit(ImageFields):
    """POST /v1/images/edits, as a form with the file `image`."""

    image: bytes = Field(description="PNG, JPEG, WebP, BMP, GIF or TIFF")
    strength: Finite = Field(0.8, ge=0, le=1, description="0: unchanged, 1: as new; /v1/models says how")

    @property
    def degree(self) -> float:
        """The strength."""
        return self.strength


class Variation(Edit):
    """POST /v1/images/variations, as a form with the file `image`."""

    prompt: str = Field("", description="as for generations")
