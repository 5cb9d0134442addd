"""Foreign servers as their source has them, field by field, where they cannot run here; images are flat shades.

A new image's shade is its seed's, where the server heeds one, else 7; a variation lies between its parent and white, by
the strength that the server uses. What the server drops has no effect here either.

SGLang 0230ddc (image_api.py) and 0730031 (common_api.py), vLLM-Omni 005fd8e (api_server.py), Xinference 7ecec16
(restful_api.py, sdapi.py), LocalAI 82c191a (image.go, routes), OpenVINO Model Server 7e4df0c (imagegenutils.cpp),
stable-diffusion.cpp 97d2990 (routes_openai.cpp, routes_sdapi.cpp), LiteLLM 1.106.2 (_health_endpoints.py),
AUTOMATIC1111 0027ce1 and Forge dfdcbab (processing.py, api.py), SD.Next 058a7f0 (api.py, installer.py).
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.sd_server import png

SIDE = 16


@dataclass(frozen=True)
class OpenAIKind:
    """What one server does with OpenAI's requests.

    Attributes:
        gets: what its GET routes answer.
        strength: of an edit, if not of the field that `heeds` names.
        heeds: the fields of seed and of strength that have an effect.
        knows: the only fields that it takes; None: it drops those that it does not know.
        default: its response_format.
        edits: whether it has images/edits.
    """

    gets: dict[str, Any]
    strength: float = 0.75
    heeds: tuple[str, ...] = ()
    knows: frozenset[str] | None = None
    default: str = "b64_json"
    edits: bool = True


def owned(by: str, name: str = "m") -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": name, "object": "model", "owned_by": by}]}}


OVMS_FIELDS = frozenset({"prompt", "prompt_2", "prompt_3", "negative_prompt", "negative_prompt_2", "negative_prompt_3"})
OVMS_FIELDS |= {"image", "mask", "size", "height", "width", "n", "num_images_per_prompt", "response_format", "model"}
OVMS_FIELDS |= {"num_inference_steps", "rng_seed", "strength", "guidance_scale", "max_sequence_length", "lora_alphas"}
OPENAI = {
    "sglang": OpenAIKind(owned("sglang"), heeds=("seed",), default="url"),
    "vllm-omni": OpenAIKind(owned("vllm"), heeds=("seed",)),
    "xinference": OpenAIKind(owned("xinference"), default="url"),
    "localai": OpenAIKind(
        {
            "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model"}]},
            "/.well-known/localai.json": {"version": "v4.9.0", "endpoints": {}, "endpoint_groups": {}},
        },
        heeds=("seed",),
        default="url",
        edits=False,
    ),
    "ovms": OpenAIKind(owned("OVMS"), heeds=("rng_seed", "strength"), knows=OVMS_FIELDS),
    "stable-diffusion.cpp": OpenAIKind(owned("local", "sd-cpp-local")),
    "litellm": OpenAIKind(owned("openai") | {"/health/liveliness": "I'm alive!"}),
}


@dataclass
class ForeignOpenAI:
    """One of OPENAI.

    Attributes:
        loads: how many of its GET requests come while it loads its model.
        asked: its GET requests.
        requests: fields of the others.
    """

    server: str
    loads: int = 0
    asked: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kind = OPENAI[self.server]
        routes = [Route("/v1/images/generations", self.draw, methods=["POST"])]
        if self.kind.edits:
            routes.append(Route("/v1/images/edits", self.draw, methods=["POST"]))
        self._app = Starlette(routes=[*routes, Route("/{path:path}", self.get)])

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)

    async def get(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if len(self.asked) <= self.loads:
            return JSONResponse({"detail": "loading"}, 503)
        known = self.kind.gets.get(request.url.path)
        return JSONResponse({"detail": "Not Found"}, 404) if known is None else JSONResponse(known)

    async def draw(self, request: Request) -> Response:
        parent = None
        if request.url.path.endswith("edits"):
            async with request.form() as form:
                fields: dict[str, Any] = {name: value for name, value in form.items() if isinstance(value, str)}
                parent = shade_of(await form["image"].read())  # type: ignore[union-attr]
        else:
            fields = await request.json()
        self.requests.append(fields | {"parent": parent})
        unknown = sorted(fields.keys() - self.kind.knows) if self.kind.knows is not None else []
        if unknown:
            return JSONResponse({"error": f"Unhandled parameter: {unknown[0]}"}, 400)
        heeded = {name: float(fields[name]) for name in self.kind.heeds if name in fields}
        seed = heeded.get("seed", heeded.get("rng_seed", 7))
        strength = heeded.get("strength", self.kind.strength)
        shade = round(seed % 256 if parent is None else parent + strength * (255 - parent))
        drawn = base64.b64encode(png(shade, SIDE)).decode()
        named = fields.get("response_format", self.kind.default) == "url"
        entry = {"url": "/v1/images/1/content"} if named else {"b64_json": drawn}
        return JSONResponse({"created": 1, "data": [entry] * int(fields.get("n", 1))})


OPTIONS: dict[str, Any] = {
    "a1111": {"samples_save": True, "samples_format": "png", "sd_model_checkpoint": "m", "sd_vae": "Automatic"},
    "forge": {"samples_save": True, "samples_format": "png", "forge_try_reproduce": "None"},
    "sdnext": {"samples_save": True, "samples_format": "jpg", "sd_model_checkpoint": "m"},
    "stable-diffusion.cpp": {"samples_format": "png", "sd_model_checkpoint": "m"},
}


@dataclass
class ForeignSD:
    """A server of /sdapi/v1: one of OPTIONS, or Xinference, which has options for POST alone.

    Attributes:
        requests: bodies of the requests for images.
    """

    server: str
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._app = Starlette(
            routes=[
                Route("/sdapi/v1/txt2img", self.draw, methods=["POST"]),
                Route("/sdapi/v1/img2img", self.draw, methods=["POST"]),
                Route("/sdapi/v1/options", self.options),
                Route("/sdapi/v1/version", self.version),
                Route("/v1/models", self.models),
            ]
        )

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)

    async def options(self, _: Request) -> Response:
        known = OPTIONS.get(self.server)
        return JSONResponse({"detail": "Method Not Allowed"}, 405) if known is None else JSONResponse(known)

    async def version(self, _: Request) -> Response:
        here = self.server == "sdnext"
        return JSONResponse({"app": "sd.next", "commit": "058a7f0"}) if here else JSONResponse({}, 404)

    async def models(self, _: Request) -> Response:
        return JSONResponse(owned("xinference")["/v1/models"] if self.server == "xinference" else {})

    async def draw(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        count, parents = body["batch_size"], body.get("init_images")
        if self.server == "xinference":  # no field batch_size; the model is one
            if "model" not in body:
                return JSONResponse({"detail": "model: Field required"}, 500)
            if any(not parent.startswith("data:image/png;base64,") for parent in parents or ()):
                return JSONResponse({"detail": "not enough values to unpack (expected 2, got 1)"}, 500)
            count = 1
        if parents is None:
            return self._images([(body["seed"] + i) % 256 for i in range(count)])
        shades = [shade_of(base64.b64decode(parent.rpartition(",")[2])) for parent in parents]
        if self.server == "stable-diffusion.cpp" or len(shades) == 1:
            shades = shades[:1] * count
        return self._images([round(shade + body["denoising_strength"] * (255 - shade)) for shade in shades])

    def _images(self, shades: list[int]) -> Response:
        images = [base64.b64encode(png(shade, SIDE)).decode() for shade in shades]
        return JSONResponse({"images": images, "parameters": {}, "info": json.dumps({})})


def shade_of(data: bytes) -> int:
    return int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])
