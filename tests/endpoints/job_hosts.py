"""Black Forest Labs, Replicate and fal as their documents have them, ComfyUI as its server.py
(0.3.64, 2026) has.
"""

import base64
import json
import uuid
from contextlib import contextmanager
from typing import Any

from adapters.comfyui import ComfyUI
from adapters.job_hosts import BFL, Fal, Replicate
from tests.endpoints.hosted import JobHost, degree_of, on, shade_of, shades_of
from tests.endpoints.serving import serving

ELSEWHERE = "https://elsewhere.example/out.png"


class HostedModels(JobHost):
    """Names its jobs itself, and images by addresses that want no key."""

    def view(self, name, job):
        """The addresses of a job's images."""
        own = [f"{self.base}/out/{name}/{i}" for i in range(len(job.images))]
        return [ELSEWHERE] * len(own) if job.outcome == "elsewhere" else own

    @on("GET /out/{name}/{place}")
    def image(self, asked, name, place):
        self.fetched.append(asked.headers)
        return self.jobs[name].images[int(place)]

    def take(self, body, seed, count, parent, degree):
        """Start a job; its id."""
        name = f"job-{len(self.jobs)}-{sum(self.submitted.values())}"
        self.start(
            name, body, shades_of(seed, count, None if parent is None else shade_of(parent), degree)
        )
        return name


class BFLServer(HostedModels):
    """POST /v1/MODEL and the address that it names."""

    knows = ("refusal", "failed")
    poll_at = ""

    @on("POST /v1/{model}")
    def submit(self, asked, model):
        body = asked.body
        name = self.take(body, body["seed"], 1, body.get("input_image"), degree_of(body["prompt"]))
        return {"id": name, "polling_url": f"{self.poll_at or self.base}/v1/get_result?id={name}"}

    @on("GET /v1/get_result")
    def result(self, asked):
        name = asked.query["id"]
        job = self.look(name)
        if job is None:
            return 404, {"id": name, "status": "Task not found", "result": None}
        if not self.ended(name):
            return {"id": name, "status": "Pending", "result": None, "progress": 0.5}
        ends = {"refusal": "Content Moderated", "failed": "Error"}
        if status := ends.get(job.outcome):
            return {
                "id": name,
                "status": status,
                "result": None,
                "details": {"why": "it is told so"},
            }
        return {"id": name, "status": "Ready", "result": {"sample": self.view(name, job)[0]}}


class ReplicateServer(HostedModels):
    """Models with a description, files, and predictions."""

    submit_at = 1

    def __init__(self):
        super().__init__()
        self.files: list[bytes] = []
        self.inputs: dict[str, Any] = {
            "prompt": {"type": "string"},
            "image": {"type": "string", "format": "uri"},
            "prompt_strength": {"type": "number", "minimum": 0, "maximum": 1},
            **{name: {"type": "integer"} for name in ("num_outputs", "seed", "width", "height")},
        }

    @on(
        "GET /v1/models/black-forest-labs/flux-dev",
        "GET /v1/models/stability-ai/sdxl/versions/5c7d",
    )
    def model(self, asked):
        schema = {"type": "object", "title": "Input", "properties": self.inputs}
        version = {"id": "5c7d", "openapi_schema": {"components": {"schemas": {"Input": schema}}}}
        return version if "versions" in asked.path else {"latest_version": version}

    @on("POST /v1/files")
    def upload(self, asked):
        self.files.append(asked.file)
        return 201, {"id": "f", "urls": {"get": f"{self.base}/v1/files/{len(self.files) - 1}"}}

    @on("POST /v1/models/black-forest-labs/flux-dev/predictions", "POST /v1/predictions")
    def predict(self, asked):
        inputs = asked.body["input"]
        parent = inputs.get("image")
        if parent is not None and not parent.startswith("data:"):
            parent = base64.b64encode(self.files[int(parent.rpartition("/")[2])]).decode()
        degree = inputs.get("prompt_strength", 1.0)
        name = self.take(asked.body, inputs["seed"], inputs["num_outputs"], parent, degree)
        return 201, {"id": name, "status": "starting", "output": None}

    @on("GET /v1/predictions/{name}")
    def prediction(self, asked, name):
        job = self.look(name)
        if job is None:
            return 404, {"title": "Not found", "detail": "Prediction not found", "status": 404}
        if not self.ended(name):
            return {"id": name, "status": "processing", "output": None, "error": None}
        ends = {
            "refusal": {
                "status": "failed",
                "error": "NSFW content detected. Try running it again.",
            },
            "failed": {"status": "failed", "error": "CUDA out of memory"},
            "cancelled": {"status": "canceled", "error": None},
        }
        done = {"status": "succeeded", "error": None, "output": self.view(name, job)}
        return {"id": name, "data_removed": False} | ends.get(job.outcome, done)

    @on("POST /v1/predictions/{name}/cancel")
    def cancel(self, asked, name):
        del self.jobs[name]
        return {"status": "canceled"}


class FalServer(HostedModels):
    """The queue, and descriptions of two models."""

    knows = ("refusal", "failed")
    submit_at = 1

    @on("GET /openapi.json")
    def describe(self, asked):
        self.fetched.append(asked.headers)
        name = asked.query["endpoint_id"]
        inputs: dict[str, Any] = {"prompt": {"type": "string"}, "num_images": {"type": "integer"}}
        inputs["seed"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        if name.endswith("image-to-image"):
            inputs |= {"image_url": {"type": "string"}, "strength": {"type": "number"}}
        else:
            inputs["image_size"] = {
                "anyOf": [{"$ref": "#/components/schemas/ImageSize"}, {"type": "string"}]
            }
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/FluxInput"}}}
        paths = {
            f"/{name}/requests/{{request_id}}": {},
            f"/{name}": {"post": {"requestBody": {"content": content}}},
        }
        return {"paths": paths, "components": {"schemas": {"FluxInput": {"properties": inputs}}}}

    @on("POST /fal-ai/flux/{path}")
    def submit(self, asked, path):
        body = {"path": path, **asked.body}
        name = self.take(
            body, body["seed"], body["num_images"], body.get("image_url"), body.get("strength", 1)
        )
        where = f"{self.base}/fal-ai/flux/requests/{name}"
        return {"status": "IN_QUEUE", "request_id": name, "response_url": where}

    @on("GET /fal-ai/flux/requests/{name}/status")
    def status(self, asked, name):
        if self.look(name) is None:
            return 404, {"detail": "Request not found"}
        return (
            (200, {"status": "COMPLETED"})
            if self.ended(name)
            else (202, {"status": "IN_PROGRESS", "logs": []})
        )

    @on("GET /fal-ai/flux/requests/{name}")
    def result(self, asked, name):
        job = self.jobs[name]
        if job.outcome in ("refusal", "failed"):
            refused = {
                "msg": "The content could not be processed.",
                "type": "content_policy_violation",
            }
            failed = {"msg": "Could not generate images", "type": "image_load_error"}
            return 422, {"detail": [refused if job.outcome == "refusal" else failed]}
        images = [{"url": url, "content_type": "image/png"} for url in self.view(name, job)]
        flags = [job.outcome == "flagged" and i == 0 for i in range(len(images))]
        return {"images": images, "has_nsfw_concepts": flags}

    @on("PUT /fal-ai/flux/requests/{name}/cancel")
    def cancel(self, asked, name):
        del self.jobs[name]
        return {"status": "CANCELLATION_REQUESTED"}


RANDOM: dict[str, Any] = {
    "3": {
        "class_type": "KSampler",
        "inputs": {"seed": 1, "denoise": 1.0, "latent_image": ["5", 0]},
    },
    "5": {
        "class_type": "EmptyLatentImage",
        "inputs": {"width": 512, "height": 512, "batch_size": 1},
    },
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "pe", "images": ["8", 0]}},
}
VARIATIONS = RANDOM | {"10": {"class_type": "LoadImage", "inputs": {"image": "example.png"}}}
PLACES = {
    "prompt": "6.text",
    "seed": "3.seed",
    "width": "5.width",
    "height": "5.height",
    "batch": "5.batch_size",
}


class ComfyServer(JobHost):
    """Jobs under ids that the client chooses."""

    knows = ("failed", "cancelled")

    def __init__(self):
        super().__init__()
        self.uploads: dict[str, bytes] = {}

    @on("POST /upload/image")
    def upload(self, asked):
        assert asked.body == {"type": "input", "overwrite": "true"}
        name = f"{len(self.uploads)}.png"
        self.uploads[name] = asked.file
        return {"name": name, "subfolder": "", "type": "input"}

    @on("POST /prompt")
    def prompt(self, asked):
        flow, name = asked.body["prompt"], asked.body["prompt_id"]
        if str(uuid.UUID(name)) != name:
            return 400, {"error": {"message": "prompt_id must be a valid UUID"}}
        sampler, latent = flow["3"]["inputs"], flow["5"]["inputs"]
        if sampler["denoise"] == 0.125:
            return 400, {
                "error": {"message": "Prompt outputs failed validation"},
                "node_errors": {"3": {}},
            }
        parent = shade_of(self.uploads[flow["10"]["inputs"]["image"]]) if "10" in flow else None
        self.start(
            name, flow, shades_of(sampler["seed"], latent["batch_size"], parent, sampler["denoise"])
        )
        return {"prompt_id": name, "number": len(self.jobs), "node_errors": {}}

    @on("GET /history/{name}")
    def history(self, asked, name):
        job = self.look(name)
        if job is None or not self.ended(name):
            return {}
        images = [
            {"filename": f"{name}_{i}.png", "subfolder": "", "type": "output"}
            for i in range(len(job.images))
        ]
        status: dict[str, Any] = {"status_str": "success", "completed": True, "messages": []}
        if job.outcome in ("failed", "cancelled"):
            error = {"node_type": "KSampler", "exception_message": "Allocation on device"}
            event = (
                ["execution_error", error]
                if job.outcome == "failed"
                else ["execution_interrupted", {}]
            )
            status = {
                "status_str": "error",
                "completed": False,
                "messages": [["execution_start", {}], event],
            }
        outputs = {
            "9": {"images": images},
            "11": {"images": [image | {"type": "temp"} for image in images]},
        }
        return {
            name: {"prompt": [1, name, job.body, {}, ["9"]], "outputs": outputs, "status": status}
        }

    @on("GET /queue")
    def queue(self, asked):
        waiting = [
            name
            for name, job in self.jobs.items()
            if job.outcome != "unknown" and not self.ended(name)
        ]
        items = [[i, name, self.jobs[name].body, {}, ["9"]] for i, name in enumerate(waiting)]
        return {"queue_running": items[:1], "queue_pending": items[1:]}

    @on("POST /queue")
    def delete(self, asked):
        for name in asked.body["delete"]:
            del self.jobs[name]
        return {}

    @on("GET /view")
    def view(self, asked):
        assert asked.query["type"] == "output"
        name, _, place = asked.query["filename"].removesuffix(".png").rpartition("_")
        return self.jobs[name].images[int(place)]


def workflows(folder):
    """The two workflows as files, and the settings that name their places."""
    for name, flow in (("random", RANDOM), ("variations", VARIATIONS)):
        (folder / f"{name}.json").write_text(json.dumps(flow))
    varied = PLACES | {
        "file": folder / "variations.json",
        "image": "10.image",
        "denoise": "3.denoise",
    }
    return {"random": PLACES | {"file": folder / "random.json"}, "variations": varied}


SERVERS = {"bfl": BFLServer, "comfyui": ComfyServer, "fal": FalServer, "replicate": ReplicateServer}


def generator(kind, url, folder, **settings):
    """Our adapter, of a host at `url`."""
    given = {
        "base_url": url,
        "prompts": "a {label}",
        "image_size": 16,
        "timeout": 1.0,
        "poll": 0.002,
        **settings,
    }
    if kind == "comfyui":
        return ComfyUI(**workflows(folder) | given)
    given = {"key_env": None, **given}
    if kind == "bfl":
        return BFL(**{"model": "flux-2-pro", "size": (16, 16)} | given)
    if kind == "replicate":
        return Replicate(
            **{"model": "black-forest-labs/flux-dev", "degree_field": "prompt_strength"} | given
        )
    models = {"model": "fal-ai/flux/dev", "variation_model": "fal-ai/flux/dev/image-to-image"}
    return Fal(
        **models | {"degree_field": "strength", "description_url": f"{url}/openapi.json"} | given
    )


@contextmanager
def hosted(kind, folder, **settings):
    """The adapter over a server of its own."""
    server = SERVERS[kind]()
    with serving(server) as url:
        yield generator(kind, url, folder, **settings), server
