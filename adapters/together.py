"""Together AI's images/generations, which varies a parent that a request names: a wording.

Read from its OpenAPI description (togethercomputer/openapi, commit 090263a, 2026-04-28) and its pages on images,
reference images and rate limits, as stored in 2026. Stated there: FLUX.1 Kontext takes the parent as `image_url`,
FLUX.2 [dev] and Google's models as `reference_images`, FLUX.2 [pro] and [flex] as either; up to four images of a
prompt; `seed`; above an organisation's rate a 429, at or below it a 503. There is no strength, and no usage in an
answer. That a parent may be a data URI stands in no page: LiteLLM (commit babe3cb) and Vercel's AI SDK (commit 05efde8)
send one as `image_url`. Not confirmed: data URIs in `reference_images`, how a content filter refuses, the unit of
x-ratelimit-reset, which models draw several images of one seed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

from adapters.http import (
    Asked,
    Credentials,
    HTTPClient,
    PromptedGenerator,
    Received,
    Scalar,
    Size,
    Worded,
    object_of,
    stated,
    workers_for,
)
from adapters.http.answers import images_in
from adapters.http.pictures import Pixels
from adapters.http.starters import hosted
from pe.plugins.protocols import Capabilities, Failed
from pe.plugins.validation import Count

if TYPE_CHECKING:
    import httpx2


class TogetherSettings(Worded):
    """What a recipe says of it.

    Attributes:
        model: as Together names it; it must be able to edit an image.
        parent_field: how the model takes a parent: `image_url` (FLUX.1 Kontext, FLUX.2 pro and flex) or
            `reference_images` (FLUX.2 dev, Google's); a model may ignore the other.
        base_url: None: Together's own.
        size: height and width asked of the model, in multiples of 8; an image of another size has failed. None: its
            default. Kontext takes `extra: {aspect_ratio: "1:1"}` in its place.
        output_format: png or jpeg; None: the model's default.
        n: most images of one request, up to 4; those of one request share a seed.
        extra: further fields, sent as they are (steps, guidance_scale, negative_prompt …).
    """

    model: str
    parent_field: Literal["image_url", "reference_images"]
    key_env: str | None = "TOGETHER_API_KEY"
    concurrency: Count = 4
    size: Size | None = None
    output_format: Literal["png", "jpeg"] | None = "png"
    n: Count = 1
    extra: dict[str, Scalar] | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or "https://api.together.ai/v1"

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that the model is asked for; None: any."""
        return self.size


class Together(PromptedGenerator[TogetherSettings, HTTPClient, "httpx2.Response"]):
    """RANDOM_API and VARIATION_API by images/generations, with or without a parent.

    A request is for up to `n` images of one prompt, or variations of one parent. Nothing is taken as deterministic.
    """

    Settings = TogetherSettings
    starter = hosted(
        "model: black-forest-labs/FLUX.1-kontext-pro\t# as Together names it; it must be able to edit an image",
        "parent_field: image_url\t# how the model takes a parent; or reference_images",
        "key_env: TOGETHER_API_KEY\t# the environment variable that holds the key",
    )

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request."""
        given = self._given
        return Capabilities(given.n, workers_for(given.concurrency), "parent", self._ladder.degree, deterministic=False)

    def _connect(self, credentials: Credentials) -> HTTPClient:
        return HTTPClient(self._given.url, self._given, self._given.concurrency, credentials)

    def _send(self, client: HTTPClient, asked: Asked) -> httpx2.Response:
        given = self._given
        height, width = given.size or (None, None)
        body: dict[str, Any] = {
            **stated(height=height, width=width, output_format=given.output_format),
            **(given.extra or {}),
            "model": given.model,
            "prompt": asked.prompt,
            "n": len(asked.seeds),
            "seed": asked.seed,
            "response_format": "base64",
            **asked.told,
        }
        if asked.parents:
            parent = f"data:image/png;base64,{base64.b64encode(asked.parents[0]).decode()}"
            body[given.parent_field] = parent if given.parent_field == "image_url" else [parent]
        return client.ask("/images/generations", body)

    def _read(self, client: HTTPClient, sent: httpx2.Response) -> Received:
        return [self._picture(entry) for entry in images_in(object_of(sent), "data")], None

    def _picture(self, entry: Any) -> Pixels | Failed:
        """The image in an entry."""
        return self._rule.decode_text(entry.get("b64_json") if isinstance(entry, dict) else None)
