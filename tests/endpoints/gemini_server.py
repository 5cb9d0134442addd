"""generateContent with images in its answers, as python-genai has it (see adapters/hosts.py)."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.hosted import Hosted, degree_of


class GeminiServer(Hosted):
    """`blocked` is said of the prompt, `refusal` of the image; `prose` declines in words alone."""

    key_header = b"x-goog-api-key"

    def routes(self) -> list[Route]:
        return [Route("/v1beta/models/{call}", self.generate, methods=["POST"])]

    async def generate(self, request: Request) -> Response:
        body, fault = await request.json(), request.scope["fault"]
        self.script.requests.append({**body, "call": request.path_params["call"]})
        if fault == "quota":
            info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.3s"}
            error = {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED", "details": [info]}
            return JSONResponse({"error": error}, status_code=429)
        if fault == "blocked":
            return JSONResponse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": _usage(5)})
        if fault in ("refusal", "prose", "no image"):
            return JSONResponse({"candidates": [_candidate(fault)], "usageMetadata": _usage(9)})
        texts = [part["text"] for part in body["contents"][0]["parts"] if "text" in part]
        sent = [part["inlineData"] for part in body["contents"][0]["parts"] if "inlineData" in part]
        parent = base64.b64decode(sent[0]["data"]) if sent else None
        image = self.drawn(fault, body["generationConfig"]["seed"], parent, degree_of(texts[0]))
        data = {"mimeType": "image/png", "data": base64.b64encode(image).decode()}
        parts: list[dict[str, Any]] = [{"text": "Let me see.", "thought": True}, {"text": "Here it is."}]
        content = {"role": "model", "parts": [*parts, {"inlineData": data}]}
        return JSONResponse(
            {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": _usage(1300)}
        )


def _candidate(fault: str) -> dict[str, Any]:
    if fault == "refusal":
        words = "The model output could not be generated. This output violates our practices."
        return {"content": {"role": "model"}, "finishReason": "IMAGE_PROHIBITED_CONTENT", "finishMessage": words}
    if fault == "prose":
        return {"content": {"role": "model", "parts": [{"text": "I cannot draw that."}]}, "finishReason": "STOP"}
    return {"content": {}, "finishReason": "NO_IMAGE"}


def _usage(total: int) -> dict[str, Any]:
    details = [{"modality": "IMAGE", "tokenCount": total - 4}]
    return {
        "promptTokenCount": 4,
        "candidatesTokenCount": total - 4,
        "totalTokenCount": total,
        "candidatesTokensDetails": details,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}],
    }
