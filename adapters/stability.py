"""Stability AI's own API, v2beta: Stable Diffusion 3.5 and Stable Image Ultra, with a true strength.

Read from the OpenAPI description behind its reference, as tadasant/mcp-server-stability-ai (commit d2f0a57, 2025-06-24)
holds it. Stated there: one image per request, of about one megapixel; `strength` is the denoising, 0 the parent and 1
as without one; `seed` is of 32 bits, 0 draws one; 403 `content_moderation` is not charged, an image that is blurred
for its content (`finish-reason: CONTENT_FILTERED`) is; more than 150 requests in 10 seconds bring a 429. Its price in
credits stands in no answer. Not confirmed: Retry-After with a 429, the size of a variation, that equal seeds give equal
images, and what has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from adapters.http import (
    Asked,
    Credentials,
    Fault,
    HTTPClient,
    Prompted,
    PromptedGenerator,
    Received,
    Scalar,
    stated,
    workers_for,
)
from adapters.http.starters import hosted
from adapters.prompts import Ladder
from pe.errors import RecipeError
from pe.plugins.protocols import Capabilities, Refused
from pe.plugins.validation import Count

if TYPE_CHECKING:
    import httpx2

LEAST = 64
"""Pixels that each side of a parent must have."""


class StabilitySettings(Prompted):
    """What a recipe says of it.

    Attributes:
        model: sd3.5-large, sd3.5-large-turbo or sd3.5-medium; ultra: Stable Image Ultra.
        base_url: None: Stability's own.
        aspect_ratio: of new images, width:height.
        negative_prompt: None: none.
        cfg_scale: how closely the prompt is followed; None: the model's default.
        extra: further fields, sent as they are (style_preset).
    """

    model: str
    key_env: str | None = "STABILITY_API_KEY"
    concurrency: Count = 8
    aspect_ratio: Literal["21:9", "16:9", "3:2", "5:4", "1:1", "4:5", "2:3", "9:16", "9:21"] = "1:1"
    negative_prompt: str | None = None
    cfg_scale: float | None = None
    extra: dict[str, Scalar] | None = None

    @model_validator(mode="after")
    def _check_side(self) -> StabilitySettings:
        if min(self.image_size) < LEAST:
            raise RecipeError(
                f"image_size is {list(self.image_size)}: Stability varies no image with a side of less than {LEAST} "
                f"pixels, so ask for {LEAST} or more."
            )
        return self

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or "https://api.stability.ai"

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(None, "strength", exact=True)


class Stability(PromptedGenerator[StabilitySettings, HTTPClient, "httpx2.Response"]):
    """RANDOM_API by text-to-image, VARIATION_API by image-to-image with strength = degree; one image per request."""

    Settings = StabilitySettings
    starter = hosted(
        "model: sd3.5-medium\t# or sd3.5-large, sd3.5-large-turbo, ultra",
        "key_env: STABILITY_API_KEY\t# the environment variable that holds the key",
    )

    @property
    def capabilities(self) -> Capabilities:
        """One image per request; the degree is the strength."""
        return Capabilities(1, workers_for(self._given.concurrency), "condition", "exact", deterministic=False)

    def _connect(self, credentials: Credentials) -> HTTPClient:
        return HTTPClient(self._given.url, self._given, self._given.concurrency, credentials)

    def _send(self, client: HTTPClient, asked: Asked) -> httpx2.Response:
        given, ultra = self._given, self._given.model == "ultra"
        fields = {
            **(given.extra or {}),
            **stated(negative_prompt=given.negative_prompt, cfg_scale=given.cfg_scale),
            "prompt": asked.prompt,
            "seed": max(1, asked.seed),  # 0 draws one
            "output_format": "png",
            **({} if ultra else {"model": given.model, "mode": "image-to-image" if asked.parents else "text-to-image"}),
            **({"aspect_ratio": given.aspect_ratio} if ultra or not asked.parents else {}),
            **asked.told,
        }
        form: list[tuple[str, tuple[str | None, str | bytes]]] = [
            (name, (None, str(value))) for name, value in fields.items()
        ]
        form += [("image", ("image.png", parent)) for parent in asked.parents]
        path = f"/v2beta/stable-image/generate/{'ultra' if ultra else 'sd3'}"
        return client.post(path, files=form, headers={"Accept": "image/*"})

    def _read(self, client: HTTPClient, sent: httpx2.Response) -> Received:
        if not sent.headers.get("content-type", "").startswith("image/"):
            raise Fault.of_response(sent.status_code, {}, sent.content[:4096])
        if sent.headers.get("finish-reason") == "CONTENT_FILTERED":
            return [Refused("the image was blurred for its content (CONTENT_FILTERED), and billed")], None
        return [self._rule.decode(sent.content)], None
