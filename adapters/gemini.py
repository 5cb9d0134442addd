"""Google's Gemini models that draw, by generateContent: on the Gemini API or on Vertex AI; a wording.

Read from googleapis/python-genai 2.19.0 (commit 6680718, 2026-08-21): the fields of requests and answers, the reasons
for which a prompt is blocked or an image withheld, x-goog-api-key; and from answers that users published (LiteLLM's
issue 20357 of 2026-02-03; 429s with google.rpc.RetryInfo). One image per request: the models reject candidateCount
above 1 (ENTERPILOT/GoModel's pull request 764, 2026-08-25). `seed` makes an answer "mostly deterministic". An answer
counts its tokens. Not confirmed: that image models heed the seed, whether a withheld image is billed, Retry-After.
Imagen takes no parent, so it has no VARIATION_API and is not served.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from adapters.http import (
    Asked,
    Credentials,
    Fault,
    HTTPClient,
    PromptedGenerator,
    Received,
    Worded,
    object_of,
    stated,
    workers_for,
)
from adapters.http.faults import one_line
from adapters.http.starters import hosted
from pe.plugins.protocols import Capabilities, Failed, Refused
from pe.plugins.usage import Usage, count_of
from pe.plugins.validation import Count

if TYPE_CHECKING:
    import httpx2

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
