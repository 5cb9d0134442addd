"""Hosts that answer at once, as their documents have them (named in adapters/hosts.py), and how to
ask each.
"""

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from starlette.responses import Response

from adapters.hosts import Bedrock, Gemini, Stability, Together
from tests.endpoints.faults import Script
from tests.endpoints.hosted import Hosted, degree_of, on

ACCESS = {
    "AWS_ACCESS_KEY_ID": "AKIACANARY",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-4d1e",
    "AWS_SESSION_TOKEN": "canary-session-77a0",
}
"""The account's at Bedrock; a bearer's key is not checked."""


class BedrockServer(Hosted):
    """InvokeModel; `refusal` is filtered, `inference` is an error in a success, `model` is
    a 424.
    """

    @on("POST /model/{model}/invoke")
    def invoke(self, asked, model):
        body, fault = asked.body, asked.fault
        if not _is_signed(asked, model) and not asked.headers["authorization"].startswith(
            "Bearer "
        ):
            said = (
                "The signature does not match; the token was "
                f"{asked.headers.get('x-amz-security-token')}."
            )
            return 403, {"message": said}
        self.script.requests.append({**body, "model": model})
        if fault == "model":
            return 424, {"message": "The model failed to process the request."}
        if fault in ("refusal", "inference"):
            reason = {"refusal": "Filter reason: prompt", "inference": "Inference error"}[fault]
            return {"finish_reasons": [reason]}
        varied = body["mode"] == "image-to-image"
        if {varied} != {"image" in body, "strength" in body, "aspect_ratio" not in body}:
            return 400, {"message": "The fields do not fit the mode."}
        parent = base64.b64decode(body["image"]) if varied else None
        image = self.noise(fault, body["seed"], parent, body.get("strength", 1.0))
        return {"finish_reasons": [None], "images": [base64.b64encode(image).decode()]}


def _is_signed(asked, model):
    """Whether the signature is that of the account for what came: path, host, date, token
    and body.
    """
    names = ("content-type", "x-amz-date", "x-amz-security-token")
    headers = {name: asked.headers[name] for name in names if name in asked.headers}
    url = f"http://{asked.headers['host']}/model/{quote(model, safe='')}/invoke"
    came = AWSRequest(method="POST", url=url, data=asked.content, headers=headers)
    came.context["timestamp"] = headers.get("x-amz-date", "")
    auth = SigV4Auth(Credentials(*ACCESS.values()), "bedrock", "us-west-2")
    signature = auth.signature(auth.string_to_sign(came, auth.canonical_request(came)), came)
    return asked.headers["authorization"].endswith(f"Signature={signature}")


GEMINI_ANSWERS: dict[str, tuple[int, dict[str, Any]]] = {
    "blocked": (5, {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
    "refusal": (
        9,
        {
            "finishReason": "IMAGE_PROHIBITED_CONTENT",
            "finishMessage": "The model output could not be generated.",
        },
    ),
    "prose": (9, {"content": {"parts": [{"text": "I cannot draw that."}]}, "finishReason": "STOP"}),
    "no image": (9, {"content": {}, "finishReason": "NO_IMAGE"}),
}
"""Fault → tokens, and what is answered of the prompt, or of the one candidate."""


class GeminiServer(Hosted):
    """generateContent; `quota` says in its body how long to wait."""

    key_headers = ("x-goog-api-key",)

    @on("POST /v1beta/models/{call}")
    def generate(self, asked, call):
        body, fault = asked.body, asked.fault
        self.script.requests.append({**body, "call": call})
        if fault in GEMINI_ANSWERS:
            total, answer = GEMINI_ANSWERS[fault]
            answer = answer if fault == "blocked" else {"candidates": [answer]}
            return {**answer, "usageMetadata": _usage(total)}
        text, *sent = body["contents"][0]["parts"]
        parent = base64.b64decode(sent[0]["inlineData"]["data"]) if sent else None
        image = self.noise(fault, body["generationConfig"]["seed"], parent, degree_of(text["text"]))
        data = {"mimeType": "image/png", "data": base64.b64encode(image).decode()}
        parts: list[dict[str, Any]] = [
            {"text": "Let me see.", "thought": True},
            {"text": "Here it is."},
        ]
        candidate = {
            "content": {"role": "model", "parts": [*parts, {"inlineData": data}]},
            "finishReason": "STOP",
        }
        return {"candidates": [candidate], "usageMetadata": _usage(1300)}


def _usage(total):
    details = [{"modality": "IMAGE", "tokenCount": total - 4}]
    counts = {"totalTokenCount": total, "candidatesTokensDetails": details}
    return counts | {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}]}


class StabilityServer(Hosted):
    """v2beta: multipart forms in, image/png out; `refusal` is denied, `blurred` is drawn and
    blurred.
    """

    @on("POST /v2beta/stable-image/generate/{service}")
    def generate(self, asked, service):
        fields, parent, fault = asked.body, asked.file, asked.fault
        self.script.requests.append({**fields, "service": service, "parents": parent})
        if fault == "refusal":
            return _stability_error(403, "content_moderation", "Your request was flagged.")
        if fault == "no credits":
            return _stability_error(
                402, "payment_required", "You lack sufficient credits to make this request."
            )
        fits = service == "ultra" or (fields["mode"], "aspect_ratio" in fields) == (
            ("image-to-image", False) if parent else ("text-to-image", True)
        )
        if (
            not fits
            or asked.headers["accept"] != "image/*"
            or (parent is not None) != ("strength" in fields)
        ):
            return _stability_error(400, "bad_request", "The fields do not fit the mode.")
        image = self.noise(fault, int(fields["seed"]), parent, float(fields.get("strength", 1)))
        reason = "CONTENT_FILTERED" if fault == "blurred" else "SUCCESS"
        return Response(image, media_type="image/png", headers={"finish-reason": reason})


def _stability_error(status, name, words):
    return status, {"id": "a1b2c3d4", "name": name, "errors": [words]}


class TogetherServer(Hosted):
    """images/generations, each image with a seed of its own; the words of a refusal are ours."""

    @on("POST /v1/images/generations")
    def generations(self, asked):
        body, fault = asked.body, asked.fault
        self.script.requests.append(body)
        if fault == "refusal":
            error = {
                "message": "NSFW content detected in prompt.",
                "type": "invalid_request_error",
                "code": None,
            }
            return 422, {"id": "o1", "error": error}
        sent = body.get("image_url") or next(iter(body.get("reference_images", ())), None)
        parent = None if sent is None else base64.b64decode(sent.partition(",")[2])
        degree = degree_of(body["prompt"])
        count = body["n"] - (fault == "fewer")
        images = [self.noise(fault, body["seed"] + i, parent, degree) for i in range(count)]
        data = [
            {"index": i, "b64_json": base64.b64encode(image).decode()}
            for i, image in enumerate(images)
        ]
        return {"id": "o1", "object": "list", "data": data}


@dataclass(frozen=True)
class Host:
    """A host, how its adapter is made, the server's faults that are refusals, and how a key is
    sent.
    """

    serve: Callable[[Script], Hosted]
    kind: Callable[..., Any]
    settings: dict[str, Any]
    refusals: tuple[str, ...] = ("refusal",)
    keyed: str = "Bearer {}"
    base: str = ""

    def make(self, url, **settings):
        """The adapter, for a server at this address."""
        given = {
            "prompts": "a {label}",
            "image_size": 64,
            "key_env": None,
            "base_url": url + self.base,
        }
        return self.kind(**given | self.settings | settings)


def bedrock(**settings):
    """Bedrock's adapter, in an environment with the account's credentials, in other
    processes too.
    """
    os.environ |= ACCESS
    return Bedrock(**settings)


HOSTS = {
    "bedrock": Host(
        BedrockServer, bedrock, {"model": "stability.sd3-5-large-v1:0", "region": "us-west-2"}
    ),
    "gemini": Host(
        GeminiServer,
        Gemini,
        {"model": "gemini-3.1-flash-image"},
        ("blocked", "refusal"),
        keyed="{}",
        base="/v1beta",
    ),
    "stability": Host(StabilityServer, Stability, {"model": "sd3.5-large"}, ("refusal", "blurred")),
    "together": Host(
        TogetherServer,
        Together,
        {"model": "black-forest-labs/FLUX.2-dev", "parent_field": "image_url"},
        base="/v1",
    ),
}
