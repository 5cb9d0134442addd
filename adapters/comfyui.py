"""ComfyUI: workflows of the user's own, in which a request fills in the prompt, the seed, the parent and the degree.

Read from ComfyUI's server.py and execution.py, version 0.3.64 (commit a125cd8, October 2025), and its master of 2026
(server.py at 002c3fb, comfy_execution/jobs.py at 172be43): POST /prompt takes an id of ours, `prompt_id`, which the
newer one wants as a UUID; GET /history/{id} is empty until the job has ended, GET /queue lists those that have not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from pydantic import AfterValidator, BeforeValidator, model_validator

from adapters.http import Asked, Received, Scalar, Size, object_of
from adapters.http.answers import Pixels
from adapters.http.client import fetched
from adapters.http.faults import Fault
from adapters.http.jobs import ByJobs, Ended, Finished, JobClient, JobGenerator, Look
from adapters.prompts import Ladder
from pe.errors import RecipeError, nearest_name
from pe.plugins.protocols import Failed
from pe.plugins.settings import Count, Settings


def _check_place(place: str) -> str:
    node, dot, name = place.partition(".")
    if not (node and dot and name):
        raise ValueError("a place is NODE.INPUT, such as 6.text")
    return place


Place = Annotated[str, AfterValidator(_check_place)]
Places = Annotated[
    list[Place],
    BeforeValidator(lambda given: given if isinstance(given, list) else [given], str | list[str]),
]
"""NODE.INPUT, the id of a node in the workflow's file and the name of one of its inputs; or several, for one value."""


class Workflow(Settings):
    """A workflow, and where in it the values of a request go.

    Attributes:
        file: the workflow, exported from ComfyUI in API format.
        prompt: NODE.INPUT that takes the prompt, such as 6.text; or a list of such.
        seed: takes the seed.
        width: takes the width, if the workflow sets one.
        height: takes the height.
        batch: takes the number of images of one request.
        output: id of the node whose images are the samples; None: the one that saves images.
    """

    file: Path
    prompt: Places
    seed: Places
    width: Places | None = None
    height: Places | None = None
    batch: Places | None = None
    output: str | int | None = None


class Variations(Workflow):
    """A workflow that varies an image.

    Attributes:
        image: takes the parent's name; the input `image` of a LoadImage node.
        denoise: takes the degree; a sampler's `denoise`. None: the degree is put in words.
    """

    image: Places
    denoise: Places | None = None


class ComfyUISettings(ByJobs):
    """What a recipe says of a ComfyUI server.

    Attributes:
        base_url: of the server, such as http://127.0.0.1:8188.
        random: the workflow that draws new images.
        variations: the workflow that varies one.
        size: height and width that `width` and `height` take; None: `image_size`.
        batch: most images of one request; above 1, both workflows have a place for it.
        concurrency: jobs at once, at the most: ComfyUI works on one, the others wait in its queue.
    """

    random: Workflow
    variations: Variations
    size: Size | None = None
    batch: Count = 1
    concurrency: Count = 2

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        if self.variations.denoise is None:
            return Ladder.of(self.wordings)
        return Ladder.of(self.wordings, "denoise", exact=True)

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that is asked for; None: the workflows say it."""
        sized = all(flow.width and flow.height for flow in (self.random, self.variations))
        return (self.size or self.image_size) if sized else None

    @model_validator(mode="after")
    def _check_places(self) -> ComfyUISettings:
        for name, flow in (("random", self.random), ("variations", self.variations)):
            if self.batch > 1 and flow.batch is None:
                raise RecipeError(f"batch is {self.batch}, and {name}.batch names no place that takes it: name one.")
            if self.size is not None and not (flow.width and flow.height):
                raise RecipeError(f"size is given, and {name} has no places for width and height: name them.")
        return self


class ComfyUI(JobGenerator[ComfyUISettings]):
    """RANDOM_API and VARIATION_API by a workflow each; a parent is uploaded, the degree is a sampler's `denoise`.

    A request is a job under an id of ours, noted before it is sent: a kill pays for none twice. Images of one request
    share its seed, so a sample depends on the request that it came in.
    """

    Settings = ComfyUISettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self._given
        self._flows = {name: _read_workflow(getattr(given, name), name) for name in ("random", "variations")}

    @property
    def _most(self) -> int:
        return self._given.batch

    def _submit(self, client: JobClient, asked: Asked) -> None:
        given, name = self._given, "variations" if asked.parents else "random"
        height, width = given.size or given.image_size
        values: dict[str, Scalar] = {
            "prompt": asked.prompt,
            "seed": asked.seed,
            "width": width,
            "height": height,
            "batch": len(asked.seeds),
            **asked.told,
        }
        if asked.parents:
            values["image"] = _upload(client, asked.parents[0])
        if not asked.job.job:
            asked.job.write(str(uuid4()))
        workflow = _filled(self._flows[name], getattr(given, name), values)
        answer = object_of(client.ask("POST", "/prompt", json={"prompt": workflow, "prompt_id": asked.job.job}))
        if answer.get("prompt_id") != asked.job.job:  # an old server, which chooses its own
            asked.job.write(str(answer.get("prompt_id")))

    def _look(self, client: JobClient, job: str) -> Look:
        for once_more in (True, False):  # a job leaves the queue for the history between two requests
            entry = object_of(client.ask("GET", f"/history/{job}")).get(job)
            if isinstance(entry, dict):
                return _ended(entry)
            queue = object_of(client.ask("GET", "/queue")) if once_more else {}
            listed = [item for part in queue.values() if isinstance(part, list) for item in part]
            if any(isinstance(item, list) and job in item[:2] for item in listed):
                return Look("waiting")
        return Look("unknown")

    def _cancel(self, client: JobClient, job: str) -> None:
        client.ask("POST", "/queue", json={"delete": [job]})  # /interrupt of old servers stops whatever is at work

    def _read(self, client: JobClient, sent: Finished) -> Received:
        flow = self._given.variations if sent.asked.parents else self._given.random
        return [
            self._picture(client, sent.asked, image) for image in _images(sent.answer.get("outputs"), flow.output)
        ], None

    def _picture(self, client: JobClient, asked: Asked, image: Any) -> Pixels | Failed:
        if not isinstance(image, dict) or not isinstance(image.get("filename"), str):
            return Failed("the server sent an entry without an image's name")
        place = {key: str(image.get(key) or "") for key in ("filename", "subfolder", "type")}
        data = fetched(json.dumps(place), lambda: client.ask("GET", "/view", params=place), asked.fetched)
        return data if isinstance(data, Failed) else self._rule.decode(data)


def _upload(client: JobClient, parent: bytes) -> str:
    """Put a parent among the server's input images; its name there, which is the same for the same image."""
    name = f"private-evolution-{sha256(parent).hexdigest()[:32]}.png"
    files, fields = {"image": (name, parent, "image/png")}, {"overwrite": "true", "type": "input"}
    answer = object_of(client.ask("POST", "/upload/image", files=files, data=fields))
    if not isinstance(answer.get("name"), str):
        raise Fault.of_object(answer, "the server does not name the image that was uploaded")
    return "/".join(part for part in (answer.get("subfolder"), answer["name"]) if part)


def _ended(entry: Mapping[str, Any]) -> Look:
    """What the history says of a job."""
    status = entry.get("status")
    if not isinstance(status, dict) or status.get("status_str") != "error":
        return Look("done", entry)
    messages = [message for message in status.get("messages") or () if isinstance(message, list) and len(message) == 2]
    if any(event == "execution_interrupted" for event, _ in messages):
        raise Ended("the job was cancelled at the server")
    error = next((data for event, data in messages if event == "execution_error" and isinstance(data, dict)), {})
    raise Ended(f"{error.get('node_type', 'the workflow')} failed: {error.get('exception_message', 'without a word')}")


def _images(outputs: Any, node: str | int | None) -> list[Any]:
    """The images that a workflow saved, or those of one node."""
    made = {
        str(name): output["images"]
        for name, output in (outputs if isinstance(outputs, dict) else {}).items()
        if isinstance(output, dict) and isinstance(output.get("images"), list)
    }
    if node is not None:
        return list(made.get(str(node), ()))
    saved = {
        name: images
        for name, images in made.items()
        if any(isinstance(image, dict) and image.get("type") == "output" for image in images)
    }
    if len(saved) != 1:
        found = f"nodes {', '.join(sorted(saved))} do" if saved else "none does"
        raise Ended(f"one node of a workflow saves its images, unless `output` names the node, and here {found}")
    return next(iter(saved.values()))


def _read_workflow(flow: Workflow, name: str) -> dict[str, Any]:
    """The workflow of a file, in which each place is found.

    Raises:
        RecipeError: it is none, or lacks a place.
    """
    try:
        workflow = json.loads(flow.file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{name}.file: {flow.file} cannot be read ({error.strerror}): name a workflow.") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{name}.file: {flow.file} is no JSON ({error}): export the workflow again.") from None
    if not isinstance(workflow, dict) or not all(
        isinstance(node, dict) and isinstance(node.get("inputs"), dict) and "class_type" in node
        for node in workflow.values()
    ):
        raise RecipeError(f"{name}.file: {flow.file} is no workflow in API format: export it as such (Export (API)).")
    for value, places in _places(flow):
        for place in places:
            node, _, key = place.partition(".")
            inputs = workflow.get(node, {}).get("inputs", {})
            if key not in inputs:
                known = [f"{node}.{other}" for other in inputs] or list(workflow)
                raise RecipeError(f"{name}.{value}: {flow.file} has no {place}; {nearest_name(place, known)}")
            if isinstance(inputs[key], list):
                raise RecipeError(f"{name}.{value}: {place} is connected to another node: name an input of that.")
    return workflow


def _places(flow: Workflow) -> list[tuple[str, list[str]]]:
    """Value → places, where the workflow takes the value."""
    values = [field for field in type(flow).model_fields if field not in ("file", "output")]
    return [(value, getattr(flow, value)) for value in values if getattr(flow, value) is not None]


def _filled(workflow: dict[str, Any], flow: Workflow, values: Mapping[str, Scalar]) -> dict[str, Any]:
    """A workflow with these values in their places."""
    filled = copy.deepcopy(workflow)
    for value, places in _places(flow):
        for place in places:
            node, _, key = place.partition(".")
            filled[node]["inputs"][key] = values[value]
    return filled
