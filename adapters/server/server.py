"""The Ray Serve deployment: each replica answers over HTTP with its own copy of the model.

Of a request the log holds its path, status, number of images, seconds and shortened key digest, and
nothing more.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from adapters.diffusion.items import Item, Job, Outcome
from adapters.server.batching import Batcher
from adapters.server.bodies import (
    FORM,
    JSON,
    MOST_OF_FIELDS,
    EditFields,
    GenerationFields,
    ImageFields,
    VariationFields,
    pixels_of,
    read_body,
    read_form,
    read_json_body,
)
from adapters.server.checks import (
    ModelDescription,
    ServeSettings,
    check_request,
    digest_of,
    is_loopback,
    names_loopback,
)
from adapters.server.errors import Error, Refusal, refusal_of, unavailable
from adapters.server.formats import (
    ARRAYS,
    BatchRequest,
    FormatError,
    Pixels,
    pack_answer,
    read_request,
)
from adapters.server.metrics import Metrics, exported
from adapters.server.models import load_served_model
from pe.data.images import Images
from pe.plugins.protocols import Failed, Refused
from pe.version import __version__

log = logging.getLogger("ray.serve")

Bearer = Annotated[
    HTTPAuthorizationCredentials | None,
    Security(HTTPBearer(auto_error=False, scheme_name="key")),
]
_FILE = {"schema": {"type": "string", "format": "binary"}}
_GIVES_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {ARRAYS: _FILE}}}


class EncodedImage(BaseModel):
    """An image: a PNG file in base64."""

    b64_json: str


class ImagesAnswer(BaseModel):
    """The answer in OpenAI's form."""

    created: int
    data: list[EncodedImage]


class Server:
    """The application, in which every refusal has the body `errors.Error`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        _keep_prompts_out_of_logs()
        self._settings = ServeSettings.model_validate(settings)
        engine, self._model = load_served_model(self._settings)
        self._entry = _entry(self._model, self._settings)
        self._batcher = Batcher(engine.run, self._model.batch, Metrics().count_batch)
        self._requests: Counter[str] = Counter()  # requests under way, by key
        self._images = 0  # images under way

    def check_health(self) -> None:
        """Raise RuntimeError if the engine is broken, so that Ray replaces the replica."""
        self._batcher.check_health(self._settings.limits.seconds)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application that Ray serves."""
        app = FastAPI(
            title="pe serve",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
            responses={"default": {"model": Error, "description": "An error."}},
            exception_handlers={HTTPException: _answer_error},
        )
        # The routes read their bodies themselves: FastAPI would read them before `_admit` has
        # checked the key.
        routes = APIRouter(dependencies=[Depends(self._admit)])
        routes.post("/v1/images/generations", **_takes(JSON, GenerationFields))(self.generations)
        routes.post("/v1/images/edits", **_takes(FORM, EditFields))(self.edits)
        routes.post("/v1/images/variations", **_takes(FORM, VariationFields))(self.variations)
        routes.post(
            "/v1/batch/images", response_class=Response, **_takes(ARRAYS), responses=_GIVES_FILE
        )(self.batch)
        routes.get("/v1/models")(self.models)
        routes.get("/v1/models/{model:path}")(self.model)
        routes.get("/metrics", response_class=PlainTextResponse)(self.metrics)
        app.include_router(routes)
        for path in ("/healthz", "/readyz"):
            app.get(path)(self.healthz)
            app.head(path, include_in_schema=False)(self.healthz)
        app.openapi()["info"]["x-limits"] = self._settings.limits.model_dump()
        return app

    async def generations(self, request: Request) -> ImagesAnswer:
        """Draw new images."""
        fields = GenerationFields.model_validate(await read_json_body(request))
        return await self._in_openai_form(request, fields)

    async def edits(self, request: Request) -> ImagesAnswer:
        """Vary an image under a prompt."""
        return await self._varied(request, EditFields)

    async def variations(self, request: Request) -> ImagesAnswer:
        """Vary an image."""
        return await self._varied(request, VariationFields)

    async def batch(self, request: Request) -> Response:
        """Make many images of one job, with a safetensors file each way.

        Arrays for n images: seeds uint64 (n,), and as needed images uint8 (n,h,w,c) and classes
        int64 (n,). The key `job` of the metadata holds JSON, all keys as needed: degree of
        `images`; steps; guidance; size [height, width]; prompts and negative_prompts, n each;
        model; vary, the way in which the server must vary images. The answer: images uint8
        (m,h,w,c); places int64 (m,), their places among the n; in `job` the key `missing`: a list
        of [place, reason, refused, retryable] for each image that was not made.
        """
        body = await read_body(request, ARRAYS, self._settings.limits.body)
        try:
            batch = await asyncio.to_thread(read_request, body)
        except FormatError as error:
            raise Refusal(400, str(error)) from error
        outcomes = await self._make(request, batch)
        return Response(await asyncio.to_thread(pack_answer, outcomes), media_type=ARRAYS)

    async def models(self) -> dict[str, Any]:
        """Describe the one model for clients."""
        return {"object": "list", "data": [self._entry]}

    async def model(self, model: str) -> dict[str, Any]:
        """Describe the model by its name."""
        if model != self._entry["id"]:
            raise Refusal(
                404, f"The model served here is '{self._entry['id']}'.", "model", "model_not_found"
            )
        return self._entry

    async def metrics(self) -> PlainTextResponse:
        """Return the metrics of all nodes for Prometheus."""
        return PlainTextResponse(
            await asyncio.to_thread(exported), media_type="text/plain; version=0.0.4"
        )

    async def healthz(self) -> dict[str, str]:
        """Answer that a replica is ready."""
        return {"status": "ok"}

    async def _admit(self, request: Request, bearer: Bearer) -> AsyncIterator[None]:
        """Check the key and its number of requests before a body is read, and log the answer."""
        began = time.monotonic()
        status = 499  # the client went away
        key = ""
        request.state.images = 0
        try:
            key = self._key_of(request, bearer.credentials if bearer else "")
            with self._counted(key) if request.method == "POST" else nullcontext():
                yield
            status = 200
        except Exception as error:
            refusal = refusal_of(error)
            status = refusal.status_code
            raise refusal from None
        finally:
            facts = {
                "path": request.scope["route"].path,
                "status": status,
                "images": request.state.images,
                "key": key,
            }
            log.info("answered", extra=facts | {"seconds": round(time.monotonic() - began, 4)})

    @contextmanager
    def _counted(self, key: str) -> Iterator[None]:
        """Count a request while it is under way, and refuse it (429) at the key's limit."""
        if self._requests[key] >= self._settings.limits.requests:
            why = (
                f"This key has {self._requests[key]} requests under way, which is its limit. "
                "Wait for one to finish."
            )
            raise Refusal(429, why, wait=1)
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1

    def _key_of(self, request: Request, key: str) -> str:
        """Return eight hex digits of the key's digest, or "local" on a server without keys.

        Strangers are refused (401).
        """
        digests = self._settings.key_digests
        if not digests:
            if not is_loopback((request.scope.get("server") or ("",))[0]):
                raise Refusal(
                    401, "This server has no API keys, so it answers only its own machine."
                )
            addresses = (
                f"//{request.headers.get('host', '')}",
                request.headers.get("origin", "//localhost"),
            )
            # otherwise a page of another site could ask, in a browser on this machine
            if not all(map(names_loopback, addresses)):
                raise Refusal(
                    401,
                    (
                        "This server has no API keys. Call it as 127.0.0.1 or localhost, and from "
                        "no other site."
                    ),
                )
            return "local"
        digest = digest_of(key.strip())
        # compared with all of them, so that the time tells nothing
        matches = [hmac.compare_digest(digest, each) for each in digests]
        if not key or not any(matches):
            raise Refusal(401, "Send an API key of this server: Authorization: Bearer KEY.")
        return digest[:8]

    async def _varied(self, request: Request, kind: type[EditFields]) -> ImagesAnswer:
        limits = self._settings.limits
        form = await read_form(request, min(limits.body, 8 * limits.pixels + MOST_OF_FIELDS))
        fields = kind.model_validate(form)
        image = await asyncio.to_thread(
            pixels_of, fields.image, self._model.shape, fields.sides, limits.pixels
        )
        return await self._in_openai_form(request, fields, image, fields.strength)

    async def _in_openai_form(
        self,
        request: Request,
        fields: ImageFields,
        image: Pixels | None = None,
        degree: float | None = None,
    ) -> ImagesAnswer:
        wanted = fields.to_request(self._model, self._settings.limits.n, image, degree)
        outcomes = await self._make(request, wanted)
        images = [outcome for outcome in outcomes if isinstance(outcome, np.ndarray)]
        if not images:
            raise _refusal_of_image(outcomes[0])
        files = await asyncio.to_thread(lambda: [*Images(np.stack(images)).files()])
        encoded = [EncodedImage(b64_json=base64.b64encode(file).decode()) for file in files]
        return ImagesAnswer(created=int(time.time()), data=encoded)

    async def _make(self, request: Request, wanted: BatchRequest) -> list[Outcome]:
        """Make the images, or return for each why it was not made.

        Raises:
            Refusal: there is no room, or it takes too long.
        """
        limits = self._settings.limits
        wanted = check_request(wanted, self._model, self._settings)
        if self._images and self._images + len(wanted) > limits.waiting:
            raise Refusal(429, f"The server is full: {self._images} images are under way.", wait=2)
        self._images += len(wanted)
        try:
            async with asyncio.timeout(limits.seconds):
                outcomes = await self._batcher.make(_items(wanted))
        except TimeoutError as error:
            raise unavailable("The images were not finished in time") from error
        finally:
            self._images -= len(wanted)
        request.state.images = sum(isinstance(outcome, np.ndarray) for outcome in outcomes)
        return outcomes


def _entry(model: ModelDescription, settings: ServeSettings) -> dict[str, Any]:
    """Return what /v1/models tells of the model: OpenAI's fields, and ours under `pe`."""
    defaults = {
        "steps": settings.steps,
        "guidance_scale": settings.guidance,
        "limits": settings.limits.model_dump(),
    }
    own = asdict(model) | {"degree": model.degree} | defaults
    return {
        "id": model.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pe",
        "pe": own,
    }


def _takes(kind: str, fields: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return the OpenAPI entry of a body that the route reads itself.

    The body is JSON or a form of these fields, or a file.
    """
    content = {"schema": fields.model_json_schema()} if fields else _FILE
    return {"openapi_extra": {"requestBody": {"required": True, "content": {kind: content}}}}


def _items(wanted: BatchRequest) -> list[Item]:
    """Return the items of a checked request."""
    assert wanted.steps is not None
    job = Job(wanted.steps, wanted.degree, wanted.guidance, wanted.size)
    none = [None] * len(wanted)
    images: Any = none if wanted.images is None else wanted.images
    classes: Any = none if wanted.classes is None else wanted.classes.tolist()
    prompts = wanted.prompts or [""] * len(wanted)
    negative = wanted.negative_prompts or [""] * len(wanted)
    columns = zip(
        wanted.seeds.tolist(),
        images,
        prompts,
        negative,
        classes,
        strict=True,
    )
    return [Item(job, *column) for column in columns]


def _refusal_of_image(miss: Outcome) -> Refusal:
    """Return the refusal that tells why none of a request's images was made."""
    if isinstance(miss, Failed):
        return (
            unavailable(miss.reason)
            if miss.retryable
            else Refusal(400, f"{miss.reason.rstrip('.')}.")
        )
    assert isinstance(miss, Refused)
    return Refusal(400, f"{miss.reason}.", code="content_policy_violation")


async def _answer_error(_request: Request, error: Exception) -> Response:
    return refusal_of(error).response()


def _keep_prompts_out_of_logs() -> None:
    """Silence the libraries' warnings, which quote prompts that are too long for a model."""
    from diffusers.utils import logging as diffusers_log
    from transformers.utils import logging as transformers_log

    diffusers_log.set_verbosity(logging.CRITICAL)
    transformers_log.set_verbosity(logging.CRITICAL)
