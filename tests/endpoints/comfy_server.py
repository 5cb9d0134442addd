"""ComfyUI's routes as its server.py has them (version 0.3.64, and its master of 2026)."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.job_host import JobHost, shades_of

RANDOM: dict[str, Any] = {
    "3": {"class_type": "KSampler", "inputs": {"seed": 1, "denoise": 1.0, "latent_image": ["5", 0]}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "pe", "images": ["8", 0]}},
}
VARIATIONS = RANDOM | {"10": {"class_type": "LoadImage", "inputs": {"image": "example.png"}}}
PLACES = {"prompt": "6.text", "seed": "3.seed", "width": "5.width", "height": "5.height", "batch": "5.batch_size"}


class ComfyServer(JobHost):
    """Jobs under ids that the client chooses."""

    knows = ("failed", "cancelled")

    def routes(self) -> list[Route]:
        self.uploads: dict[str, bytes] = {}
        return [
            Route("/upload/image", self.upload, methods=["POST"]),
            Route("/prompt", self.prompt, methods=["POST"]),
            Route("/history/{id}", self.history),
            Route("/queue", self.queue, methods=["GET", "POST"]),
            Route("/view", self.view),
        ]

    async def upload(self, request: Request) -> Response:
        async with request.form() as form:
            file = form["image"]
            assert (form["type"], form["overwrite"]) == ("input", "true")
            self.uploads[file.filename] = await file.read()
        return JSONResponse({"name": file.filename, "subfolder": "", "type": "input"})

    async def prompt(self, request: Request) -> Response:
        body = await request.json()
        flow, name = body["prompt"], body["prompt_id"]
        if str(uuid.UUID(name)) != name:
            error = {"type": "invalid_prompt_id", "message": "prompt_id must be a valid UUID"}
            return JSONResponse({"error": error, "node_errors": {}}, status_code=400)
        sampler, latent = flow["3"]["inputs"], flow["5"]["inputs"]
        if sampler["denoise"] == 0.125:
            error = {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation"}
            return JSONResponse({"error": error, "node_errors": {"3": {}}}, status_code=400)
        parent = None
        if "10" in flow:
            data = self.uploads[flow["10"]["inputs"]["image"]]
            parent = int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])
        self.start(name, flow, shades_of(sampler["seed"], latent["batch_size"], parent, sampler["denoise"]))
        return JSONResponse({"prompt_id": name, "number": len(self.jobs), "node_errors": {}})

    async def history(self, request: Request) -> Response:
        name = request.path_params["id"]
        job = self.look(name)
        if job is None or not self.ended(name):
            return JSONResponse({})
        images = [{"filename": f"{name}_{i}.png", "subfolder": "", "type": "output"} for i in range(len(job.images))]
        status: dict[str, Any] = {"status_str": "success", "completed": True, "messages": []}
        if job.outcome in ("failed", "cancelled"):
            error = {"node_type": "KSampler", "exception_message": "Allocation on device"}
            event = ["execution_error", error] if job.outcome == "failed" else ["execution_interrupted", {}]
            status = {"status_str": "error", "completed": False, "messages": [["execution_start", {}], event]}
        outputs = {"9": {"images": images}, "11": {"images": [image | {"type": "temp"} for image in images]}}
        return JSONResponse({name: {"prompt": [1, name, job.body, {}, ["9"]], "outputs": outputs, "status": status}})

    async def queue(self, request: Request) -> Response:
        if request.method == "POST":
            for name in (await request.json())["delete"]:
                del self.jobs[name]
            return Response()
        waiting = [[i, name, job.body, {}, ["9"]] for i, (name, job) in enumerate(self.jobs.items())]
        waiting = [item for item in waiting if self.jobs[item[1]].outcome != "unknown" and not self.ended(item[1])]
        return JSONResponse({"queue_running": waiting[:1], "queue_pending": waiting[1:]})

    async def view(self, request: Request) -> Response:
        assert request.query_params["type"] == "output"
        name, _, place = request.query_params["filename"].removesuffix(".png").rpartition("_")
        return Response(self.jobs[name].images[int(place)], media_type="image/png")


def workflows(folder: Path) -> dict[str, Any]:
    """The two workflows as files, and the settings that name their places."""
    for name, flow in (("random", RANDOM), ("variations", VARIATIONS)):
        (folder / f"{name}.json").write_text(json.dumps(flow))
    varied = PLACES | {"file": folder / "variations.json", "image": "10.image", "denoise": "3.denoise"}
    return {"random": PLACES | {"file": folder / "random.json"}, "variations": varied}
