"""AUTOMATIC1111's /sdapi/v1 and Hugging Face's image routes, as servers speak them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.faults import Script, fail


class SDServer:
    """Answers with flat images whose shade is the seed's, or half way between the parent's and white.

    Args:
        script: which requests fail.
        side: of its images.
        takes: `list`: each parent is varied, or the one as often as asked (AUTOMATIC1111); `first`: only the first of
            them, as often as asked (stable-diffusion.cpp).
        spread: by how much the shades of images of one request differ.
    """

    def __init__(self, script: Script, side: int = 16, takes: str = "list", spread: int = 1) -> None:
        self.script, self._side, self._takes, self._spread = script, side, takes, spread
        routes = [
            Route("/sdapi/v1/txt2img", self.txt2img, methods=["POST"]),
            Route("/sdapi/v1/img2img", self.img2img, methods=["POST"]),
            Route("/hf", self.hugging_face, methods=["POST"]),
        ]
        self._app = Starlette(routes=routes)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":  # who are you: it does not say
            await self._app(scope, receive, send)
            return
        self.script.keys.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        scope["fault"] = self.script.next()
        if scope["fault"] and await fail(scope["fault"], send):
            return
        await self._app(scope, receive, send)

    async def txt2img(self, request: Request) -> Response:
        body = await request.json()
        return self._images(request, body, [(body["seed"] + self._spread * i) % 256 for i in range(body["batch_size"])])

    async def img2img(self, request: Request) -> Response:
        body = await request.json()
        parents = [base64.b64decode(image.rpartition(",")[2]) for image in body["init_images"]]
        if len(parents) == 1 or self._takes == "first":
            parents = parents[:1] * body["batch_size"]
        shades = [int(np.asarray(Image.open(io.BytesIO(parent)))[0, 0, 0]) for parent in parents]
        strength = body["denoising_strength"]
        return self._images(request, body, [round(shade + strength * (255 - shade)) for shade in shades])

    def _images(self, request: Request, body: dict[str, Any], shades: list[int]) -> Response:
        self.script.requests.append(body)
        shades = shades[:-1] if request.scope["fault"] == "fewer" else shades
        images = [base64.b64encode(png(shade, self._side)).decode() for shade in shades]
        if request.scope["fault"] == "truncated base64":
            images[0] = images[0][: len(images[0]) // 2]
        self.script.delivered += len(images)
        return JSONResponse({"images": images, "parameters": {}, "info": json.dumps({"seed": body.get("seed")})})

    async def hugging_face(self, request: Request) -> Response:
        body = await request.json()
        self.script.requests.append(body)
        if request.scope["fault"] == "refusal":
            return JSONResponse({"error": "NSFW content detected"}, status_code=400)
        if request.scope["fault"] == "truncated base64":
            return Response(png(9, self._side)[:60], media_type="image/png")
        self.script.delivered += 1
        return Response(png(body.get("parameters", {}).get("seed", 128) % 256, self._side), media_type="image/png")


class EmbeddingServer:
    """{"data": [{"index", "embedding"}]}, out of order: the mean of each channel.

    Args:
        script: which requests fail.
        changed: put into each entry.
        refused: requests with an image whose first value it is are rejected, in words on that image.
        status: by which they are.
    """

    def __init__(
        self, script: Script, changed: dict[str, Any] | None = None, refused: int | None = None, status: int = 400
    ) -> None:
        self.script, self._changed, self._refused, self._status = script, changed or {}, refused, status
        self._app = Starlette(routes=[Route("/v1/embeddings", self.embeddings, methods=["POST"])])

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.script.keys.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        fault = self.script.next()
        if not (fault and await fail(fault, send)):
            await self._app(scope, receive, send)

    async def embeddings(self, request: Request) -> Response:
        body = await request.json()
        self.script.requests.append(body)
        entries = []
        for index, item in enumerate(body["input"]):
            image = Image.open(io.BytesIO(base64.b64decode(item["image"].partition(",")[2])))
            if np.asarray(image).flat[0] == self._refused:
                return JSONResponse({"error": {"message": f"image {index} shows a scar"}}, status_code=self._status)
            mean = np.asarray(image, dtype=np.float64).mean(axis=(0, 1)).tolist()
            if np.asarray(image).flat[0] == self._changed.get("infinite"):
                mean[0] = 1e300
            entries.append({"object": "embedding", "index": index, "embedding": mean} | self._changed)
        return JSONResponse({"data": entries[::-1], "model": body["model"], "usage": {"total_tokens": 3}})


def png(shade: int, side: int) -> bytes:
    """A flat grey PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), shade, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
