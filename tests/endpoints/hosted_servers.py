"""Black Forest Labs, Replicate and fal as their documents and clients have them (named in our adapters)."""

from __future__ import annotations

import base64
import io
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.job_host import Job, JobHost, shades_of, worded

ELSEWHERE = "https://elsewhere.example/out.png"


class Hosted(JobHost):
    """Names its jobs itself, and images by addresses that want no key."""

    image_route = "/out/{id}/{place:int}"

    def view(self, name: str, job: Job) -> list[str]:
        """The addresses of a job's images."""
        own = [f"{self.base}/out/{name}/{i}" for i in range(len(job.images))]
        return [ELSEWHERE] * len(own) if job.outcome == "elsewhere" else own

    async def image(self, request: Request) -> Response:
        self.fetched.append(dict(request.headers))
        job = self.jobs[request.path_params["id"]]
        return Response(job.images[request.path_params["place"]], media_type="image/png")

    def take(self, body: dict[str, Any], seed: int, count: int, parent: str | None, degree: float) -> str:
        """Start a job; its id."""
        shade = None if parent is None else int(np.asarray(Image.open(io.BytesIO(_content(parent))))[0, 0, 0])
        name = f"job-{len(self.jobs)}-{sum(self.submitted.values())}"
        self.start(name, body, shades_of(seed, count, shade, degree))
        return name


class BFLServer(Hosted):
    """POST /v1/MODEL and the address that it names."""

    knows = ("refusal", "failed")
    poll_at = ""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/get_result", self.result),
            Route("/v1/{model}", self.submit, methods=["POST"]),
            Route(self.image_route, self.image),
        ]

    async def submit(self, request: Request) -> Response:
        body = await request.json()
        name = self.take(body, body["seed"], 1, body.get("input_image"), worded(body["prompt"]))
        where = f"{self.poll_at or self.base}/v1/get_result?id={name}"
        return JSONResponse({"id": name, "polling_url": where, "cost": 3.0, "input_mp": 0.0, "output_mp": 1.0})

    async def result(self, request: Request) -> Response:
        name = request.query_params["id"]
        job = self.look(name)
        if job is None:
            return JSONResponse({"id": name, "status": "Task not found", "result": None}, status_code=404)
        if not self.ended(name):
            return JSONResponse({"id": name, "status": "Pending", "result": None, "progress": 0.5})
        ends = {"refusal": "Content Moderated", "failed": "Error"}
        if status := ends.get(job.outcome):
            return JSONResponse({"id": name, "status": status, "result": None, "details": {"why": "it is told so"}})
        result = {"sample": self.view(name, job)[0], "prompt": job.body["prompt"], "seed": job.body["seed"]}
        return JSONResponse({"id": name, "status": "Ready", "result": result})


class ReplicateServer(Hosted):
    """Models with a description, files, and predictions."""

    submit_at = 1
    inputs: ClassVar[dict[str, Any]] = {
        "prompt": {"type": "string"},
        "image": {"type": "string", "format": "uri"},
        "prompt_strength": {"type": "number", "minimum": 0, "maximum": 1},
        "num_outputs": {"type": "integer"},
        "seed": {"type": "integer"},
        "width": {"type": "integer"},
        "height": {"type": "integer"},
    }

    def routes(self) -> list[Route]:
        self.files: list[bytes] = []
        return [
            Route("/v1/models/{owner}/{name}", self.model),
            Route("/v1/models/{owner}/{name}/versions/{version}", self.model),
            Route("/v1/models/{owner}/{name}/predictions", self.predict, methods=["POST"]),
            Route("/v1/predictions", self.predict, methods=["POST"]),
            Route("/v1/predictions/{id}", self.prediction),
            Route("/v1/predictions/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/files", self.upload, methods=["POST"]),
            Route(self.image_route, self.image),
        ]

    async def model(self, request: Request) -> Response:
        schema = {"type": "object", "title": "Input", "properties": self.inputs}
        version = {"id": "5c7d", "openapi_schema": {"components": {"schemas": {"Input": schema}}}}
        return JSONResponse(version if "version" in request.path_params else {"latest_version": version})

    async def upload(self, request: Request) -> Response:
        async with request.form() as form:
            self.files.append(await form["content"].read())
        return JSONResponse(
            {"id": "f", "urls": {"get": f"{self.base}/v1/files/{len(self.files) - 1}"}}, status_code=201
        )

    async def predict(self, request: Request) -> Response:
        body = await request.json()
        asked, parent = body["input"], body["input"].get("image")
        if parent is not None and not parent.startswith("data:"):
            parent = base64.b64encode(self.files[int(parent.rpartition("/")[2])]).decode()
        name = self.take(body, asked["seed"], asked["num_outputs"], parent, asked.get("prompt_strength", 1.0))
        return JSONResponse({"id": name, "status": "starting", "urls": {}, "output": None}, status_code=201)

    async def prediction(self, request: Request) -> Response:
        name = request.path_params["id"]
        job = self.look(name)
        if job is None:
            return JSONResponse(
                {"title": "Not found", "detail": "Prediction not found", "status": 404}, status_code=404
            )
        if not self.ended(name):
            return JSONResponse({"id": name, "status": "processing", "output": None, "error": None})
        ends: dict[str, dict[str, Any]] = {
            "refusal": {"status": "failed", "error": "NSFW content detected. Try running it again."},
            "failed": {"status": "failed", "error": "CUDA out of memory"},
            "cancelled": {"status": "canceled", "error": None},
        }
        done = {"status": "succeeded", "error": None, "output": self.view(name, job)}
        return JSONResponse({"id": name, "data_removed": False} | ends.get(job.outcome, done))

    async def cancel(self, request: Request) -> Response:
        del self.jobs[request.path_params["id"]]
        return JSONResponse({"status": "canceled"})


class FalServer(Hosted):
    """The queue, and descriptions of two models."""

    knows = ("refusal", "failed")
    submit_at = 1
    inputs: ClassVar[dict[str, Any]] = {
        "prompt": {"type": "string"},
        "num_images": {"type": "integer"},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "image_size": {"anyOf": [{"$ref": "#/components/schemas/ImageSize"}, {"type": "string"}]},
    }
    varying: ClassVar[dict[str, Any]] = {"image_url": {"type": "string"}, "strength": {"type": "number"}}

    def routes(self) -> list[Route]:
        return [
            Route("/openapi.json", self.describe),
            Route("/fal-ai/flux/requests/{id}/status", self.status),
            Route("/fal-ai/flux/requests/{id}/cancel", self.cancel, methods=["PUT"]),
            Route("/fal-ai/flux/requests/{id}", self.result),
            Route("/fal-ai/flux/{path:path}", self.submit, methods=["POST"]),
            Route(self.image_route, self.image),
        ]

    async def describe(self, request: Request) -> Response:
        self.fetched.append(dict(request.headers))
        name = request.query_params["endpoint_id"]
        varying = {field: schema for field, schema in self.inputs.items() if field != "image_size"} | self.varying
        inputs = varying if name.endswith("image-to-image") else self.inputs
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/FluxInput"}}}
        paths = {f"/{name}/requests/{{request_id}}": {}, f"/{name}": {"post": {"requestBody": {"content": content}}}}
        return JSONResponse({"paths": paths, "components": {"schemas": {"FluxInput": {"properties": inputs}}}})

    async def submit(self, request: Request) -> Response:
        body = {"path": request.path_params["path"], **await request.json()}
        parent, strength = body.get("image_url"), body.get("strength", 1)
        name = self.take(body, body["seed"], body["num_images"], parent, strength)
        where = f"{self.base}/fal-ai/flux/requests/{name}"
        urls = {"response_url": where, "status_url": f"{where}/status", "cancel_url": f"{where}/cancel"}
        return JSONResponse({"status": "IN_QUEUE", "request_id": name, "queue_position": 0, **urls})

    async def status(self, request: Request) -> Response:
        name = request.path_params["id"]
        if self.look(name) is None:
            return JSONResponse({"detail": "Request not found"}, status_code=404)
        if not self.ended(name):
            return JSONResponse({"status": "IN_PROGRESS", "logs": []}, status_code=202)
        return JSONResponse({"status": "COMPLETED", "logs": [], "metrics": {}})

    async def result(self, request: Request) -> Response:
        name = request.path_params["id"]
        job = self.jobs[name]
        if job.outcome in ("refusal", "failed"):
            refused = {"msg": "The content could not be processed.", "type": "content_policy_violation"}
            failed = {"msg": "Could not generate images", "type": "image_load_error"}
            detail = [{"loc": ["body", "prompt"], **(refused if job.outcome == "refusal" else failed)}]
            return JSONResponse({"detail": detail}, status_code=422)
        images = [{"url": url, "width": 16, "height": 16, "content_type": "image/png"} for url in self.view(name, job)]
        flags = [job.outcome == "flagged" and i == 0 for i in range(len(images))]
        return JSONResponse({"images": images, "has_nsfw_concepts": flags, "seed": job.body["seed"]})

    async def cancel(self, request: Request) -> Response:
        del self.jobs[request.path_params["id"]]
        return JSONResponse({"status": "CANCELLATION_REQUESTED"}, status_code=202)


def _content(parent: str) -> bytes:
    return base64.b64decode(parent.partition(",")[2] if parent.startswith("data:") else parent)
