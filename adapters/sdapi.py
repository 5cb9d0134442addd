"""AUTOMATIC1111's /sdapi/v1, which stable-diffusion.cpp's server and Xinference speak too: a true strength."""

from __future__ import annotations

import base64
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from adapters.http import Fault, HTTPClient, PictureRule, Policy, answer_of, encoded, key_of, object_of, workers_for
from adapters.prompts import Prompts, Texts, prompts_of
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest

if TYPE_CHECKING:
    import httpx2

Scalar = str | int | float | bool


class SDAPI:
    """RANDOM_API by txt2img, VARIATION_API by img2img with denoising_strength = degree.

    A request holds up to `batch` items of one prompt; its images come from the seeds s, s + 1, … of which s is the
    first item's, so a sample depends on the request that it came in.

    Args:
        base_url: of the server, without /sdapi.
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        image_size: height and width of the samples, pixels, or one number for both.
        size: height and width that the server draws at; None: `image_size`.
        batch: most images of one request.
        negative_prompt: sent with every request.
        steps: denoising steps.
        cfg_scale: guidance.
        sampler: the sampler's name; None: the server's default.
        data_uri: send parents as data URIs, which some servers want.
        key_env: the environment variable that holds a bearer token; None: none is sent.
        extra: further fields, sent as they are.
        channels: 3, or 1 for grey samples.
        resize: how an image gets to `image_size`.
        concurrency: most requests at once.
        timeout: seconds to connect, and between two bytes.
        tries: how often a request is made before its samples count as failed.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(machine_settings=("key_env", "concurrency", "timeout", "tries"))

    def __init__(
        self,
        *,
        base_url: str,
        prompts: Texts | dict[str, Texts],
        image_size: int | tuple[int, int],
        size: int | tuple[int, int] | None = None,
        batch: int = 1,
        negative_prompt: str = "",
        steps: int = 20,
        cfg_scale: float = 7.0,
        sampler: str | None = None,
        data_uri: bool = False,
        key_env: str | None = None,
        extra: dict[str, Scalar] | None = None,
        channels: Literal[1, 3] = 3,
        resize: Literal["crop", "fit", "stretch"] = "crop",
        concurrency: int = 1,
        timeout: float = 300.0,
        tries: int = 6,
    ) -> None:
        for name, value in (("batch", batch), ("steps", steps), ("concurrency", concurrency), ("tries", tries)):
            if value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        drawn = _pair(image_size if size is None else size)
        self._base, self._key_env, self._prompts = base_url, key_env, Prompts.of(prompts)
        self._rule = PictureRule(*_pair(image_size), channels, resize, sent=drawn)
        self._steps, self._batch, self._data_uri = steps, batch, data_uri
        self._fields: dict[str, Any] = {
            "negative_prompt": negative_prompt,
            "steps": steps,
            "cfg_scale": cfg_scale,
            "height": drawn[0],
            "width": drawn[1],
            **({} if sampler is None else {"sampler_name": sampler}),
            **(extra or {}),
        }
        self._concurrency, self._timeout, self._tries = concurrency, timeout, tries
        self._opened: tuple[HTTPClient, Policy] | None = None
        self._opening = Lock()
        self._host = urlsplit(self._base).netloc
        self.info = replace(self.info, hosts=(self._host,))

    @property
    def capabilities(self) -> Capabilities:
        """One prompt per request; the degree is the strength."""
        return Capabilities(self._batch, workers_for(self._concurrency), "condition", "exact", deterministic=False)

    def describe_degree(self, degree: float) -> str:
        """What a degree comes to here."""
        if degree == 0:
            return "the parent itself, without a call"
        return f"denoising_strength = {degree:g}, about {max(1, int(degree * self._steps))} of {self._steps} steps"

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of the request's one prompt, by txt2img.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        return self._ask("/sdapi/v1/txt2img", request, request.conditions, {})

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent, by img2img; at degree 0 the parents themselves, without a call.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        head = "data:image/png;base64," if self._data_uri else ""
        parents = [head + base64.b64encode(data).decode() for data in encoded(request.samples)]
        fields = {"init_images": parents, "denoising_strength": request.degree}
        return self._ask("/sdapi/v1/img2img", request, request.conditions, fields)

    def _ask(
        self, path: str, request: RandomRequest | VariationRequest, conditions: Conditions, fields: dict[str, Any]
    ) -> Answer:
        count = len(request)
        common = {"prompt": str(prompts_of(conditions, count)[0]), "seed": int(request.seeds[0] % 2**31)}
        body = self._fields | common | {"batch_size": count, "n_iter": 1} | fields
        client, policy = self._open()
        outcome = policy.call(lambda: client.post(path, body), _images)
        if outcome.result is None:
            assert outcome.fault is not None
            return answer_of(count, outcome.fault, self._rule, outcome.calls)
        pictures = [self._rule.decode_text(text) for text in outcome.result]
        return answer_of(count, pictures, self._rule, outcome.calls)

    def _open(self) -> tuple[HTTPClient, Policy]:
        with self._opening:
            if self._opened is None:
                key = key_of(self._key_env)
                client = HTTPClient(self._base, key=key, concurrency=self._concurrency, timeout=self._timeout)
                policy = Policy(self._host, concurrency=self._concurrency, tries=self._tries, secret=key)
                self._opened = client, policy
            return self._opened


def _images(response: httpx2.Response) -> list[Any]:
    """The images of an answer.

    Raises:
        Fault: it has none.
    """
    answer = object_of(response)
    images = answer.get("images")
    if not isinstance(images, list):
        raise Fault(f"the answer has no list of images but the keys {sorted(map(str, answer))[:5]}")
    return images


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
