"""Hugging Face's InferenceClient: one dependency that reaches several providers, or an endpoint of your own."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from pydantic import model_validator

from adapters.http import (
    Asked,
    Credentials,
    Fault,
    PromptedGenerator,
    Received,
    Size,
    Worded,
    open_client,
    respond,
    stated,
    workers_for,
)
from adapters.http.answers import Pixels
from pe.data.decoding import convert_pixels
from pe.errors import BadImage, MissingDependency, RecipeError
from pe.plugins.protocols import Capabilities, Failed
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import InferenceClient
    from PIL.Image import Image

    _Client = tuple[httpx2.Client, InferenceClient | None, Credentials]

_HUB = "router.huggingface.co"
_FORMATS = ("PNG", "JPEG", "WEBP")


class HFSettings(Worded):
    """What a recipe says of a provider or an endpoint.

    Attributes:
        model: the model's name at the provider.
        provider: of the providers that the client knows; None: its default.
        base_url: an endpoint of your own in place of a provider.
        variation_model: for image_to_image; None: `model`.
        size: height and width asked of text_to_image; None: the model's default.
        steps: denoising steps; None: the model's default.
        guidance_scale: None: the model's default.
        negative_prompt: None: none.
        send_seed: tell text_to_image the sample's seed.
        timeout: seconds.
    """

    key_env: str | None = "HF_TOKEN"
    concurrency: Count = 4
    model: str | None = None
    provider: str | None = None
    variation_model: str | None = None
    size: Size | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    send_seed: bool = True

    @model_validator(mode="after")
    def _check_model(self) -> HFSettings:
        if (self.model is None) == (self.base_url is None):
            raise RecipeError("hf_inference takes either model or base_url, and not both: name one.")
        if self.basic_auth_env is not None and not self.is_own:
            raise RecipeError("basic_auth_env is for an endpoint of your own: give base_url, and no provider.")
        return self

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that all images must have, variations too, where they are kept as drawn; else any."""
        return self.size if self.keep_size else None

    @property
    def is_own(self) -> bool:
        """Whether it is asked for as an endpoint of one's own, to which alone the key goes, as a bearer token."""
        return self.base_url is not None and self.provider is None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or f"//{self.provider or _HUB}"


class HFInference(PromptedGenerator[HFSettings, "_Client", "Image"]):
    """RANDOM_API by text_to_image, VARIATION_API by image_to_image; one image per request.

    An endpoint of one's own is asked in the same format without the hub's client, which would look up at the hub how to
    name itself.
    """

    Settings = HFSettings
    starter = """\
  model: black-forest-labs/FLUX.1-schnell\t# at the provider; or base_url: an endpoint of your own
  # variation_model: owner/name\t# of image_to_image, if it is another
  # provider: fal-ai\t# of those that the hub's client knows; without it the hub chooses
  key_env: HF_TOKEN\t# the environment variable that holds the key
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  size: 512\t# height and width asked of text_to_image
  concurrency: 4
  # price: {{image: 0.003, currency: USD}}\t# yours to state; then state limits.max_cost, too
"""

    @property
    def capabilities(self) -> Capabilities:
        """One image per request."""
        workers = workers_for(self._given.concurrency)
        return Capabilities(1, workers, "condition", self._ladder.degree, deterministic=False)

    @property
    def _asked_size(self) -> tuple[int, int] | None:
        return self._given.size

    def _connect(self, credentials: Credentials) -> _Client:
        pool = open_client(self._given, self._given.concurrency, credentials)
        finalize(self, pool.close)
        return pool, None if self._given.is_own else self._of_hub(pool, credentials), credentials

    def _of_hub(self, pool: httpx2.Client, credentials: Credentials) -> InferenceClient:
        try:
            from huggingface_hub import InferenceClient
        except ImportError as error:
            raise MissingDependency.of("huggingface-hub", "http", "The Hugging Face client") from error
        given = self._given

        class Client(InferenceClient):
            """The hub's client, whose images come through our own pool: it bounds them, and follows no redirect."""

            def _inner_post(self, request_parameters: Any, *, stream: bool = False) -> Any:
                asked = request_parameters
                body = {"json": asked.json, "content": asked.data, "headers": {"Accept": "image/png"} | asked.headers}
                return respond(pool, "POST", asked.url, **body).content

        return Client(
            given.model,
            provider=given.provider,  # type: ignore[arg-type]  # the client checks it against its own list
            base_url=given.base_url,
            token=credentials.key or None,
            timeout=given.timeout,
        )

    def _credentials(self) -> Credentials:
        return Credentials(self._given, header="Authorization" if self._given.is_own else None)

    def _send(self, opened: _Client, asked: Asked) -> Image:
        given, (pool, client, credentials) = self._given, opened
        fields = stated(
            negative_prompt=given.negative_prompt, num_inference_steps=given.steps, guidance_scale=given.guidance_scale
        )
        if asked.parents:
            fields |= asked.told
        else:
            if given.size:
                fields["height"], fields["width"] = given.size
            if given.send_seed:
                fields["seed"] = asked.seed
        if client is None:
            return _sent(lambda: _of_own(pool, given.url, asked, fields))
        client.token = credentials.key or None  # it may have been renewed
        if asked.parents:
            fields |= stated(model=given.variation_model)
            return _sent(lambda: client.image_to_image(asked.parents[0], asked.prompt, **fields))
        return _sent(lambda: client.text_to_image(asked.prompt, **fields))

    def _read(self, client: _Client, sent: Image) -> Received:
        return [self._pixels(sent)], None

    def _pixels(self, image: Image) -> Pixels | Failed:
        """The pixels of an image that the client has opened, and nobody has decoded yet."""
        if image.format not in _FORMATS:
            return Failed(f"the endpoint sent an image of format {image.format}, not PNG, JPEG or WebP")
        rule = self._rule
        if image.width * image.height > 2**26:
            return Failed(f"the endpoint sent an image of {image.width}×{image.height} pixels")
        try:
            pixels = np.asarray(image.convert("RGB"))
            return convert_pixels(pixels, size=rule.sent, resize=None, channels=3, name="The image")
        except (BadImage, OSError, SyntaxError, ValueError) as error:
            return Failed(f"the endpoint's image cannot be decoded: {error}")


def _of_own(pool: httpx2.Client, url: str, asked: Asked, fields: dict[str, Any]) -> Image:
    """One call of an endpoint of one's own, in the format of the hub's client."""
    from PIL import Image

    body: dict[str, Any] = {"inputs": asked.prompt, "parameters": fields}
    if asked.parents:
        body = {"inputs": base64.b64encode(asked.parents[0]).decode(), "parameters": fields | {"prompt": asked.prompt}}
    return Image.open(io.BytesIO(respond(pool, "POST", url, json=body, headers={"Accept": "image/png"}).content))


def _sent(send: Callable[[], Image]) -> Image:
    """One call.

    Raises:
        Fault: the client's error, translated.
    """
    import httpx2
    from PIL import UnidentifiedImageError

    try:
        return send()
    except httpx2.TransportError as error:
        raise Fault.of_transport(error) from error
    except httpx2.HTTPError as error:  # of the hub's library: the hub is asked where a provider has the model
        response: httpx2.Response = error.response  # type: ignore[attr-defined]
        raise Fault.of_response(response.status_code, response.headers, response.content) from error
    except UnidentifiedImageError as error:
        raise Fault("the answer is no image", 200) from error
