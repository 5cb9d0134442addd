"""Any endpoint that speaks OpenAI's images API: OpenAI, Azure, vLLM-Omni, SGLang, Xinference and LocalAI.

RANDOM_API is images/generations; VARIATION_API is images/edits with a variation prompt, or images/variations
where a server still has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit
from weakref import finalize

from adapters.http import (
    Fault,
    PictureRule,
    Policy,
    answer_of,
    check_redirect,
    encoded,
    key_of,
    object_of,
    open_client,
    workers_for,
)
from adapters.http.pictures import Pixels
from adapters.prompts import LADDER, Ladder, Prompts, Texts, prompts_of
from pe.data.conditions import Conditions
from pe.errors import MissingDependency, RecipeError
from pe.plugins.protocols import Answer, Capabilities, Failed, PluginInfo, RandomRequest, Seeds, Usage, VariationRequest

if TYPE_CHECKING:
    import httpx2
    import openai

Scalar = str | int | float | bool
_OPENAI = "https://api.openai.com/v1"


class OpenAIImages:
    """RANDOM_API and VARIATION_API by OpenAI's images API.

    A request is for up to `n` images of one prompt, or variations of one parent. Samples carry their prompt as the
    condition `prompt`. Nothing is deterministic, even where a seed is sent.

    Args:
        model: as the endpoint names it; there is no default, because names are retired often.
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        image_size: height and width of the samples, pixels, or one number for both; what comes is resized to it.
        base_url: of the endpoint; None: OpenAI's own.
        azure_api_version: for Azure OpenAI, whose `base_url` is the resource's address.
        key_env: the environment variable that holds the key; None for an endpoint that wants none.
        variation: how variations are made: `edit` by a prompt, `variations` by images/variations.
        wordings: for `edit`: degree → text; a degree is put in the text of the first entry at or above it.
        degree_field: a field by which the server takes the degree as a number (`strength`), which is then exact.
        input_fidelity: high or low, for edits; None: the server's default.
        size: asked of the server, "WIDTHxHEIGHT"; an image of another size has failed. None: the server's default.
        quality: asked of the server.
        output_format: png, jpeg or webp; None: the server's default.
        n: most images of one request.
        seed_field: a field by which the server takes a seed.
        extra: further fields, sent as they are (guidance_scale, num_inference_steps …).
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
        model: str,
        prompts: Texts | dict[str, Texts],
        image_size: int | tuple[int, int],
        base_url: str | None = None,
        azure_api_version: str | None = None,
        key_env: str | None = "OPENAI_API_KEY",
        variation: Literal["edit", "variations"] = "edit",
        wordings: dict[float, Texts] | None = None,
        degree_field: str | None = None,
        input_fidelity: Literal["high", "low"] | None = None,
        size: str | None = None,
        quality: str | None = None,
        output_format: Literal["png", "jpeg", "webp"] | None = None,
        n: int = 1,
        seed_field: str | None = None,
        extra: dict[str, Scalar] | None = None,
        channels: Literal[1, 3] = 3,
        resize: Literal["crop", "fit", "stretch"] = "crop",
        concurrency: int = 8,
        timeout: float = 180.0,
        tries: int = 6,
    ) -> None:
        for name, value in (("n", n), ("concurrency", concurrency), ("tries", tries)):
            if value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self._model, self._base, self._azure, self._key_env = model, base_url or _OPENAI, azure_api_version, key_env
        self._prompts, self._ladder = Prompts.of(prompts), Ladder.of(LADDER if wordings is None else wordings)
        self._variation, self._degree_field, self._seed_field = variation, degree_field, seed_field
        self._rule = PictureRule(height, width, channels, resize, sent=_asked(size))
        self._fields = _given(size=size, quality=quality, output_format=output_format)
        self._fidelity = _given(input_fidelity=input_fidelity)
        self._extra = dict(extra or {})
        self._n, self._concurrency, self._timeout, self._tries = n, concurrency, timeout, tries
        self._opened: _Opened | None = None
        self._opening = Lock()
        self._host = urlsplit(self._base).netloc
        self.info = replace(self.info, hosts=(self._host,))

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request."""
        degree: Literal["exact", "wording", "none"] = "wording"
        if self._degree_field:
            degree = "exact"
        elif self._variation == "variations":
            degree = "none"
        return Capabilities(self._n, workers_for(self._concurrency), "parent", degree, deterministic=False)

    def describe_degree(self, degree: float) -> str:
        """What a degree comes to here."""
        if self._degree_field:
            return f"sent as {self._degree_field} = {degree:g}"
        return "not told to the endpoint" if self._variation == "variations" else self._ladder.describe(degree)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of the request's one prompt, by images/generations.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        prompt = str(prompts_of(request.conditions, len(request))[0])
        client, fields = self._client().images.with_raw_response, self._common(len(request), request.seeds)
        return self._answer(len(request), lambda: client.generate(prompt=prompt, **fields))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Variations of the request's one parent; at degree 0 the parent itself, without a call.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        parent = ("image.png", encoded(request.samples.take([0]))[0], "image/png")
        client, fields = self._client().images.with_raw_response, self._common(len(request), request.seeds)
        if self._degree_field:
            fields["extra_body"] = {**fields.get("extra_body", {}), self._degree_field: request.degree}
        if self._variation == "variations":
            return self._answer(len(request), lambda: _variation(self._client(), parent, fields))
        own = str(prompts_of(request.conditions, len(request))[0])
        prompt = own if self._degree_field else self._ladder.word(request.degree, own, int(request.seeds[0] >> 8))
        fields |= self._fidelity
        return self._answer(len(request), lambda: client.edit(image=parent, prompt=prompt, **fields))

    def _common(self, count: int, seeds: Seeds) -> dict[str, Any]:
        """The fields of every request."""
        extra = dict(self._extra)
        if self._seed_field:
            extra[self._seed_field] = int(seeds[0] % 2**31)
        return {"model": self._model, "n": count, **self._fields, **({"extra_body": extra} if extra else {})}

    def _answer(self, count: int, send: Callable[[], Any]) -> Answer:
        opened = self._open()
        outcome = opened.policy.call(lambda: _sent(send), _entries)
        if outcome.result is None:
            assert outcome.fault is not None
            return answer_of(count, outcome.fault, self._rule, outcome.calls)
        entries, tokens = outcome.result
        pictures = [self._picture(entry, opened.pool) for entry in entries]
        return answer_of(count, pictures, self._rule, outcome.calls, tokens)

    def _picture(self, entry: Any, pool: httpx2.Client) -> Pixels | Failed:
        """The image of an entry: in it, or where its address says."""
        if not isinstance(entry, dict):
            return Failed(f"the endpoint sent {type(entry).__name__} in place of an image")
        url = entry.get("url")
        return self._rule.fetch(pool, url) if url else self._rule.decode_text(entry.get("b64_json"))

    def _client(self) -> openai.OpenAI:
        return self._open().client

    def _open(self) -> _Opened:
        with self._opening:
            if self._opened is None:
                key = key_of(self._key_env)
                pool = open_client(self._concurrency, self._timeout)
                finalize(self, pool.close)
                policy = Policy(self._host, concurrency=self._concurrency, tries=self._tries, secret=key)
                self._opened = _Opened(_sdk(self._base, self._azure, key, pool), pool, policy)
            return self._opened


@dataclass(frozen=True)
class _Opened:
    """What the first request opens."""

    client: openai.OpenAI
    pool: httpx2.Client
    policy: Policy


def _sdk(base: str, azure: str | None, key: str, pool: httpx2.Client) -> openai.OpenAI:
    """The SDK's client, without retries of its own: they would bill twice unseen."""
    try:
        import openai
    except ImportError as error:
        raise MissingDependency.of("openai", "http", "OpenAI's images API") from error
    if azure is not None:
        return openai.AzureOpenAI(
            azure_endpoint=base, api_version=azure, api_key=key or "none", max_retries=0, http_client=pool
        )
    return openai.OpenAI(base_url=base, api_key=key or "none", max_retries=0, http_client=pool)


def _variation(client: openai.OpenAI, parent: tuple[str, bytes, str], fields: dict[str, Any]) -> httpx2.Response:
    """One call of images/variations, which the SDK has deprecated because OpenAI itself serves it no more."""
    import httpx2

    body = {name: value for name, value in fields.items() if name in ("model", "n", "size")}
    return client.post(
        "/images/variations",
        cast_to=httpx2.Response,
        body=body | fields.get("extra_body", {}),
        files=[("image", parent)],
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )


def _sent(send: Callable[[], Any]) -> httpx2.Response:
    """One call.

    Raises:
        Fault: the SDK's error, translated.
    """
    import openai

    try:
        response = send()
    except openai.APIStatusError as error:
        check_redirect(error.status_code, error.response.headers.get("location", ""))
        raise Fault.of_response(error.status_code, error.response.headers, error.response.content) from error
    except openai.APIConnectionError as error:  # time-outs, too
        raise Fault(f"{error} ({type(error.__cause__).__name__})") from error
    return cast("httpx2.Response", getattr(response, "http_response", response))


def _entries(response: httpx2.Response) -> tuple[list[Any], int]:
    """The images of an answer, as the server sent them, and the tokens billed.

    Raises:
        Fault: it has none.
    """
    answer = object_of(response)
    entries, usage = answer.get("data"), answer.get("usage")
    if not isinstance(entries, list):
        raise Fault("the answer holds no list of images")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else 0
    return entries, tokens if isinstance(tokens, int) else 0


def _asked(size: str | None) -> tuple[int, int] | None:
    """(height, width) of a size such as "1024x768"; None for "auto" and the like."""
    width, _, height = (size or "").partition("x")
    return (int(height), int(width)) if width.isdigit() and height.isdigit() else None


def _given(**fields: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
