"""Stability's models on Amazon Bedrock, by InvokeModel: a true strength.

Read from botocore 1.44.5's description of bedrock-runtime (the path, SigV4 under the name `bedrock` or a bearer's key,
the errors and their statuses) and AWS's page on Stable Diffusion 3.5 Large, as stored in 2026: one image per request,
of about one megapixel; `strength` with `mode: image-to-image`; `seed` of 32 bits, 0 draws one; `finish_reasons`.
Amazon's own image models are not served: Titan Image Generator v2 ended on 2026-06-30 (awslabs/startups, pull request
304) and Nova Canvas on 2026-09-30 (aws-samples/generative-ai-ml-latam-samples, pull request 109).
Not confirmed: the least size of a parent (64×64 at Stability's own API), that Stable Image Ultra takes a parent here,
whether a filtered image is billed, Retry-After with a 429, that equal seeds give equal images.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, model_validator

from adapters.http import (
    Asked,
    Credentials,
    Fault,
    HTTPClient,
    Prompted,
    PromptedGenerator,
    Received,
    Scalar,
    Size,
    Worded,
    object_of,
    stated,
    workers_for,
)
from adapters.http.answers import Pixels, images_in
from adapters.http.faults import one_line
from adapters.http.generator import hosted
from adapters.prompts import Ladder
from pe.errors import MissingDependency, RecipeError
from pe.plugins.protocols import Capabilities, Failed, Refused, Usage, count_of
from pe.plugins.settings import Count

if TYPE_CHECKING:
    import httpx2

    _Sign = Callable[[str, bytes], dict[str, str]]
    _Client = tuple[HTTPClient, _Sign]


_JSON = {"Content-Type": "application/json"}


class BedrockSettings(Prompted):
    """What a recipe says of it.

    Attributes:
        model: as Bedrock names it: stability.sd3-5-large-v1:0.
        region: of AWS, such as us-west-2.
        key_env: the environment variable that holds a key of Bedrock; without any key, requests are signed with the
            credentials that botocore finds (environment, ~/.aws, SSO, a role).
        base_url: None: Bedrock's own in the region.
        aspect_ratio: of new images, width:height.
        negative_prompt: None: none.
        extra: further fields, sent as they are (cfg_scale).
    """

    model: str
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    concurrency: Count = 4
    aspect_ratio: Literal["21:9", "16:9", "3:2", "5:4", "1:1", "4:5", "2:3", "9:16", "9:21"] = "1:1"
    negative_prompt: str | None = None
    extra: dict[str, Scalar] | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or f"https://bedrock-runtime.{self.region}.amazonaws.com"

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed, for want of a key."""
        return self.key_env is None and self.basic_auth_env is None and not self.key_expires

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(None, "strength", exact=True)


class Bedrock(PromptedGenerator[BedrockSettings, "_Client", "httpx2.Response"]):
    """RANDOM_API by text-to-image, VARIATION_API by image-to-image with strength = degree; one image per request."""

    Settings = BedrockSettings
    starter = hosted(
        "model: stability.sd3-5-large-v1:0\t# as Bedrock names it",
        "region: us-west-2\t# of AWS; requests are signed with the credentials that botocore finds",
    )

    @property
    def capabilities(self) -> Capabilities:
        """One image per request; the degree is the strength."""
        return Capabilities(1, workers_for(self._given.concurrency), "condition", "exact", deterministic=False)

    def _credentials(self) -> Credentials:
        return Credentials(self._given, header=None if self._given.is_signed else "Authorization")

    def _connect(self, credentials: Credentials) -> _Client:
        given = self._given
        sign = _signer(given.region, credentials) if given.is_signed else lambda url, body: {}
        return HTTPClient(given.url, given, given.concurrency, credentials), sign

    def _send(self, client: _Client, asked: Asked) -> httpx2.Response:
        given, (http, sign) = self._given, client
        content: dict[str, Any] = {
            **(given.extra or {}),
            **stated(negative_prompt=given.negative_prompt),
            "prompt": asked.prompt,
            "seed": max(1, asked.seed),  # 0 draws one
            "output_format": "png",
            "mode": "image-to-image" if asked.parents else "text-to-image",
            **asked.told,
        }
        if asked.parents:
            content["image"] = base64.b64encode(asked.parents[0]).decode()
        else:
            content["aspect_ratio"] = given.aspect_ratio
        path, body = f"/model/{quote(given.model, safe='')}/invoke", json.dumps(content).encode()
        return http.post(path, content=body, headers=_JSON | sign(f"{given.url.rstrip('/')}{path}", body))

    def _read(self, client: _Client, sent: httpx2.Response) -> Received:
        answer = object_of(sent)
        reasons = answer.get("finish_reasons")
        reason = str(reasons[0]) if isinstance(reasons, list) and reasons and reasons[0] else ""
        if reason.startswith("Filter reason"):
            return [Refused(reason)], None
        if reason:
            raise Fault(reason, 200)
        return [self._rule.decode_text(image) for image in images_in(answer, "images")], None


def _signer(region: str, credentials: Credentials) -> _Sign:
    """What signs a request's address and body, by the credentials that botocore finds; it renews them itself.

    Raises:
        MissingDependency: botocore is not installed.
        RecipeError: it finds no credentials.
    """
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise MissingDependency.of("botocore", "bedrock", "Amazon Bedrock") from error

    def frozen() -> Any:
        try:
            found = held.get_frozen_credentials() if held else None
        except BotoCoreError as error:
            raise RecipeError(f"api bedrock: AWS gives no credentials ({error}): log in again.") from error
        if found is None:
            raise RecipeError("api bedrock: there are no AWS credentials: log in to AWS, or name a key in key_env.")
        credentials.hide(found.secret_key, found.token or "")
        return found

    def sign(url: str, body: bytes) -> dict[str, str]:
        request = AWSRequest(method="POST", url=url, data=body, headers=dict(_JSON))
        SigV4Auth(frozen(), "bedrock", region).add_auth(request)
        return dict(request.headers.items())

    try:
        held = Session().get_credentials()
    except BotoCoreError as error:
        raise RecipeError(f"api bedrock: AWS gives no credentials ({error}): mend ~/.aws.") from error
    frozen()
    return sign


# Google's Gemini models that draw, by generateContent: on the Gemini API or on Vertex AI; a wording.
#
# Read from googleapis/python-genai 2.19.0 (commit 6680718, 2026-08-21): the fields of requests and answers, the
# reasons for which a prompt is blocked or an image withheld, x-goog-api-key; and from answers that users published
# (LiteLLM's issue 20357 of 2026-02-03; 429s with google.rpc.RetryInfo). One image per request: the models reject
# candidateCount above 1 (ENTERPILOT/GoModel's pull request 764, 2026-08-25). `seed` makes an answer "mostly
# deterministic". An answer counts its tokens. Not confirmed: that image models heed the seed, whether a withheld image
# is billed, Retry-After. Imagen takes no parent, so it has no VARIATION_API and is not served.


_REFUSED = frozenset(
    {
        "BLOCKLIST",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "IMAGE_SAFETY",
        "PROHIBITED_CONTENT",
        "RECITATION",
        "SAFETY",
        "SPII",
    }
)
"""Finish reasons that are about what an image, or its words, would have shown."""


class GeminiSettings(Worded):
    """What a recipe says of it.

    Attributes:
        model: as Google names it, such as gemini-3.1-flash-image.
        base_url: up to /models; None: the Gemini API. For Vertex AI
            https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google, with
            `key_command`, whose token is sent as a bearer's.
        aspect_ratio: width:height, such as 1:1 or 3:2; None: the parent's, or the model's default.
        resolution: 1K, 2K or 4K, where the model takes it; None: its default.
    """

    model: str
    key_env: str | None = "GEMINI_API_KEY"
    concurrency: Count = 4
    aspect_ratio: str | None = None
    resolution: str | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or "https://generativelanguage.googleapis.com/v1beta"


class Gemini(PromptedGenerator[GeminiSettings, HTTPClient, "httpx2.Response"]):
    """RANDOM_API and VARIATION_API by generateContent, with or without a parent; one image per request."""

    Settings = GeminiSettings
    starter = hosted(
        "model: gemini-3.1-flash-image\t# as Google names it",
        "key_env: GEMINI_API_KEY\t# the environment variable that holds the key",
        'aspect_ratio: "1:1"',
    )

    @property
    def capabilities(self) -> Capabilities:
        """One image per request."""
        workers = workers_for(self._given.concurrency)
        return Capabilities(1, workers, "condition", self._ladder.degree, deterministic=False)

    def _connect(self, credentials: Credentials) -> HTTPClient:
        return HTTPClient(self._given.url, self._given, self._given.concurrency, credentials)

    def _credentials(self) -> Credentials:
        given = self._given
        bearer = given.key_expires or given.basic_auth_env is not None
        return Credentials(given, header="Authorization" if bearer else "x-goog-api-key")

    def _send(self, client: HTTPClient, asked: Asked) -> httpx2.Response:
        given = self._given
        parts: list[dict[str, Any]] = [{"text": asked.prompt}]
        for parent in asked.parents:
            parts.append({"inlineData": {"mimeType": "image/png", "data": base64.b64encode(parent).decode()}})
        image = stated(aspectRatio=given.aspect_ratio, imageSize=given.resolution)
        config = {
            "responseModalities": ["TEXT", "IMAGE"],
            "seed": asked.seed,
            **({"imageConfig": image} if image else {}),
            **asked.told,
        }
        body = {"contents": [{"role": "user", "parts": parts}], "generationConfig": config}
        return client.ask(f"/models/{quote(given.model, safe='')}:generateContent", body)

    def _read(self, client: HTTPClient, sent: httpx2.Response) -> Received:
        answer = object_of(sent)
        billed = _billed(_mapping(answer.get("usageMetadata")))
        feedback = _mapping(answer.get("promptFeedback"))
        if reason := feedback.get("blockReason"):
            return [
                Refused(one_line(f"{reason}: {feedback.get('blockReasonMessage') or 'the prompt is blocked'}"))
            ], billed
        candidates = answer.get("candidates")
        if not isinstance(candidates, list) or not candidates:
            raise Fault.of_object(answer, "the answer holds no candidate")
        candidate = _mapping(candidates[0])
        parts = _mapping(candidate.get("content")).get("parts")
        found = [_mapping(part) for part in parts] if isinstance(parts, list) else []
        images = [part["inlineData"] for part in found if part.get("inlineData") and not part.get("thought")]
        if images:
            return [self._rule.decode_text(_mapping(images[0]).get("data"))], billed
        return [_missing(candidate, found)], billed


def _billed(usage: Mapping[str, Any]) -> Usage:
    """The tokens that an answer's usageMetadata names, by kind; what it does not tell apart (thoughts) is of none."""

    def count(details: str, modality: str) -> int:
        found = usage.get(details)
        rows = [_mapping(row) for row in found] if isinstance(found, list) else []
        return sum(count_of(row.get("tokenCount")) for row in rows if row.get("modality") == modality)

    return Usage(
        calls=0,
        tokens=count_of(usage.get("totalTokenCount")),
        text_in=count("promptTokensDetails", "TEXT"),
        image_in=count("promptTokensDetails", "IMAGE"),
        text_out=count("candidatesTokensDetails", "TEXT"),
        image_out=count("candidatesTokensDetails", "IMAGE"),
    )


def _missing(candidate: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> Refused | Failed:
    """Why a candidate has no image. A model that declines in prose ends with STOP: no field tells, so it has failed."""
    reason = str(candidate.get("finishReason") or "no reason")
    said = " ".join(str(part["text"]) for part in parts if part.get("text") and not part.get("thought"))
    words = one_line(f"{reason}: {candidate.get('finishMessage') or said or 'the answer holds no image'}")
    return Refused(words) if reason in _REFUSED else Failed(words)


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


# Stability AI's own API, v2beta: Stable Diffusion 3.5 and Stable Image Ultra, with a true strength.
#
# Read from the OpenAPI description behind its reference, as tadasant/mcp-server-stability-ai (commit d2f0a57,
# 2025-06-24) holds it. Stated there: one image per request, of about one megapixel; `strength` is the denoising, 0 the
# parent and 1 as without one; `seed` is of 32 bits, 0 draws one; 403 `content_moderation` is not charged, an image
# that is blurred for its content (`finish-reason: CONTENT_FILTERED`) is; more than 150 requests in 10 seconds bring a
# 429. Its price in credits stands in no answer. Not confirmed: Retry-After with a 429, the size of a variation, that
# equal seeds give equal images, and what has changed since.


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


# Together AI's images/generations, which varies a parent that a request names: a wording.
#
# Read from its OpenAPI description (togethercomputer/openapi, commit 090263a, 2026-04-28) and its pages on images,
# reference images and rate limits, as stored in 2026. Stated there: FLUX.1 Kontext takes the parent as `image_url`,
# FLUX.2 [dev] and Google's models as `reference_images`, FLUX.2 [pro] and [flex] as either; up to four images of a
# prompt; `seed`; above an organisation's rate a 429, at or below it a 503. There is no strength, and no usage in an
# answer. That a parent may be a data URI stands in no page: LiteLLM (commit babe3cb) and Vercel's AI SDK (commit
# 05efde8) send one as `image_url`. Not confirmed: data URIs in `reference_images`, how a content filter refuses, the
# unit of x-ratelimit-reset, which models draw several images of one seed.


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
