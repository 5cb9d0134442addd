"""The routes: who asks, what is wanted, what came of it. Nothing of a request but its size and path is logged."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.server.bodies import FIELDS, FORM, JSON, body_of, check_type, form_of, pixels_of
from adapters.server.errors import CODES, Refusal, unavailable
from adapters.server.fields import Edit, Generation, ImageFields, Variation, fields_of_form, fields_of_json, size_of
from adapters.server.fields import wanted_of as wanted_of_fields
from adapters.server.formats import NPZ, FormatError, Made, Pixels, made_to_npz, wanted_of_npz
from adapters.server.metrics import IngressMetrics, exported
from adapters.server.openapi import describe
from adapters.server.service import Service, stamp
from adapters.server.settings import Settings, digest_of
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

log = logging.getLogger("ray.serve")

Handler = Callable[[Request], Awaitable[Response]]

ROUTES = (
    ("/v1/images/generations", "POST", "generations"),
    ("/v1/images/edits", "POST", "edits"),
    ("/v1/images/variations", "POST", "variations"),
    ("/v1/batch/images", "POST", "batch"),
    ("/v1/models", "GET", "models"),
    ("/v1/models/{model:path}", "GET", "model"),
    ("/metrics", "GET", "metrics"),
    ("/openapi.json", "GET", "openapi"),
    ("/healthz", "GET", "healthz"),
    ("/readyz", "GET", "readyz"),
)
"""Path, method, and which of `Ingress` answers."""

_OPEN = ("/openapi.json", "/healthz", "/readyz")
"""What needs no key."""


class Ingress:
    """Answers over HTTP; every refusal has the shape of `errors`."""

    def __init__(self, settings: dict[str, Any], engine: DeploymentHandle) -> None:
        self._settings = Settings.model_validate(settings)
        self._metrics = IngressMetrics()
        self._service = Service(engine, self._settings, self._metrics)
        self._form_bytes = min(self._settings.limits.body, 8 * self._settings.limits.pixels + FIELDS)

    def __serve_build_asgi_app__(self) -> Starlette:
        """What Ray serves."""
        routes = [
            Route(path, self._answer_with(getattr(self, name)), methods=[method]) for path, method, name in ROUTES
        ]
        handlers: Any = {Refusal: _refused, HTTPException: _not_routed}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def generations(self, request: Request) -> Response:
        """New images."""
        check_type(request, JSON)
        body = await body_of(request, FIELDS)
        return await self._in_openai_s_form(request, fields_of_json(Generation, body), None)

    async def edits(self, request: Request) -> Response:
        """Variations of an image under a prompt."""
        return await self._varied(request, Edit)

    async def variations(self, request: Request) -> Response:
        """Variations of an image."""
        return await self._varied(request, Variation)

    async def batch(self, request: Request) -> Response:
        """Many images of one job, as npz."""
        check_type(request, NPZ)
        body = await body_of(request, self._settings.limits.body)
        try:
            wanted = await asyncio.to_thread(wanted_of_npz, body)
        except FormatError as error:
            raise Refusal(400, str(error)) from error
        made = await self._made(request, wanted)
        return Response(await asyncio.to_thread(made_to_npz, made), media_type=NPZ)

    async def models(self, _request: Request) -> Response:
        """The one model, with what a client must know of it."""
        return JSONResponse({"object": "list", "data": [await self._model()]})

    async def model(self, request: Request) -> Response:
        """The same, by its name."""
        model = await self._model()
        if request.path_params["model"] != model["id"]:
            raise Refusal(404, f"The model served here is '{model['id']}'.", "model", "model_not_found")
        return JSONResponse(model)

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        return Response(await exported(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _request: Request) -> Response:
        """This surface, described."""
        return JSONResponse(describe(self._settings.limits))

    async def healthz(self, _request: Request) -> Response:
        """Whether the ingress lives."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Whether a replica can answer."""
        await self._service.description(anew=True)
        return JSONResponse({"status": "ok"})

    async def _model(self) -> dict[str, Any]:
        found = await self._service.description()
        limits = self._settings.limits.model_dump()
        own = asdict(found) | {"limits": limits, "steps": self._settings.steps}
        return {"id": found.name, "object": "model", "created": stamp(), "owned_by": "pe", "pe": own}

    async def _varied(self, request: Request, kind: type[ImageFields]) -> Response:
        check_type(request, FORM)
        form, data = await form_of(request, self._form_bytes)
        fields = fields_of_form(kind, form)
        shape, size = (await self._service.description()).shape, size_of(fields.size)
        image = await asyncio.to_thread(pixels_of, data, shape, size, self._settings.limits.pixels)
        return await self._in_openai_s_form(request, fields, image)

    async def _in_openai_s_form(self, request: Request, fields: ImageFields, image: Pixels | None) -> Response:
        model = await self._service.description()
        made = await self._made(request, wanted_of_fields(fields, image, model, self._settings.limits.n))
        if not len(made.images):
            raise _refusal_of(next(iter(made.missing.values())))
        texts = await asyncio.to_thread(lambda: [_png(pixels) for pixels in made.images])
        return JSONResponse({"created": stamp(), "data": [{"b64_json": text} for text in texts]})

    async def _made(self, request: Request, wanted: Any) -> Made:
        host = request.client.host if request.client else ""
        made = await self._service.make(wanted, f"{request.state.key}@{host}")
        request.state.images = len(made.images)
        return made

    def _answer_with(self, handler: Handler) -> Handler:
        """The handler, behind the key, counted and logged."""

        async def answer(request: Request) -> Response:
            began = time.monotonic()
            request.state.key, request.state.images = "", 0
            status = 499  # the client went away
            try:
                request.state.key = "" if request.scope["route"].path in _OPEN else self._key(request)
                asks = request.method == "POST"
                with self._service.admission.request(request.state.key) if asks else nullcontext():
                    response = await handler(request)
                status = response.status_code
                return response
            except Refusal as refusal:
                status = refusal.status
                raise
            except Exception as error:
                status = 503
                log.error("ingress broke", extra={"error": type(error).__name__})  # the message may hold a prompt
                raise unavailable("The server failed on this request") from None
            finally:
                path, seconds = request.scope["route"].path, time.monotonic() - began
                images, key = request.state.images, request.state.key
                self._metrics.answered(path, status, images, seconds)
                facts = {"path": path, "status": status, "images": images, "seconds": round(seconds, 4), "key": key}
                log.log(logging.DEBUG if path in _OPEN else logging.INFO, "answered", extra=facts)

        return answer

    def _key(self, request: Request) -> str:
        """Eight hex digits that stand for the key of a request; without keys, "local".

        Raises:
            Refusal: the key is not one of the server's; or it has none, and the request is not from the machine.
        """
        digests = self._settings.key_digests
        if not digests:
            if not _is_loopback(request.scope.get("server")):
                raise Refusal(401, "This server has no API keys, so it answers its own machine alone.")
            return "local"
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        digest = digest_of(given.strip())
        matches = [hmac.compare_digest(digest, known) for known in digests]  # all of them, whichever it is
        if kind.lower() != "bearer" or not any(matches):
            raise Refusal(401, "Send an API key of this server: Authorization: Bearer KEY.")
        return digest[:8]


def _is_loopback(server: Any) -> bool:
    """Whether a connection came in by the machine's own address."""
    try:
        return ipaddress.ip_address(server[0]).is_loopback
    except (TypeError, ValueError, IndexError):
        return False


def _refusal_of(miss: Refused | Failed) -> Refusal:
    """Why not one of a request's images came."""
    if isinstance(miss, Refused):
        return Refusal(400, f"{miss.reason}.", code="content_policy_violation")
    return unavailable(miss.reason) if miss.retryable else Refusal(400, f"{miss.reason}".rstrip(".") + ".")


def _png(pixels: Pixels) -> str:
    buffer = io.BytesIO()
    Image.fromarray(np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode()


async def _refused(_request: Request, error: Refusal) -> Response:
    return error.response()


async def _not_routed(_request: Request, error: HTTPException) -> Response:
    status = error.status_code if error.status_code in CODES else 400
    words = {404: "There is no such path; see /openapi.json", 405: "This path takes another method"}
    return Refusal(status, f"{words.get(status, 'The request cannot be read')}.").response()
