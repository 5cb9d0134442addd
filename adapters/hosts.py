"""Hosts that answer at once: Amazon Bedrock, Google Gemini, Stability AI and Together AI."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, model_validator

from adapters.http import (
    Credentials,
    Fault,
    Host,
    ImageCall,
    Prompted,
    Received,
    Scalar,
    Sending,
    Size,
    Worded,
    base64_of,
    data_uri,
    entries_at,
    hosted_starter,
    images_in,
    non_null,
    object_of,
    value_at,
)
from adapters.http.faults import one_line
from adapters.http.host import sides
from pe.errors import RecipeError
from pe.plugins.devices import import_library
from pe.plugins.protocols import Failed, Refused, Usage, count_of
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2


class StabilityModel(Prompted):
    """A model of Stability AI.

    Attributes:
        aspect_ratio: width:height of new images.
        negative_prompt: what images should not be like; None: no negative prompt.
        extra: further fields of a request, sent unchanged (cfg_scale, style_preset).
    """

    strength_field = "strength"
    aspect_ratio: Literal["21:9", "16:9", "3:2", "5:4", "1:1", "4:5", "2:3", "9:16", "9:21"] = "1:1"
    negative_prompt: str | None = None
    extra: dict[str, Scalar] | None = None

    def fields(self, call: ImageCall) -> dict[str, Any]:
        """Return the fields of a call that all models of Stability AI take."""
        return {
            **(self.extra or {}),
            **non_null(negative_prompt=self.negative_prompt),
            "prompt": call.prompt,
            "seed": max(1, call.seed),  # the host takes 0 for a random seed
            "output_format": "png",
            **call.degree,
        }


# Stability's models on Amazon Bedrock, by InvokeModel: a true strength.
#
# From botocore 1.44.5 (bedrock-runtime; SigV4 under the name `bedrock`, or a bearer's key) and
# AWS's page on Stable Diffusion 3.5 Large, 2026: one image per request; seed 0 draws one. Amazon's
# own image models ended in 2026. Not confirmed: the least size of a parent (64×64 at Stability's
# own API), that Stable Image Ultra takes a parent here, whether a filtered image is billed,
# Retry-After with a 429, that equal seeds give equal images.


class BedrockSettings(StabilityModel):
    """Settings of `bedrock`.

    Attributes:
        model: the model's name at Bedrock, such as stability.sd3-5-large-v1:0.
        region: the AWS region, such as us-west-2.
        key_env: the environment variable that holds a key of Bedrock; without any key, requests are
            signed with the credentials that botocore finds (environment, ~/.aws, SSO, a role).
        base_url: the address to ask; None: Bedrock's own in the region.
    """

    model: str
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    concurrency: Count = 4

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return self.base_url or f"https://bedrock-runtime.{self.region}.amazonaws.com"


class Bedrock(Host[BedrockSettings]):
    """Stability's models in your AWS account. The degree is a strength. One image per request."""

    Settings = BedrockSettings
    starter = hosted_starter(
        "model: stability.sd3-5-large-v1:0\t# as Bedrock names it",
        "region: us-west-2\t# of AWS; requests are signed with the credentials that botocore finds",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to InvokeModel."""
        config = self._config
        body = config.fields(call)
        if call.parents:
            body |= {"mode": "image-to-image", "image": base64_of(call.parents[0])}
        else:
            body |= {"mode": "text-to-image", "aspect_ratio": config.aspect_ratio}
        return f"/model/{quote(config.model, safe='')}/invoke", {"json": body}

    def response(self, call: ImageCall, answer: httpx2.Response) -> Received:
        """Return the images in the field `images`, or Refused with the filter's reason."""
        content = object_of(answer)
        reasons = entries_at(content, "finish_reasons")
        reason = str(reasons[0] or "") if reasons else ""
        if reason.startswith("Filter reason"):
            return [Refused(reason)], None
        if reason:
            raise Fault(reason, 200)
        return [self._rule.decode_text(image) for image in images_in(content, "images")], None

    def _credentials(self) -> Credentials:
        config = self._config
        has_key = config.key_env or config.basic_auth_env or config.key_expires
        return Credentials(config) if has_key else AWSCredentials(config)


class AWSCredentials(Credentials):
    """Signatures by the credentials that botocore finds, and renews.

    Raise RecipeError if it finds none.
    """

    def __init__(self, config: BedrockSettings) -> None:
        super().__init__(config, header=None)
        import_library("botocore", "bedrock", "Amazon Bedrock")
        from botocore.session import Session

        self._region = config.region
        self._session = Session()
        self._freeze()

    def sign(self, request: httpx2.Request) -> str:
        """Sign a request by SigV4."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        headers = {"Content-Type": request.headers["Content-Type"]}
        aws_request = AWSRequest(
            request.method,
            str(request.url),
            headers,
            request.content,
        )
        SigV4Auth(self._freeze(), "bedrock", self._region).add_auth(aws_request)
        request.headers.update(dict(aws_request.headers.items()))
        return super().sign(request)

    def _freeze(self) -> Any:
        from botocore.exceptions import BotoCoreError

        try:
            credentials = self._session.get_credentials()  # which it keeps, and renews
            keys = credentials.get_frozen_credentials() if credentials else None
        except BotoCoreError as error:
            raise RecipeError(
                f"api bedrock: AWS gives no credentials ({error}). Log in again, or mend ~/.aws."
            ) from error
        if keys is None:
            raise RecipeError(
                "api bedrock: there are no AWS credentials. Log in to AWS, or name a key in "
                "`key_env`."
            )
        self.hide(keys.secret_key, keys.token or "")
        return keys


# Google's Gemini models that draw, by generateContent: on the Gemini API or on Vertex AI; a
# wording.
#
# From googleapis/python-genai 2.19.0 (commit 6680718) and published answers (LiteLLM's issue 20357;
# 429s with google.rpc.RetryInfo): the models reject candidateCount above 1. Imagen takes no parent,
# so it is not served. Not confirmed: that image models heed the seed, whether a withheld image is
# billed, Retry-After.

_REFUSED = re.compile("BLOCKLIST|SPII|(IMAGE_)?(PROHIBITED_CONTENT|RECITATION|SAFETY)")
"""Finish reasons that say: an image, or a text, was withheld for its content."""


class GeminiSettings(Worded):
    """Settings of `gemini`.

    Attributes:
        model: the model's name at Google, such as gemini-3.1-flash-image.
        base_url: the address up to /models; None: that of the Gemini API. For Vertex AI
            https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google,
            with `key_command`, whose output is sent as a bearer token.
        aspect_ratio: width:height, such as 1:1 or 3:2; None: the parent's, or the model's default.
        resolution: 1K, 2K or 4K, where the model takes it; None: the model's default.
    """

    default_url = "https://generativelanguage.googleapis.com/v1beta"
    model: str
    key_env: str | None = "GEMINI_API_KEY"
    concurrency: Count = 4
    aspect_ratio: str | None = None
    resolution: str | None = None


class Gemini(Host[GeminiSettings]):
    """Google's image models by Gemini API or Vertex AI.

    The degree is put in words. One image per request.
    """

    Settings = GeminiSettings
    starter = hosted_starter(
        "model: gemini-3.1-flash-image\t# as Google names it",
        "key_env: GEMINI_API_KEY\t# the environment variable that holds the key",
        'aspect_ratio: "1:1"',
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to generateContent."""
        config = self._config
        parts: list[dict[str, Any]] = [{"text": call.prompt}]
        parts += [
            {"inlineData": {"mimeType": "image/png", "data": base64_of(parent)}}
            for parent in call.parents
        ]
        image = non_null(aspectRatio=config.aspect_ratio, imageSize=config.resolution)
        generation = {
            "responseModalities": ["TEXT", "IMAGE"],
            "seed": call.seed,
            **({"imageConfig": image} if image else {}),
            **call.degree,
        }
        body = {"contents": [{"role": "user", "parts": parts}], "generationConfig": generation}
        return f"/models/{quote(config.model, safe='')}:generateContent", {"json": body}

    def response(self, call: ImageCall, answer: httpx2.Response) -> Received:
        """Return the first image, or the reason why there is none, and the tokens billed."""
        content = object_of(answer)
        usage = _gemini_usage(content.get("usageMetadata"))
        feedback = value_at(content, "promptFeedback")
        reason = value_at(feedback, "blockReason")
        if reason:
            words = value_at(feedback, "blockReasonMessage") or "the prompt is blocked"
            return [Refused(one_line(f"{reason}: {words}"))], usage
        candidates = entries_at(content, "candidates")
        if not candidates:
            raise Fault.of_object(content, "the answer holds no candidate")
        candidate = candidates[0]
        parts = entries_at(candidate, "content", "parts")
        parts = [part for part in parts if not value_at(part, "thought")]
        images = [part for part in parts if value_at(part, "inlineData")]
        if images:
            return [self._rule.decode_text(value_at(images[0], "inlineData", "data"))], usage
        reason = str(value_at(candidate, "finishReason") or "no reason")
        prose = " ".join(str(part["text"]) for part in parts if value_at(part, "text"))
        says = value_at(candidate, "finishMessage") or prose or "the answer holds no image"
        words = one_line(f"{reason}: {says}")
        # A model that declines in prose ends with STOP: no field tells, so it has failed.
        return [Refused(words) if _REFUSED.fullmatch(reason) else Failed(words)], usage

    def _credentials(self) -> Credentials:
        config = self._config
        bearer = config.key_expires or config.basic_auth_env is not None
        return Credentials(config, header="Authorization" if bearer else "x-goog-api-key")


def _gemini_usage(usage: object) -> Usage:
    """Return the tokens of an answer by kind.

    Tokens of no stated kind (thoughts) count in the total alone.
    """

    def count(details: str, modality: str) -> int:
        rows = [row for row in entries_at(usage, details) if value_at(row, "modality") == modality]
        return sum(count_of(row.get("tokenCount")) for row in rows)

    return Usage(
        calls=0,
        tokens=count_of(value_at(usage, "totalTokenCount")),
        text_in=count("promptTokensDetails", "TEXT"),
        image_in=count("promptTokensDetails", "IMAGE"),
        text_out=count("candidatesTokensDetails", "TEXT"),
        image_out=count("candidatesTokensDetails", "IMAGE"),
    )


# Stability AI's own API, v2beta: Stable Diffusion 3.5 and Stable Image Ultra, with a true strength.
#
# From its OpenAPI description (tadasant/mcp-server-stability-ai, commit d2f0a57, 2025-06-24): one
# image per request; strength 1 is as without a parent; seed 0 draws one; 403 `content_moderation`
# is not charged, an image that is blurred for its content is; more than 150 requests in 10 seconds
# bring a 429. Not confirmed: Retry-After with a 429, the size of a variation, that equal seeds give
# equal images, and what has changed since.

LEAST = 64
"""Fewest pixels that a side of a parent may have."""


class StabilitySettings(StabilityModel):
    """Settings of `stability`.

    Attributes:
        model: sd3.5-large, sd3.5-large-turbo or sd3.5-medium; ultra: Stable Image Ultra.
        base_url: the address to ask; None: Stability's own.
        cfg_scale: how closely the prompt is followed; None: the model's default.
    """

    default_url = "https://api.stability.ai"
    model: str
    key_env: str | None = "STABILITY_API_KEY"
    concurrency: Count = 8
    cfg_scale: float | None = None

    @model_validator(mode="after")
    def _check_side(self) -> StabilitySettings:
        if min(self.image_size) < LEAST:
            raise RecipeError(
                f"`image_size` is {list(self.image_size)}. Stability varies no image with a side "
                f"below {LEAST} pixels: ask for {LEAST} or more."
            )
        return self


class Stability(Host[StabilitySettings]):
    """Stability's own host. The degree is a strength, exact. One image per request."""

    Settings = StabilitySettings
    starter = hosted_starter(
        "model: sd3.5-medium\t# or sd3.5-large, sd3.5-large-turbo, ultra",
        "key_env: STABILITY_API_KEY\t# the environment variable that holds the key",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST of a form to generate/sd3 or generate/ultra."""
        config = self._config
        ultra = config.model == "ultra"
        fields = config.fields(call) | non_null(cfg_scale=config.cfg_scale)
        if not ultra:
            fields |= {
                "model": config.model,
                "mode": "image-to-image" if call.parents else "text-to-image",
            }
        if ultra or not call.parents:
            fields |= {"aspect_ratio": config.aspect_ratio}
        form: list[tuple[str, Any]] = [(name, (None, str(value))) for name, value in fields.items()]
        form += [("image", ("image.png", parent)) for parent in call.parents]
        path = f"/v2beta/stable-image/generate/{'ultra' if ultra else 'sd3'}"
        return path, {"files": form, "headers": {"Accept": "image/*"}}

    def response(self, call: ImageCall, answer: httpx2.Response) -> Received:
        """Return the image, or Refused if the image was blurred."""
        if not answer.headers.get("content-type", "").startswith("image/"):
            raise Fault.of(answer)
        if answer.headers.get("finish-reason") == "CONTENT_FILTERED":
            words = "the image was blurred for its content (CONTENT_FILTERED), and billed"
            return [Refused(words)], None
        return [self._rule.decode(answer.content)], None


# Together AI's images/generations, which varies a parent that a request names: a wording.
#
# From its OpenAPI description (togethercomputer/openapi, commit 090263a, April 2026) and its pages:
# up to four images of a prompt; above an organisation's rate a 429, at or below it a 503; no
# strength, and no usage in an answer. That a parent may be a data URI is known of `image_url`
# alone, from LiteLLM (babe3cb) and Vercel's AI SDK (05efde8). Not confirmed: data URIs in
# `reference_images`, how a content filter refuses, which models draw several of one seed.


class TogetherSettings(Worded):
    """Settings of `together`.

    Attributes:
        model: the model's name at Together; it must be a model that can edit an image.
        parent_field: how the model takes a parent: `image_url` (FLUX.1 Kontext, FLUX.2 pro and
            flex) or `reference_images` (FLUX.2 dev, Google's); a model may ignore the other field.
        base_url: the address to ask; None: Together's own.
        size: height and width asked of the model, in multiples of 8; an image of another size
            counts as failed. None: the model's default. Kontext takes `extra: {aspect_ratio:
            "1:1"}` in place of a size.
        output_format: png or jpeg; None: the model's default.
        n: most images of one request, up to 4; the images of one request share a seed.
        extra: further fields of a request, sent unchanged (steps, guidance_scale, negative_prompt
            …).
    """

    default_url = "https://api.together.ai/v1"
    model: str
    parent_field: Literal["image_url", "reference_images"]
    key_env: str | None = "TOGETHER_API_KEY"
    concurrency: Count = 4
    size: Size | None = None
    output_format: Literal["png", "jpeg"] | None = "png"
    n: Count = 1
    extra: dict[str, Scalar] | None = None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that every image must have. None: any."""
        return self.size


class Together(Host[TogetherSettings]):
    """Together AI's hosted models. The degree is put in words.

    A request is for up to `n` images of one prompt, or variations of one parent. No answer is taken
    as deterministic.
    """

    Settings = TogetherSettings
    shares = "parent"
    batch = "n"
    starter = hosted_starter(
        "model: black-forest-labs/FLUX.1-kontext-pro\t# as Together names it; it must be able to "
        "edit an image",
        "parent_field: image_url\t# how the model takes a parent; or reference_images",
        "key_env: TOGETHER_API_KEY\t# the environment variable that holds the key",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to images/generations."""
        config = self._config
        body: dict[str, Any] = {
            **sides(config.size),
            **non_null(output_format=config.output_format),
            **(config.extra or {}),
            "model": config.model,
            "prompt": call.prompt,
            "n": len(call.seeds),
            "seed": call.seed,
            "response_format": "base64",
            **call.degree,
        }
        if call.parents:
            parent = data_uri(call.parents[0])
            body[config.parent_field] = parent if config.parent_field == "image_url" else [parent]
        return "/images/generations", {"json": body}

    def response(self, call: ImageCall, answer: httpx2.Response) -> Received:
        """Return the images in the field `data`."""
        entries = images_in(object_of(answer), "data")
        return [self._rule.decode_text(value_at(entry, "b64_json")) for entry in entries], None
