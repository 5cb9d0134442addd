"""ComfyUI's routes as its server.py has them (version 0.3.64, and its master of 2026)."""

import json
import uuid
from typing import Any

from tests.endpoints.hosted import JobHost, on, shade_of, shades_of

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
            return 400, {"error": {"message": "Prompt outputs failed validation"}, "node_errors": {"3": {}}}
        parent = shade_of(self.uploads[flow["10"]["inputs"]["image"]]) if "10" in flow else None
        self.start(name, flow, shades_of(sampler["seed"], latent["batch_size"], parent, sampler["denoise"]))
        return {"prompt_id": name, "number": len(self.jobs), "node_errors": {}}

    @on("GET /history/{name}")
    def history(self, asked, name):
        job = self.look(name)
        if job is None or not self.ended(name):
            return {}
        images = [{"filename": f"{name}_{i}.png", "subfolder": "", "type": "output"} for i in range(len(job.images))]
        status: dict[str, Any] = {"status_str": "success", "completed": True, "messages": []}
        if job.outcome in ("failed", "cancelled"):
            error = {"node_type": "KSampler", "exception_message": "Allocation on device"}
            event = ["execution_error", error] if job.outcome == "failed" else ["execution_interrupted", {}]
            status = {"status_str": "error", "completed": False, "messages": [["execution_start", {}], event]}
        outputs = {"9": {"images": images}, "11": {"images": [image | {"type": "temp"} for image in images]}}
        return {name: {"prompt": [1, name, job.body, {}, ["9"]], "outputs": outputs, "status": status}}

    @on("GET /queue")
    def queue(self, asked):
        waiting = [name for name, job in self.jobs.items() if job.outcome != "unknown" and not self.ended(name)]
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
    varied = PLACES | {"file": folder / "variations.json", "image": "10.image", "denoise": "3.denoise"}
    return {"random": PLACES | {"file": folder / "random.json"}, "variations": varied}
