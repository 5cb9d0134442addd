"""OpenAI's images API as servers speak it: JSON generations, multipart edits and variations."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.faults import Script, fail

SIDE = 16


class OpenAIServer:
    """The ASGI app; every image has pixels of its own, so that it can be found again.

    Args:
        script: which requests fail.
        response_format: `b64_json`: images are in the answer; `url`: unless a request says b64_json, the answer names a
            path on the server's disk (Xinference, SGLang, LocalAI); `refused`: a request that says it is rejected
            (OpenAI's gpt-image models).
        side: of its images, pixels.
        heeds: the field by which an edit says how much of its image may be new; None: it all is; `nothing`: three
            quarters, the same at every edit of one image (Xinference 4.1, with a fixed seed).
    """

    def __init__(
        self, script: Script, response_format: str = "b64_json", side: int = SIDE, heeds: str | None = None
    ) -> None:
        self._heeds = heeds
        self.script, self._format, self.side = script, response_format, side
        self._random = np.random.default_rng(0)
        self.drawn: list[bytes] = []
        routes = [
            Route("/v1/images/generations", self.generations, methods=["POST"]),
            Route("/v1/images/edits", self.edits, methods=["POST"]),
            Route("/v1/images/variations", self.variations, methods=["POST"]),
        ]
        self._app = Starlette(routes=routes)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":  # who are you: it does not say
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        self.script.keys.add(headers.get(b"authorization", b"").decode())
        scope["fault"] = self.script.next()
        if scope["fault"] and not await _read(receive, scope) and await fail(scope["fault"], send):
            return
        await self._app(scope, _again(scope, receive), send)

    async def generations(self, request: Request) -> Response:
        body = await request.json()
        return self._answer(request.scope["fault"], body, None)

    async def edits(self, request: Request) -> Response:
        async with request.form() as form:
            files = [value for name, value in form.multi_items() if name in ("image", "image[]")]
            data = [await file.read() for file in files]
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        return self._answer(request.scope["fault"], fields, data)

    variations = edits

    def _answer(self, fault: str, body: dict[str, Any], parents: list[bytes] | None) -> Response:
        self.script.requests.append({**body, "parents": parents})
        if fault == "refusal":
            message = "Your request was rejected by the safety system."
            error = {"message": message, "type": "image_generation_user_error", "code": "moderation_blocked"}
            return JSONResponse({"error": error}, status_code=400)
        if self._format == "refused" and "response_format" in body:
            message = "Unknown parameter: 'response_format'."
            return JSONResponse({"error": {"message": message, "code": "unknown_parameter"}}, status_code=400)
        count = int(body.get("n", 1))
        count += {"fewer": -1, "more": 1}.get(fault, 0)
        parent = parents[0] if parents and self._heeds else None
        share = 1.0 if parent is None else float(body.get(self._heeds, 0.75))
        if parent is not None and self._heeds == "nothing":
            self._random = np.random.default_rng(list(parent))
        images = [self._image(self.side + (fault == "wrong size"), parent, share) for _ in range(count)]
        self.drawn += map(base64.b64decode, images)
        if fault == "duplicated":
            images = images[:1] * count
        if fault == "truncated base64":
            images[0] = images[0][: len(images[0]) // 2 * 2 - 7]
        self.script.delivered += count
        asked = {"text_tokens": 3 * count - 2 * count * bool(parents), "image_tokens": 2 * count * bool(parents)}
        usage = {"total_tokens": 10 * count, "input_tokens": 3 * count, "output_tokens": 7 * count}
        usage |= {"input_tokens_details": asked}
        inside = body.get("response_format", self._format) != "url"
        data = [{"b64_json": image} if inside else {"url": "/images/0.png"} for image in images]
        return JSONResponse({"created": 1, "data": data, "usage": usage})

    def _image(self, side: int, parent: bytes | None, share: float) -> str:
        pixels = self._random.integers(0, 256, (side, side, 3)).astype(np.uint8)
        if parent is not None:
            kept = self._random.random((side, side, 1)) >= share
            pixels = np.where(kept, np.asarray(Image.open(io.BytesIO(parent)).convert("RGB")), pixels)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        return base64.b64encode(buffer.getvalue()).decode()


async def _read(receive: Any, scope: dict[str, Any]) -> bool:
    """Take the whole body in, as a server does before it answers; it is kept for the route."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            scope["body"] = body
            return False


def _again(scope: dict[str, Any], receive: Any) -> Any:
    """`receive`, giving back first what `_read` took."""
    if "body" not in scope:
        return receive

    async def replay() -> dict[str, Any]:
        if "body" in scope:
            return {"type": "http.request", "body": scope.pop("body"), "more_body": False}
        return await receive()

    return replay
