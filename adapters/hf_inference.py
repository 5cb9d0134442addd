"""Hugging Face's InferenceClient: one dependency that reaches several providers, or an endpoint of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from adapters.http import Fault, PictureRule, Policy, answer_of, check_redirect, encoded, key_of, workers_for
from adapters.http.pictures import Pixels
from adapters.prompts import LADDER, Ladder, Prompts, Texts, prompts_of
from pe.data.conditions import Conditions
from pe.data.images import convert_pixels
from pe.errors import BadImage, MissingDependency, RecipeError
from pe.plugins.protocols import Answer, Capabilities, Failed, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest

if TYPE_CHECKING:
    from huggingface_hub import InferenceClient
    from PIL.Image import Image

Scalar = str | int | float | bool
_HUB = "router.huggingface.co"
_FORMATS = ("PNG", "JPEG", "WEBP")


class HFInference:
    """RANDOM_API by text_to_image, VARIATION_API by image_to_image; one image per request.

    Args:
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        image_size: height and width of the samples, pixels, or one number for both.
        model: the model's name at the provider.
        provider: of the providers that the client knows; None: its default.
        base_url: an endpoint of your own in place of a provider.
        key_env: the environment variable that holds the token; None: none is sent.
        variation_model: for image_to_image; None: `model`.
        wordings: degree → text, for models without a number for it.
        degree_field: the field by which the model takes the degree (`strength`), which is then exact.
        size: height and width asked of text_to_image; None: the model's default.
        steps: denoising steps; None: the model's default.
        guidance_scale: None: the model's default.
        negative_prompt: None: none.
        send_seed: tell text_to_image the sample's seed.
        channels: 3, or 1 for grey samples.
        resize: how an image gets to `image_size`.
        concurrency: most requests at once.
        timeout: seconds.
        tries: how often a request is made before its samples count as failed.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(machine_settings=("key_env", "concurrency", "timeout", "tries"))

    def __init__(
        self,
        *,
        prompts: Texts | dict[str, Texts],
        image_size: int | tuple[int, int],
        model: str | None = None,
        provider: str | None = None,
        base_url: str | None = None,
        key_env: str | None = "HF_TOKEN",
        variation_model: str | None = None,
        wordings: dict[float, Texts] | None = None,
        degree_field: str | None = None,
        size: int | tuple[int, int] | None = None,
        steps: int | None = None,
        guidance_scale: float | None = None,
        negative_prompt: str | None = None,
        send_seed: bool = True,
        channels: Literal[1, 3] = 3,
        resize: Literal["crop", "fit", "stretch"] = "crop",
        concurrency: int = 4,
        timeout: float = 180.0,
        tries: int = 6,
    ) -> None:
        if (model is None) == (base_url is None):
            raise RecipeError("hf_inference takes either model or base_url, and not both: name one.")
        if concurrency < 1 or tries < 1:
            raise RecipeError(f"concurrency is {concurrency} and tries {tries}: both must be at least 1.")
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self._model, self._provider, self._base, self._key_env = model, provider, base_url, key_env
        self._variation_model, self._degree_field, self._send_seed = variation_model, degree_field, send_seed
        self._prompts, self._ladder = Prompts.of(prompts), Ladder.of(LADDER if wordings is None else wordings)
        self._rule = PictureRule(height, width, channels, resize)
        drawn = (size, size) if isinstance(size, int) else size or (None, None)
        shared = {"negative_prompt": negative_prompt, "num_inference_steps": steps, "guidance_scale": guidance_scale}
        self._fields = {name: value for name, value in shared.items() if value is not None}
        self._drawn = {name: side for name, side in zip(("height", "width"), drawn, strict=True) if side is not None}
        self._concurrency, self._timeout, self._tries = concurrency, timeout, tries
        self._opened: tuple[InferenceClient, Policy] | None = None
        self._opening = Lock()
        self._host = urlsplit(self._base).netloc if self._base else self._provider or _HUB
        self.info = replace(self.info, hosts=(self._host,))

    @property
    def capabilities(self) -> Capabilities:
        """One image per request."""
        return Capabilities(
            1,
            workers_for(self._concurrency),
            "condition",
            "exact" if self._degree_field else "wording",
            deterministic=False,
        )

    def describe_degree(self, degree: float) -> str:
        """What a degree comes to here."""
        return f"sent as {self._degree_field} = {degree:g}" if self._degree_field else self._ladder.describe(degree)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """A new image of the request's prompt.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        prompt = str(prompts_of(request.conditions, 1)[0])
        seed = {"seed": int(request.seeds[0] % 2**31)} if self._send_seed else {}
        fields: dict[str, Any] = {**self._fields, **self._drawn, **seed}
        return self._answer(lambda client: client.text_to_image(prompt, **fields))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of the request's parent; at degree 0 the parent itself, without a call.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        (parent,) = encoded(request.samples)
        own = str(prompts_of(request.conditions, 1)[0])
        fields: dict[str, Any] = dict(self._fields)
        if self._variation_model is not None:
            fields["model"] = self._variation_model
        if self._degree_field:
            fields[self._degree_field] = request.degree
            return self._answer(lambda client: client.image_to_image(parent, own, **fields))
        prompt = self._ladder.word(request.degree, own, int(request.seeds[0] >> 8))
        return self._answer(lambda client: client.image_to_image(parent, prompt, **fields))

    def _answer(self, send: Callable[[InferenceClient], Image]) -> Answer:
        client, policy = self._open()
        outcome = policy.call(lambda: _sent(client, send), self._pixels)
        if outcome.result is None:
            assert outcome.fault is not None
            return answer_of(1, outcome.fault, self._rule, outcome.calls)
        return answer_of(1, [outcome.result], self._rule, outcome.calls)

    def _pixels(self, image: Image) -> Pixels | Failed:
        """The pixels of an image that the client has opened, and nobody has decoded yet."""
        if image.format not in _FORMATS:
            return Failed(f"the endpoint sent an image of format {image.format}, not PNG, JPEG or WebP")
        rule = self._rule
        if image.width * image.height > 2**26:
            return Failed(f"the endpoint sent an image of {image.width}×{image.height} pixels")
        try:
            pixels = np.asarray(image.convert("RGB"))
            return convert_pixels(
                pixels, size=(rule.height, rule.width), resize=rule.resize, channels=rule.channels, name="The image"
            )
        except (BadImage, OSError, SyntaxError, ValueError) as error:
            return Failed(f"the endpoint's image cannot be decoded: {error}")

    def _open(self) -> tuple[InferenceClient, Policy]:
        with self._opening:
            if self._opened is None:
                self._opened = self._client()
            return self._opened

    def _client(self) -> tuple[InferenceClient, Policy]:
        try:
            from huggingface_hub import InferenceClient
        except ImportError as error:
            raise MissingDependency.of("huggingface-hub", "http", "The Hugging Face client") from error
        key = key_of(self._key_env)
        client = InferenceClient(
            self._model,
            provider=self._provider,  # type: ignore[arg-type]  # the client checks it against its own list
            base_url=self._base,
            token=key or None,
            timeout=self._timeout,
        )
        return client, Policy(self._host, concurrency=self._concurrency, tries=self._tries, secret=key)


def _sent(client: InferenceClient, send: Callable[[InferenceClient], Image]) -> Image:
    """One call.

    Raises:
        Fault: the client's error, translated.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError
    from PIL import UnidentifiedImageError

    try:
        return send(client)
    except InferenceTimeoutError as error:
        raise Fault(f"time-out: {error}") from error
    except HfHubHTTPError as error:
        response = error.response
        check_redirect(response.status_code, response.headers.get("location", ""))
        raise Fault.of_response(response.status_code, response.headers, response.content) from error
    except httpx2.TransportError as error:
        raise Fault(f"{type(error).__name__}: {error}") from error
    except UnidentifiedImageError as error:
        raise Fault("the answer is no image") from error
    except (AttributeError, TypeError) as error:  # the client stumbles over errors that are JSON, but no object
        behind = error.__context__
        while behind is not None and not isinstance(behind, httpx2.HTTPStatusError):
            behind = behind.__context__
        if behind is None:
            raise
        raise Fault.of_response(
            behind.response.status_code, behind.response.headers, behind.response.content
        ) from error
