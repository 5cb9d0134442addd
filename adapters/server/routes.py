"""The HTTP routes: keys, requests, answers. Bodies are measured as they arrive, and are never written to disk.

The log says of a request its path, status, number of images, seconds and shortened key digest, nothing more.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request, Security
from fastapi.responses import PlainTextResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect

from adapters.server.batching import IngressMetrics, exported
from adapters.server.checks import GRID, Description, Settings, digest_of, is_loopback, names_loopback
from adapters.server.errors import CODES, Error, Refusal, refusal_of, unavailable
from adapters.server.formats import ARRAYS, BatchAnswer, BatchRequest, FormatError, Pixels, pack_answer, read_request
from adapters.server.service import Service
from pe.data.decoding import FORMATS, decode_image
from pe.data.quiet import quiet
from pe.errors import BadImage
from pe.plugins.protocols import Failed, Refused
from pe.version import __version__

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

log = logging.getLogger("ray.serve")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Finite = Annotated[float, Field(allow_inf_nan=False)]

JSON, FORM = "application/json", "multipart/form-data"
FIELDS = 2**20
"""Most bytes of a JSON body, or of a form without its file."""

ROUTES = (
    ("/v1/images/generations", "POST", "generations", JSON),
    ("/v1/images/edits", "POST", "edits", FORM),
    ("/v1/images/variations", "POST", "variations", FORM),
    ("/v1/batch/images", "POST", "batch", ARRAYS),
    ("/v1/models", "GET", "models", ""),
    ("/v1/models/{model:path}", "GET", "model", ""),
    ("/metrics", "GET", "metrics", ""),
    ("/openapi.json", "GET", "openapi", ""),
    ("/healthz", "GET", "healthz", ""),
    ("/readyz", "GET", "readyz", ""),
)
"""Path, method, the method of `Ingress` that answers, and the content type of the body."""

_KINDS = {path: kind for path, _, _, kind in ROUTES if kind}
_OPEN = ("/openapi.json", "/healthz", "/readyz")
"""Routes that need no key."""

_SILENCE = 30.0  # seconds between two pieces of a body
_PATIENCE, _PACE = 20.0, 2**14  # seconds for a body, and bytes that buy a second more
_FIELDS_OF_FORM = 32

MultiPartParser.spool_max_size = 2**40  # files of a form stay in memory; `Bounded` counts their bytes


class Bounded(Request):
    """A request whose body must have the content type `kind` and at most `most` bytes; else it raises a Refusal."""

    def __init__(self, request: Request, kind: str, most: int) -> None:
        super().__init__(request.scope, request.receive)
        self._most = most
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
            raise Refusal(415, f"Send the body as {kind}.")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; Refusal if it is too large, or so slow that it would hold up its key's other requests."""
        too_large = Refusal(413, f"The body is larger than {self._most} bytes.")
        length = self.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > self._most):
            raise too_large
        stream, size, began = super().stream(), 0, time.monotonic()
        while True:
            remaining = began + _PATIENCE + size / _PACE - time.monotonic()
            try:
                async with asyncio.timeout(min(_SILENCE, remaining)):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except (TimeoutError, ClientDisconnect) as error:
                raise Refusal(408, "The body did not come to its end in time.", wait=1) from error
            size += len(piece)
            if size > self._most:
                raise too_large
            yield piece

    async def strict_form(self) -> dict[str, str | bytes]:
        """Return a form's fields and the bytes of its file `image`; Refusal unless each comes exactly once."""
        try:
            async with self.form(max_files=_FIELDS_OF_FORM, max_fields=_FIELDS_OF_FORM, max_part_size=FIELDS) as form:
                items = form.multi_items()
                fields: dict[str, str | bytes] = {name: value for name, value in items if isinstance(value, str)}
                files = [file for name, file in items if isinstance(file, UploadFile) and name in ("image", "image[]")]
                if len(files) == 1 and len(fields) + 1 == len(items) and "image" not in fields:
                    return fields | {"image": await files[0].read()}
        except Refusal:
            raise
        except Exception as error:  # the parser lets almost any exception out of malformed forms
            raise Refusal(400, "The form cannot be read.") from error
        raise Refusal(
            400,
            "Send one image as 'image' and no mask (all of it is varied), and every other field once, as text.",
            "image",
        )


def pixels_of(data: bytes, shape: tuple[int, int, int] | None, size: tuple[int, int] | None, most: int) -> Pixels:
    """Return an image file's pixels, scaled and cut to the model's `shape`, else to `size`, else to multiples of GRID.

    Raises:
        Refusal: the file is no image, or its header, read before any pixel, states too few or too many pixels.
    """
    try:
        with quiet(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except Exception as error:  # Pillow's parsers let almost any exception out of a malformed file
        raise Refusal(400, "The file is no PNG, JPEG, WebP, BMP, GIF or TIFF image.", "image") from error
    if width * height > most:
        raise Refusal(400, f"The image has more than {most} pixels.", "image")
    sides = shape[:2] if shape else size or (height // GRID * GRID, width // GRID * GRID)
    if 0 in sides or sides[0] * sides[1] > most:
        raise Refusal(400, f"An image has sides of {GRID} pixels at least, and {most} pixels at the most.", "size")
    try:
        return decode_image(data, size=sides, resize="crop", channels=1 if shape and shape[2] == 1 else 3)
    except BadImage as error:
        raise Refusal(400, str(error), "image") from error


class ImageFields(BaseModel):
    """The fields of every request in OpenAI's form, and our scalar extensions."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(description="for a model without words: a class's name, or empty")
    model: str | None = Field(None, description="the name of the model; there is one")
    n: int = Field(1, ge=1, description="images")
    size: str | None = Field(
        None, pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$", description="WIDTHxHEIGHT, or auto"
    )
    seed: int | None = Field(None, ge=0, lt=2**64, description="of the first image; the others follow; random without")
    num_inference_steps: int | None = Field(None, ge=1, description="of a new image")
    guidance_scale: Finite | None = Field(None, ge=0, le=100)
    negative_prompt: str | None = Field(None, description="what the image should not be like")
    class_label: int | str | None = Field(None, description="the model's own class, by number or name")
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png"] | None = None
    stream: Literal[False] | None = None
    background: Literal["auto", "opaque"] | None = None
    user: str | None = Field(None, description="ignored, as the three that follow")
    quality: str | None = None
    style: str | None = None
    moderation: str | None = None

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width; None: the model's own, or the image's."""
        width, x, height = (self.size or "").partition("x")
        return (int(height), int(width)) if x else None

    def to_request(
        self, model: Description, most: int, image: Pixels | None = None, degree: float | None = None
    ) -> BatchRequest:
        """Return the request that these fields make: for new images, or for variations of `image` to `degree`."""
        if self.n > most:
            raise Refusal(400, f"n lies from 1 to {most}; POST /v1/batch/images takes more.", "n")
        first = secrets.randbits(64) if self.seed is None else self.seed
        label = self.class_label
        if not model.prompts and self.prompt:
            if self.prompt not in model.classes:
                raise Refusal(400, "The model knows no words: name a class by prompt or class_label.", "prompt")
            if label is None:
                label = self.prompt
        return BatchRequest(
            np.array([(first + i) % 2**64 for i in range(self.n)], dtype=np.uint64),
            degree=degree,
            steps=self.num_inference_steps,
            guidance=self.guidance_scale,
            size=self.sides if image is None or model.shape is not None else (image.shape[0], image.shape[1]),
            images=None if image is None else np.stack([image] * self.n),
            classes=None if label is None else np.full(self.n, model.class_of(label), dtype=np.int64),
            prompts=(self.prompt,) * self.n if model.prompts else None,
            negative_prompts=(self.negative_prompt,) * self.n if self.negative_prompt else None,
            model=self.model,
        )


class Generation(ImageFields):
    """POST /v1/images/generations."""

    model_config = ConfigDict(strict=True)


class Edit(ImageFields):
    """POST /v1/images/edits, as a form with the file `image`."""

    image: bytes = Field(description="PNG, JPEG, WebP, BMP, GIF or TIFF")
    strength: Finite = Field(0.8, ge=0, le=1, description="0: unchanged, 1: as new; /v1/models says how")


class Variation(Edit):
    """POST /v1/images/variations, as a form with the file `image`."""

    prompt: str = Field("", description="as for generations")


class Drawn(BaseModel):
    """An image: a PNG file in base64."""

    b64_json: str


class Images(BaseModel):
    """The answer in OpenAI's form."""

    created: int
    data: list[Drawn]


def _takes(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenAPI is told of a body of content type `kind` that the route reads itself."""
    return {"openapi_extra": {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}}


_FILE = {"type": "string", "format": "binary"}
_KEY = {"dependencies": [Security(HTTPBearer(auto_error=False, scheme_name="key"))]}
"""For /openapi.json only: FastAPI reads a body before it runs dependencies, so `Ingress` checks keys itself."""

_DESCRIBED: dict[str, dict[str, Any]] = {
    "edits": _takes(FORM, Edit.model_json_schema()),
    "variations": _takes(FORM, Variation.model_json_schema()),
    "batch": _takes(ARRAYS, _FILE)
    | {"response_class": Response, "responses": {200: {"content": {ARRAYS: {"schema": _FILE}}}}},
    "metrics": {"response_class": PlainTextResponse},
}


class Ingress:
    """Answers over HTTP; every refusal has the body `errors.Error`."""

    def __init__(self, settings: dict[str, Any], engine: DeploymentHandle) -> None:
        self._settings = Settings.model_validate(settings)
        self._metrics = IngressMetrics()
        self._service = Service(engine, self._settings, self._metrics)
        limits = self._settings.limits
        self._most = {JSON: FIELDS, FORM: min(limits.body, 8 * limits.pixels + FIELDS), ARRAYS: limits.body}

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application that Ray serves."""
        app = FastAPI(
            title="pe serve",
            version=__version__,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
            responses={status: {"model": Error, "description": code} for status, (_, code) in CODES.items()},
            exception_handlers={HTTPException: _not_routed},
        )
        guard = self._guard

        class Guarded(APIRoute):
            def get_route_handler(self) -> Handler:
                return guard(super().get_route_handler())

        app.router.route_class = Guarded
        for path, method, name, _ in ROUTES:
            more = _DESCRIBED.get(name, {}) | ({} if path in _OPEN else _KEY)
            app.add_api_route(path, getattr(self, name), methods=[method], **more)
            if method == "GET":
                app.add_api_route(path, getattr(self, name), methods=["HEAD"], include_in_schema=False)
        return app

    async def generations(self, request: Bounded, fields: Generation) -> Images:
        """Draw new images."""
        return await self._in_openai_s_form(request, fields)

    async def edits(self, request: Bounded) -> Images:
        """Vary an image under a prompt."""
        return await self._varied(request, Edit)

    async def variations(self, request: Bounded) -> Images:
        """Vary an image."""
        return await self._varied(request, Variation)

    async def batch(self, request: Bounded) -> Response:
        """Make many images of one job: a safetensors file each way.

        Arrays for n images: seeds uint64 (n,), and as needed images uint8 (n,h,w,c) and classes int64 (n,). The key
        `job` of the metadata holds JSON, all keys as needed: degree of `images`; steps; guidance; size [height, width];
        prompts and negative_prompts, n each; model; vary, the way in which the server must vary images. The answer:
        images uint8 (m,h,w,c); places int64 (m,), their places among the n; in `job` the key `missing`: a list of
        [place, reason, refused, retryable] for each image that was not made.
        """
        body = await request.body()
        try:
            batch = await asyncio.to_thread(read_request, body)
        except FormatError as error:
            raise Refusal(400, str(error)) from error
        answer = await self._make(request, batch)
        return Response(await asyncio.to_thread(pack_answer, answer), media_type=ARRAYS)

    async def models(self) -> dict[str, Any]:
        """Describe the one model for clients."""
        model = await self._service.description()
        own = asdict(model) | {"degree": model.degree, "limits": self._settings.limits.model_dump()}
        own |= {"steps": self._settings.steps, "guidance_scale": self._settings.guidance}
        entry = {"id": model.name, "object": "model", "created": int(time.time()), "owned_by": "pe", "pe": own}
        return {"object": "list", "data": [entry]}

    async def model(self, model: str) -> dict[str, Any]:
        """Describe the model by its name."""
        entry: dict[str, Any] = (await self.models())["data"][0]
        if model != entry["id"]:
            raise Refusal(404, f"The model served here is '{entry['id']}'.", "model", "model_not_found")
        return entry

    async def metrics(self) -> PlainTextResponse:
        """Return the metrics of all nodes for Prometheus."""
        return PlainTextResponse(await exported(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> dict[str, Any]:
        """Describe these routes."""
        page: dict[str, Any] = request.app.openapi()
        page["info"]["x-limits"] = self._settings.limits.model_dump()
        for operations in page["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # FastAPI's own word for what is answered with 400 here
        return page

    async def healthz(self) -> dict[str, str]:
        """Answer that the ingress lives."""
        return {"status": "ok"}

    async def readyz(self) -> dict[str, str]:
        """Answer that a replica is ready; 503 if none is."""
        await self._service.description(anew=True)
        return {"status": "ok"}

    async def _varied(self, request: Bounded, kind: type[Edit]) -> Images:
        fields = kind.model_validate(await request.strict_form())
        shape, most = (await self._service.description()).shape, self._settings.limits.pixels
        image = await asyncio.to_thread(pixels_of, fields.image, shape, fields.sides, most)
        return await self._in_openai_s_form(request, fields, image, fields.strength)

    async def _in_openai_s_form(
        self, request: Request, fields: ImageFields, image: Pixels | None = None, degree: float | None = None
    ) -> Images:
        model = await self._service.description()
        answer = await self._make(request, fields.to_request(model, self._settings.limits.n, image, degree))
        if not len(answer.images):
            raise _refusal_of(next(iter(answer.missing.values())))
        texts = await asyncio.to_thread(lambda: [_png(pixels) for pixels in answer.images])
        return Images(created=int(time.time()), data=[Drawn(b64_json=text) for text in texts])

    async def _make(self, request: Request, batch: BatchRequest) -> BatchAnswer:
        host = request.client.host if request.client else ""
        answer = await self._service.make(batch, f"{request.state.key}@{host}")
        request.state.images = len(answer.images)
        return answer

    def _guard(self, handle: Handler) -> Handler:
        """Return FastAPI's handler of a route behind checks of key and limits; its answers are counted and logged."""

        async def answer(request: Request) -> Response:
            began, status, path = time.monotonic(), 499, request.scope["route"].path  # 499: the client went away
            kind = _KINDS.get(path)
            request.state.key, request.state.images = "", 0
            try:
                request.state.key = "" if path in _OPEN else self._key(request)
                with self._service.admission.request(request.state.key) if kind else nullcontext():
                    response = await handle(Bounded(request, kind, self._most[kind]) if kind else request)
                status = response.status_code
                return response
            except Exception as error:
                refusal = refusal_of(error)
                status = refusal.status_code
                return refusal.response()
            finally:
                seconds, images, key = time.monotonic() - began, request.state.images, request.state.key
                self._metrics.count_answer(path, status, images, seconds)
                facts = {"path": path, "status": status, "images": images, "seconds": round(seconds, 4), "key": key}
                log.log(logging.DEBUG if path in _OPEN else logging.INFO, "answered", extra=facts)

        return answer

    def _key(self, request: Request) -> str:
        """Return eight hex digits of a key's digest, "local" on a server without keys; Refusal (401) to strangers."""
        digests = self._settings.key_digests
        if not digests:
            if not is_loopback((request.scope.get("server") or ("",))[0]):
                raise Refusal(401, "This server has no API keys, so it answers its own machine alone.")
            addresses = f"//{request.headers.get('host', '')}", request.headers.get("origin", "//localhost")
            if not all(map(names_loopback, addresses)):  # else a page of another site could ask, in a browser here
                raise Refusal(
                    401, "This server has no API keys, so call it 127.0.0.1 or localhost, from no other site."
                )
            return "local"
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        digest = digest_of(key.strip())
        matches = [hmac.compare_digest(digest, each) for each in digests]  # all of them, so that the time tells nothing
        if kind.lower() != "bearer" or not any(matches):
            raise Refusal(401, "Send an API key of this server: Authorization: Bearer KEY.")
        return digest[:8]


def _refusal_of(miss: Refused | Failed) -> Refusal:
    """Return the refusal that says why none of a request's images was made."""
    if isinstance(miss, Refused):
        return Refusal(400, f"{miss.reason}.", code="content_policy_violation")
    return unavailable(miss.reason) if miss.retryable else Refusal(400, f"{miss.reason}".rstrip(".") + ".")


def _png(pixels: Pixels) -> str:
    buffer = io.BytesIO()
    Image.fromarray(np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode()


async def _not_routed(_request: Request, error: Exception) -> Response:
    return refusal_of(error).response()
