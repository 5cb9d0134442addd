"""Any endpoint that speaks OpenAI's images API: OpenAI, Azure, vLLM-Omni, SGLang, Xinference and others.

RANDOM_API is images/generations; VARIATION_API is images/edits with a variation prompt, or images/variations
where a server still has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import finalize

from adapters.http import (
    Asked,
    Credentials,
    PromptedGenerator,
    Received,
    Scalar,
    Worded,
    object_of,
    open_client,
    stated,
    workers_for,
)
from adapters.http.answers import Pixels, images_in
from adapters.http.openai_sdk import OPENAI, key_header, open_sdk, sent
from adapters.http.servers import asker, look_at, recognised, server_by_address
from adapters.http.settings import OpenAIServer, Profile, profile
from adapters.prompts import Ladder
from pe.plugins.protocols import Capabilities, Failed, Finding, Usage, count_of
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2
    import openai

    _Client = tuple[openai.OpenAI, httpx2.Client, httpx2.Client]
    _Sent = tuple[Asked, httpx2.Response | None]


class OpenAISettings(Worded):
    """What a recipe says of such an endpoint.

    Attributes:
        model: as the endpoint names it; there is no default, because names are retired often.
        base_url: of the endpoint; None: OpenAI's own.
        server: which software answers: it stands for `response_format`, `seed_field`, `degree_field` and
            `degree_exact` where they are not given; `auto`: it is asked before the first request (docs/endpoints.md).
            None: none of those known; nothing is asked.
        azure_api_version: for Azure OpenAI, whose `base_url` is the resource's address.
        variation: how variations are made: `edit` by a prompt, `variations` by images/variations.
        input_fidelity: high or low, for edits; None: the server's default.
        size: asked of the server, "WIDTHxHEIGHT"; an image of another size has failed. None: the server's default.
        quality: asked of the server.
        output_format: png, jpeg or webp; None: the server's default.
        n: most images of one request.
        response_format: `b64_json` is sent, without which many servers name an address in place of the image; None: it
            is not sent, as to OpenAI and Azure, whose gpt-image models refuse it.
        seed_field: a field by which the server takes a seed.
        extra: further fields, sent as they are (guidance_scale, num_inference_steps …).
    """

    model: str
    key_env: str | None = "OPENAI_API_KEY"
    concurrency: Count = 8
    server: OpenAIServer | None = "auto"
    azure_api_version: str | None = None
    variation: Literal["edit", "variations"] = "edit"
    input_fidelity: Literal["high", "low"] | None = None
    size: str | None = None
    quality: str | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    n: Count = 1
    response_format: Literal["b64_json"] | None = "b64_json"
    seed_field: str | None = None
    extra: dict[str, Scalar] | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or OPENAI

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation; images/variations takes no prompt."""
        return super().ladder if self.variation == "edit" else Ladder((), self.degree_field, self.degree_exact)

    @property
    def way(self) -> str:
        """The setting `variation`."""
        return self.variation

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) of a size such as "1024x768"; None for "auto" and the like."""
        width, _, height = (self.size or "").partition("x")
        return (int(height), int(width)) if width.isdigit() and height.isdigit() else None

    @property
    def profile(self) -> Profile | None:
        """What is known of the server without asking it."""
        named = self.server
        if named == "auto":
            azure = self.azure_api_version is not None
            return profile("openai_images", "azure" if azure else server_by_address(self.url) or "")
        return None if named is None else profile("openai_images", named)

    @property
    def asks(self) -> bool:
        """Whether the server is to be asked who it is."""
        return self.server == "auto" and self.profile is None


class OpenAIImages(PromptedGenerator[OpenAISettings, "_Client", "_Sent"]):
    """RANDOM_API and VARIATION_API by OpenAI's images API.

    A request is for up to `n` images of one prompt, or variations of one parent. Samples carry their prompt as the
    condition `prompt`. Nothing is deterministic, even where a seed is sent.
    """

    Settings = OpenAISettings
    starter = """\
  model: my-model\t# as the endpoint names it: names are retired often
  base_url: http://127.0.0.1:8000/v1\t# null: OpenAI's own
  server: auto\t# asked once who it is; or its name (docs/endpoints.md)
  key_env: null\t# or the environment variable that holds the key; key_file, key_command
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  size: 512x512\t# what the endpoint draws
  keep_size: true\t# vary samples as they were drawn, at the price of disk
  n: 1\t# most images of one request
  concurrency: 8
  # extra: {{num_inference_steps: 30}}\t# further fields, sent as they are
  # price: {{image: 0.01, currency: USD}}\t# yours to state; then state limits.max_cost, too
"""

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `LooksAtEndpoint.look`."""
        return look_at(cls.Settings, settings, OPENAI)

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request."""
        workers = workers_for(self._given.concurrency)
        return Capabilities(self._given.n, workers, "parent", self._ladder.degree, deterministic=False)

    def _connect(self, credentials: Credentials) -> _Client:
        given, concurrency = self._given, self._given.concurrency
        pool, pictures = open_client(given, concurrency, credentials), open_client(given, concurrency)
        for client in (pool, pictures):
            finalize(self, client.close)
        return open_sdk(given, credentials, pool, "OpenAI's images API"), pool, pictures

    def _recognise(self, client: _Client) -> Profile | None:
        return recognised("openai_images", self._given.url, asker(client[1]))

    def _credentials(self) -> Credentials:
        given = self._given
        return Credentials(given, header=key_header(given, given.key_expires))

    def _send(self, client: _Client, asked: Asked) -> _Sent:
        """The answer; none where one is noted, whose images are still to be fetched."""
        if asked.job.job:
            return asked, None
        asked.job.calls += 1
        return asked, self._post(client, asked)

    def _post(self, client: _Client, asked: Asked) -> httpx2.Response:
        given, images = self._given, client[0].images.with_raw_response
        seed = {given.seed_field: asked.seed} if given.seed_field else {}
        fields = stated(size=given.size, quality=given.quality, output_format=given.output_format)
        fields |= stated(response_format=given.response_format)
        fields |= {
            "model": given.model,
            "n": len(asked.seeds),
            "extra_body": {**(given.extra or {}), **seed, **asked.told},
        }
        if not asked.parents:
            return sent(lambda: images.generate(prompt=asked.prompt, **fields))
        parent = ("image.png", asked.parents[0], "image/png")
        if given.variation == "variations":
            return sent(lambda: _variation(client[0], parent, fields))
        fields |= stated(input_fidelity=given.input_fidelity)
        return sent(lambda: images.edit(image=parent, prompt=asked.prompt, **fields))

    def _read(self, client: _Client, sent: _Sent) -> Received:
        asked, response = sent
        answer = json.loads(asked.job.job) if response is None else object_of(response)
        entries = images_in(answer, "data")
        if response is not None and any(isinstance(entry, dict) and entry.get("url") for entry in entries):
            asked.job.write(
                json.dumps({"data": entries, "usage": answer.get("usage")})
            )  # paid: only fetched from now on
        return [self._picture(entry, client[2], asked) for entry in entries], billed(answer.get("usage"))

    def _picture(self, entry: Any, pool: httpx2.Client, asked: Asked) -> Pixels | Failed:
        """The image of an entry: in it, or where its address says."""
        if not isinstance(entry, dict):
            return Failed(f"the endpoint sent {type(entry).__name__} in place of an image")
        url = entry.get("url")
        return self._rule.fetch(pool, url, asked.fetched) if url else self._rule.decode_text(entry.get("b64_json"))


def _variation(client: openai.OpenAI, parent: tuple[str, bytes, str], fields: dict[str, Any]) -> httpx2.Response:
    """One call of images/variations, which the SDK has deprecated because OpenAI itself serves it no more."""
    import httpx2

    body = {name: value for name, value in fields.items() if name in ("model", "n", "size", "response_format")}
    return client.post(
        "/images/variations",
        cast_to=httpx2.Response,
        body=body | fields["extra_body"],
        files=[("image", parent)],
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )


def billed(usage: Any) -> Usage | None:
    """The tokens that an answer's `usage` names, of the kinds that it tells apart; an output not told is an image."""
    if not isinstance(usage, dict):
        return None

    def count(key: str, of: Any = usage) -> int:
        return count_of(of.get(key) if isinstance(of, dict) else None)

    asked, made = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    text_out = count("text_tokens", made)
    return Usage(
        calls=0,
        tokens=count("total_tokens") or count("input_tokens") + count("output_tokens"),
        text_in=count("text_tokens", asked),
        image_in=count("image_tokens", asked),
        text_out=text_out,
        image_out=count("image_tokens", made) or max(0, count("output_tokens") - text_out),
    )
