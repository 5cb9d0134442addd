"""Any endpoint that speaks OpenAI's images API.

OpenAI, Azure, vLLM-Omni, SGLang, Xinference and others do.

RANDOM_API is images/generations; VARIATION_API is images/edits with a variation prompt, or
images/variations where a server still has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from adapters.http import (
    HTTPClient,
    ImageCall,
    Received,
    Scalar,
    Sending,
    Worded,
    images_in,
    object_of,
    value_at,
)
from adapters.http.answers import Pixels
from adapters.http.servers import Served, ServedHost, look_at, server_by_address
from adapters.http.settings import OpenAIServer, Profile, profile
from adapters.openai_sdk import OpenAIConnection, OpenAIEndpoint, address_of, form
from adapters.prompts import Ladder
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, Finding, Usage, count_of
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2


class OpenAISettings(OpenAIConnection, Served, Worded):
    """Settings of `openai_images`.

    Attributes:
        model: the model's name at the endpoint; there is no default, because names are retired
            often.
        base_url: the endpoint's address; None: OpenAI's own.
        server: the software that answers, as `pe doctor` names it; it sets `response_format`,
            `seed_field`, `degree_field` and `degree_exact` where they are not given. None: OpenAI
            or Azure, if `base_url` says so, else software that is not known.
        azure_api_version: the API version of Azure OpenAI, whose `base_url` is the resource's
            address; None: not Azure.
        variation: how variations are made: `edit` by a prompt, `variations` by images/variations.
        input_fidelity: high or low, for edits; None: the server's default.
        size: "WIDTHxHEIGHT" asked of the server; an image of another size counts as failed. None:
            the server's default.
        quality: the quality asked of the server; None: the server's default.
        output_format: png, jpeg or webp; None: the server's default.
        n: most images of one request.
        response_format: `b64_json` asks for the image itself; else many servers name an address.
            None: the field is not sent, as to OpenAI and Azure, whose gpt-image models refuse it.
        seed_field: the field of a request that takes a seed; None: no seed is sent.
        extra: further fields of a request, sent unchanged (guidance_scale, num_inference_steps …).
    """

    api = "openai_images"
    model: str
    concurrency: Count = 8
    server: OpenAIServer | None = None
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
    def ladder(self) -> Ladder:
        """Wordings and the field that tell the endpoint a degree.

        Images/variations takes no prompt, so no wordings.
        """
        if self.variation == "edit":
            return super().ladder
        return Ladder((), self.degree_field, self.degree_exact)

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) of a size such as "1024x768". None for "auto" and the like."""
        width, _, height = (self.size or "").partition("x")
        return (int(height), int(width)) if width.isdigit() and height.isdigit() else None

    @classmethod
    def profile_of(cls, settings: Mapping[str, Any]) -> Profile | None:
        """Return the server's profile: see `Served.profile_of`.

        Raise RecipeError if the server cannot vary samples as `variation` says.
        """
        address = server_by_address(address_of(settings))
        if settings.get("azure_api_version"):
            address = "azure"
        its = profile("openai_images", settings.get("server") or address or "")
        variation = settings.get("variation", "edit")
        if its is not None and variation not in its.varies:
            has = " or ".join(f"`variation: {name}`" for name in its.varies)
            raise RecipeError(
                f"{its.title} (`server: {its.server}`) cannot vary a sample by `{variation}`. "
                f"Use {has or 'another server'}, or write `server: null` if it is not this one."
            )
        return its


class OpenAIImages(ServedHost[OpenAISettings]):
    """OpenAI's image models, Azure's, and the many servers that speak OpenAI's images API.

    A request is for up to `n` images of one prompt, or variations of one parent. Samples carry
    their prompt as the condition `prompt`. Nothing is deterministic, even where a seed is sent.
    """

    Settings = OpenAISettings
    info = replace(
        ServedHost.info,
        machine_settings=(
            *ServedHost.info.machine_settings,
            "n",
            "seed_field",
            "response_format",
            "azure_api_version",
        ),
    )
    shares = "parent"
    batch = "n"
    starter = """\
  model: my-model\t# as the endpoint names it: names are retired often
  base_url: http://127.0.0.1:8000/v1\t# null: OpenAI's own
  server: null\t# which software answers: `pe doctor` on this recipe says its name
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
        """See `Generator.look`."""
        return look_at(cls.Settings, settings, address_of(settings))

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to images/generations, images/edits or images/variations.

        The latter two are forms.
        """
        config = self._config
        task = "generations"
        names = {"size", "response_format", "model", "quality", "output_format"}
        if call.parents and config.variation == "edit":
            task = "edits"
            names |= {"input_fidelity"}
        elif call.parents:
            task = "variations"
            names -= {"quality", "output_format"}
        fields = config.model_dump(include=names, exclude_none=True) | {"n": len(call.seeds)}
        if task != "variations":
            fields["prompt"] = call.prompt
        # After the settings that have names: `extra` may say otherwise.
        fields |= config.extra or {}
        fields |= {config.seed_field: call.seed} if config.seed_field else {}
        fields |= call.degree
        if task == "generations":
            return f"/images/{task}", {"body": fields}
        return f"/images/{task}", form(fields, image=("image.png", call.parents[0], "image/png"))

    def response(self, call: ImageCall, answer: httpx2.Response | dict[str, Any]) -> Received:
        """Return the images in `data` and the tokens in `usage`.

        An answer with addresses is noted, as it is paid.
        """
        content = answer if isinstance(answer, dict) else object_of(answer)
        entries = images_in(content, "data")
        if content is not answer and any(value_at(entry, "url") for entry in entries):
            call.job.write(json.dumps({"data": entries, "usage": content.get("usage")}))
        return [self._picture(entry, call) for entry in entries], tokens_of_images(
            content.get("usage")
        )

    def _send(self, call: ImageCall) -> Any:
        if call.job.job:
            return json.loads(call.job.job)
        call.job.calls += 1
        return super()._send(call)

    def _picture(self, entry: Any, call: ImageCall) -> Pixels | Failed:
        """Return the image of an entry, or Failed.

        It is decoded from the entry, or fetched from the address in it.
        """
        if not isinstance(entry, dict):
            return Failed(f"the endpoint sent {type(entry).__name__} in place of an image")
        url = entry.get("url")
        if not url:
            return self._rule.decode_text(entry.get("b64_json"))
        if isinstance(url, str) and not url.startswith(("https:", "data:")):
            remedy = "have it send the image itself (`response_format: b64_json`)"
            return Failed(f"the endpoint named an image's address that is not https: {remedy}")
        return self._image_at(call, url, str(url))

    def _open(self) -> HTTPClient:
        return OpenAIEndpoint(self._config, self._config.concurrency)


def tokens_of_images(usage: Any) -> Usage | None:
    """Return the tokens of an answer's `usage`, by kind.

    Output of no stated kind counts as images. None: no usage.
    """
    if not isinstance(usage, dict):
        return None

    def count(*keys: str) -> int:
        return count_of(value_at(usage, *keys))

    text_out = count("output_tokens_details", "text_tokens")
    image_out = count("output_tokens_details", "image_tokens")
    return Usage(
        calls=0,
        tokens=count("total_tokens") or count("input_tokens") + count("output_tokens"),
        text_in=count("input_tokens_details", "text_tokens"),
        image_in=count("input_tokens_details", "image_tokens"),
        text_out=text_out,
        image_out=image_out or max(0, count("output_tokens") - text_out),
    )
