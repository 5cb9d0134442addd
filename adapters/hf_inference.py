"""Hugging Face's InferenceClient.

One dependency reaches several providers, or an endpoint of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from adapters.http import (
    Credentials,
    Fault,
    Host,
    ImageCall,
    OnFirstUse,
    Received,
    Sending,
    Size,
    Worded,
    base64_of,
    non_null,
    respond,
)
from adapters.http.answers import Pixels
from adapters.http.host import sides
from pe.errors import RecipeError
from pe.plugins.devices import import_library
from pe.plugins.protocols import Failed
from pe.plugins.settings import Count

if TYPE_CHECKING:
    from huggingface_hub import InferenceClient
    from PIL.Image import Image

_HUB = "router.huggingface.co"
_FORMATS = ("PNG", "JPEG", "WEBP")
_PNG = {"Accept": "image/png"}


class HFSettings(Worded):
    """Settings of `hf_inference`: a provider, or an endpoint.

    Attributes:
        model: the model's name at the provider.
        provider: a provider that Hugging Face's client knows; None: the client's default.
        base_url: address of an endpoint of your own, given in place of `model`.
        variation_model: the model for image_to_image; None: `model`.
        size: height and width asked of text_to_image; None: the model's default.
        steps: denoising steps; None: the model's default.
        guidance_scale: classifier-free guidance scale; None: the model's default.
        negative_prompt: what images should not be like; None: no negative prompt.
        send_seed: true to send the sample's seed to text_to_image.
        timeout: most seconds to connect, and from one byte to the next.
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
            raise RecipeError(
                "`hf_inference` takes either `model` or `base_url`, and not both. Name one."
            )
        if self.basic_auth_env is not None and not self.is_own:
            raise RecipeError(
                "`basic_auth_env` is for an endpoint of your own. Set `base_url`, not `provider`."
            )
        return self

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that all images, variations too, must have if `keep_size` is given.

        None: any.
        """
        return self.size if self.keep_size else None

    @property
    def is_own(self) -> bool:
        """True for an endpoint of your own, which is asked directly.

        The key goes there as a bearer token.
        """
        return self.base_url is not None and self.provider is None

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return self.base_url or f"//{self.provider or _HUB}"


class HFInference(Host[HFSettings]):
    """Models that Hugging Face's providers host, or an endpoint of yours there.

    One image per request.

    An endpoint of one's own is asked without the hub's client, which would ask the hub what to
    write in its User-Agent.
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

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._hub = OnFirstUse(self._open_hub)

    def request(self, call: ImageCall) -> Sending:
        """Return a request in the hub's format, for an endpoint of one's own."""
        body: dict[str, Any] = {"inputs": call.prompt, "parameters": self._fields(call)}
        if call.parents:
            body["inputs"] = base64_of(call.parents[0])
            body["parameters"] |= {"prompt": call.prompt}
        return self._config.url, {"json": body, "headers": _PNG}

    def response(self, call: ImageCall, answer: Any) -> Received:
        """Decode the image of an endpoint of one's own, or one that the hub's client has opened."""
        own = self._config.is_own
        return [self._rule.decode(answer.content) if own else self._pixels(answer)], None

    def _send(self, call: ImageCall) -> Any:
        if self._config.is_own:
            return super()._send(call)
        # The hub's client puts the key in, so a key that is refused is renewed here.
        credentials = self._client.credentials
        key = credentials.key
        try:
            return self._ask_hub(call)
        except Fault as fault:
            if not credentials.renew(fault, key):
                raise
        return self._ask_hub(call)

    def _ask_hub(self, call: ImageCall) -> Image:
        """Make one call by the hub's client, and translate its errors to Fault."""
        import httpx2
        from PIL import UnidentifiedImageError

        client = self._hub.get()
        fields = self._fields(call)
        client.token = self._client.credentials.key or None  # it may have been renewed
        try:
            if call.parents:
                fields |= non_null(model=self._config.variation_model)
                return client.image_to_image(
                    call.parents[0],
                    call.prompt,
                    **fields,
                )
            return client.text_to_image(call.prompt, **fields)
        except httpx2.TransportError as error:
            raise Fault.of_transport(error) from error
        except httpx2.HTTPError as error:
            # The hub's own library is asked where a provider has the model, and raises these.
            response: httpx2.Response = error.response  # type: ignore[attr-defined]
            raise Fault.of(response) from error
        except UnidentifiedImageError as error:
            raise Fault("the answer is no image", 200) from error

    def _fields(self, call: ImageCall) -> dict[str, Any]:
        config = self._config
        fields = non_null(
            negative_prompt=config.negative_prompt,
            num_inference_steps=config.steps,
            guidance_scale=config.guidance_scale,
        )
        if call.parents:
            return {**fields, **call.degree}
        return fields | sides(config.size) | ({"seed": call.seed} if config.send_seed else {})

    def _open_hub(self) -> InferenceClient:
        import_library(
            "huggingface_hub",
            "http",
            "The Hugging Face client",
        )
        from huggingface_hub import InferenceClient

        config = self._config
        pool = self._client.pool

        class Client(InferenceClient):
            """The hub's client, whose images come through our own connections.

            These bound an answer, and follow no redirect.
            """

            def _inner_post(self, request_parameters: Any, *, stream: bool = False) -> Any:
                wanted = request_parameters
                headers = _PNG | wanted.headers
                response = respond(
                    pool,
                    "POST",
                    wanted.url,
                    json=wanted.json,
                    content=wanted.data,
                    headers=headers,
                )
                return response.content

        return Client(
            config.model,
            provider=config.provider,  # type: ignore[arg-type]  # the client checks it
            base_url=config.base_url,
            token=self._client.credentials.key or None,
            timeout=config.timeout,
        )

    @property
    def _requested_size(self) -> tuple[int, int] | None:
        return self._config.size

    def _credentials(self) -> Credentials:
        return Credentials(self._config, header="Authorization" if self._config.is_own else None)

    def _pixels(self, image: Image) -> Pixels | Failed:
        if image.format not in _FORMATS:
            return Failed(
                f"the endpoint sent an image of format {image.format}, not PNG, JPEG or WebP"
            )
        return self._rule.pixels_of(image)
