"""ComfyUI: workflows of your own, which a request fills in.

A request sets the prompt, the seed, the parent and the degree.

Read from ComfyUI's server.py and execution.py, version 0.3.64 (commit a125cd8, October 2025), and
its master of 2026 (server.py at 002c3fb, comfy_execution/jobs.py at 172be43): POST /prompt takes an
id of ours, `prompt_id`, which the newer one wants as a UUID; GET /history/{id} is empty until the
job has ended, GET /queue lists jobs that have not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from pydantic import AfterValidator, BeforeValidator, model_validator

from adapters.http import (
    Fault,
    ImageCall,
    Received,
    Scalar,
    Sending,
    Size,
    entries_at,
    object_of,
    value_at,
)
from adapters.http.answers import Pixels
from adapters.http.jobs import ByJobs, Ended, JobHost, JobStatus
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
    BeforeValidator(lambda one: one if isinstance(one, list) else [one], str | list[str]),
]
"""One or several places for a value, each NODE.INPUT: a node's id in the workflow's file, and the
name of an input."""


class Workflow(Settings):
    """A workflow, and where in it the values of a request go.

    Attributes:
        file: the workflow, exported from ComfyUI in API format.
        prompt: NODE.INPUT that takes the prompt, such as 6.text; here and below, one place or a
            list of places.
        seed: place that takes the seed.
        width: place that takes the width, if the workflow has one.
        height: place that takes the height, if the workflow has one.
        batch: place that takes the number of images of one request, if the workflow has one.
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
        image: place that takes the parent's name: the input `image` of a LoadImage node.
        denoise: place that takes the degree: a sampler's `denoise`. None: the degree is put in
            words.
    """

    image: Places
    denoise: Places | None = None


class ComfyUISettings(ByJobs):
    """Settings of `comfyui`.

    Attributes:
        base_url: the server's address, such as http://127.0.0.1:8188.
        random: the workflow that draws new images.
        variations: the workflow that varies an image.
        size: height and width that the workflows' places `height` and `width` take; None:
            `image_size`.
        batch: most images of one request; above 1, both workflows must name a place `batch`.
        concurrency: most jobs at once: ComfyUI works on one, the others wait in its queue.
    """

    random: Workflow
    variations: Variations
    size: Size | None = None
    batch: Count = 1
    concurrency: Count = 2

    @property
    def exact_field(self) -> str | None:
        """Name of the field that takes the degree as a number. None: the degree is put in words."""
        return None if self.variations.denoise is None else "denoise"

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that every image must have.

        None: any, since the workflows set the size.
        """
        has_sizes = all(flow.width and flow.height for flow in (self.random, self.variations))
        return (self.size or self.image_size) if has_sizes else None

    @model_validator(mode="after")
    def _check_places(self) -> ComfyUISettings:
        for name, flow in (("random", self.random), ("variations", self.variations)):
            if self.batch > 1 and flow.batch is None:
                raise RecipeError(
                    f"`batch` is {self.batch}, which needs `{name}.batch`. Name the place that "
                    "takes the number of images."
                )
            if self.size is not None and not (flow.width and flow.height):
                raise RecipeError(
                    f"`size` needs `{name}.width` and `{name}.height`. Name their places."
                )
        return self


class ComfyUI(JobHost[ComfyUISettings]):
    """For any model and workflow that your own ComfyUI runs. The degree is a sampler's `denoise`.

    RANDOM_API and VARIATION_API have a workflow each; a parent is uploaded.

    A request is a job under an id of ours, noted before the job is sent: after a kill none is paid
    twice. Images of one request share its seed, so a sample depends on the request that it came in.
    """

    Settings = ComfyUISettings
    batch = "batch"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._flows = {
            name: _read_workflow(getattr(self._config, name), name)
            for name in ("random", "variations")
        }

    def request(self, call: ImageCall) -> Sending:
        """Return the POST to /prompt, after uploading a parent and noting the job's id."""
        config = self._config
        name = "variations" if call.parents else "random"
        # All values, also those for which this workflow names no place.
        height, width = config.size or config.image_size
        values: dict[str, Scalar] = {
            "prompt": call.prompt,
            "seed": call.seed,
            "width": width,
            "height": height,
            "batch": len(call.seeds),
            **call.degree,
        }
        if call.parents:
            values["image"] = self._upload(call.parents[0])
        if not call.job.job:
            call.job.write(str(uuid4()))
        workflow = copy.deepcopy(self._flows[name])
        for value, place in _places(getattr(config, name)):
            node, _, key = place.partition(".")
            workflow[node]["inputs"][key] = values[value]
        return "/prompt", {"json": {"prompt": workflow, "prompt_id": call.job.job}}

    def job_status(self, job: str) -> JobStatus:
        """Return the state of a job, by the server's history and queue."""
        # Twice: a job may leave the queue for the history between two requests.
        for once_more in (True, False):
            entry = object_of(self._client.ask("GET", f"/history/{job}")).get(job)
            if isinstance(entry, dict):
                return _check_end(entry)
            queue = object_of(self._client.ask("GET", "/queue")) if once_more else {}
            items = [item for part in queue for item in entries_at(queue, part)]
            if any(isinstance(item, list) and job in item[:2] for item in items):
                return "waiting"
        return "unknown"

    def cancel(self, job: str) -> None:
        """Take the job out of the queue.

        Never interrupts a job: on old servers /interrupt stops whatever job is at work.
        """
        self._client.ask("POST", "/queue", json={"delete": [job]})

    def response(self, call: ImageCall, answer: Mapping[str, Any]) -> Received:
        """Fetch the images that the workflow saved."""
        flow = self._config.variations if call.parents else self._config.random
        images = _images(answer.get("outputs"), flow.output)
        return [self._picture(call, image) for image in images], None

    def _submit(self, call: ImageCall) -> None:
        path, request = self.request(call)
        answer = object_of(self._client.ask("POST", path, **request))
        if answer.get("prompt_id") != call.job.job:  # an old server, which chooses its own
            call.job.write(str(answer.get("prompt_id")))

    def _upload(self, parent: bytes) -> str:
        """Put a parent among the server's input images, and return its name there.

        Equal images have equal names.
        """
        name = f"private-evolution-{sha256(parent).hexdigest()[:32]}.png"
        files = {"image": (name, parent, "image/png")}
        fields = {"overwrite": "true", "type": "input"}
        answer = object_of(
            self._client.ask(
                "POST",
                "/upload/image",
                files=files,
                data=fields,
            )
        )
        if not isinstance(answer.get("name"), str):
            raise Fault.of_object(answer, "the server does not name the image that was uploaded")
        return "/".join(part for part in (answer.get("subfolder"), answer["name"]) if part)

    def _picture(self, call: ImageCall, image: Any) -> Pixels | Failed:
        if not isinstance(value_at(image, "filename"), str):
            return Failed("the server sent an entry without an image's name")
        place = {key: str(image.get(key) or "") for key in ("filename", "subfolder", "type")}
        get = partial(self._client.ask, "GET", "/view", params=place)
        return self._rule.fetch(json.dumps(place), get, call.images)


def _check_end(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the history of a job.

    Raise Ended if the job ended without a result.
    """
    if value_at(entry, "status", "status_str") != "error":
        return entry
    messages = entries_at(entry, "status", "messages")
    pairs = [message for message in messages if isinstance(message, list) and len(message) == 2]
    events = {str(event): data for event, data in pairs}
    if "execution_interrupted" in events:
        raise Ended("the job was cancelled at the server")
    error = events.get("execution_error")
    node = value_at(error, "node_type") or "the workflow"
    raise Ended(f"{node} failed: {value_at(error, 'exception_message') or 'without a word'}")


def _images(outputs: Any, node: str | int | None) -> list[Any]:
    """Return the images of a node.

    Without `node`, take the one node that saves images. Raise Ended if not exactly one does.
    """
    if node is not None:
        return entries_at(outputs, str(node), "images")
    results = {}
    for name in outputs if isinstance(outputs, dict) else ():
        images = entries_at(outputs, name, "images")
        # Previews have another type: they are not saved.
        if any(value_at(image, "type") == "output" for image in images):
            results[name] = images
    if len(results) != 1:
        nodes = f"nodes {', '.join(sorted(results))} do" if results else "none does"
        raise Ended(
            "one node of a workflow saves its images, unless `output` names the node, and here "
            f"{nodes}"
        )
    return next(iter(results.values()))


def _read_workflow(flow: Workflow, name: str) -> dict[str, Any]:
    """Read a workflow's file.

    Raise RecipeError if it holds no workflow, or lacks a place that the settings name.
    """
    try:
        workflow = json.loads(flow.file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"{name}.file: {flow.file} cannot be read ({error.strerror}). Name a workflow."
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"{name}.file: {flow.file} is no JSON ({error}). Export the workflow again."
        ) from None
    if not isinstance(workflow, dict) or not all(
        isinstance(node, dict) and isinstance(node.get("inputs"), dict) and "class_type" in node
        for node in workflow.values()
    ):
        raise RecipeError(
            f"{name}.file: {flow.file} is no workflow in API format. Export it as such (Export "
            "(API))."
        )
    for value, place in _places(flow):
        node, _, key = place.partition(".")
        inputs = workflow.get(node, {}).get("inputs", {})
        if key not in inputs:
            choices = [f"{node}.{other}" for other in inputs] or list(workflow)
            raise RecipeError(
                f"{name}.{value}: {flow.file} has no {place}; {nearest_name(place, choices)}"
            )
        if isinstance(inputs[key], list):
            raise RecipeError(
                f"{name}.{value}: {place} is connected to another node. Name an input of that."
            )
    return workflow


def _places(flow: Workflow) -> Iterator[tuple[str, str]]:
    """Yield the name of each value that the workflow takes, with each place that takes it."""
    places = flow.model_dump(exclude={"file", "output"}, exclude_none=True)
    for value, each in places.items():
        yield from ((value, place) for place in each)
