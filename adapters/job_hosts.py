"""Hosts that answer by jobs: Black Forest Labs, fal and Replicate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from adapters.http import (
    Fault,
    ImageCall,
    OnFirstUse,
    Received,
    Rejected,
    Scalar,
    Sending,
    Size,
    base64_of,
    data_uri,
    entries_at,
    hosted_starter,
    non_null,
    object_of,
    value_at,
)
from adapters.http.host import sides
from adapters.http.jobs import ByJobs, Ended, JobHost, JobStatus
from pe.errors import nearest_name
from pe.plugins.protocols import Refused
from pe.plugins.settings import Count


class OfModels(ByJobs):
    """Settings of a host that serves models by name.

    Attributes:
        model: the model's name at the host.
        variation_model: the model that varies images, if it is another one; None: `model`.
        size: height and width that the model is asked for; None: its default.
    """

    model: str
    variation_model: str | None = None
    size: Size | None = None

    def model_for(self, call: ImageCall) -> str:
        """Return the model for a call."""
        return (self.variation_model or self.model) if call.parents else self.model


# Black Forest Labs: FLUX by its own API, whose variations are edits of `input_image` by a wording.
#
# From black-forest-labs/skills (bfl-api, commit d0793c8, February 2026) and docs.bfl.ai's page on
# errors: the answer's `polling_url` is asked with the key; an image's address is valid for ten
# minutes. A status that is not known counts as at work. No key against double submission is
# documented. Not confirmed: the HTTP status of Task not found; how long a result can be asked for.


class BFLSettings(OfModels):
    """Settings of `bfl`.

    Attributes:
        model: the last part of the model's address, such as flux-2-pro.
        base_url: the API's address; https://api.eu.bfl.ai stays in Europe.
        size: height and width that are asked for, multiples of 16; None: the model's default.
        extra: further fields of a request, sent unchanged (safety_tolerance, steps, guidance …).
    """

    base_url: str = "https://api.bfl.ai"
    key_env: str | None = "BFL_API_KEY"
    concurrency: Count = 8
    extra: dict[str, Scalar] | None = None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that every image must have. None: any."""
        return self.size


class BFL(JobHost[BFLSettings]):
    """FLUX by Black Forest Labs, its maker. The degree is put in words. One image per job."""

    Settings = BFLSettings
    job_field = "polling_url"
    key_hosts = result_hosts = ("bfl.ai",)
    key_header = "x-key"
    starter = hosted_starter(
        "model: flux-2-pro\t# the last part of the model's address",
        "key_env: BFL_API_KEY\t# the environment variable that holds the key",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to the model."""
        config = self._config
        body: dict[str, Any] = {
            "output_format": "png",
            **(config.extra or {}),
            "prompt": call.prompt,
            "seed": call.seed,
            **sides(config.size),
        }
        if call.parents:
            body["input_image"] = base64_of(call.parents[0])
        return f"/v1/{config.model_for(call)}", {"json": body}

    def job_status(self, job: str) -> JobStatus:
        """Return the state of a job, by a GET of its polling address."""
        answer = self._client.find(job)
        status = "Task not found" if answer is None else answer.get("status")
        if answer is None or status == "Task not found":
            return "unknown"
        if status in ("Request Moderated", "Content Moderated"):
            raise Ended(str(status), is_refusal=True)
        if status in ("Error", "Failed"):
            raise Ended(Fault.of_object(answer, f"the job ended as {status}").words)
        return answer if status == "Ready" else "waiting"

    def response(self, call: ImageCall, answer: Mapping[str, Any]) -> Received:
        """Return the image that `result.sample` names."""
        return [self._image(call, value_at(answer, "result", "sample"))], None


# Hosts of many models, each of which describes its own inputs, under names of its own.

Inputs = Mapping[str, Any]
"""Name of a model's input → the input's JSON schema."""
IMAGES = ("image", "image_url", "input_image", "init_image", "image_urls", "input_images", "images")
COUNTS = ("num_outputs", "num_images")
DEEPEST = 8
"""Most references (`$ref`) that are followed, each to the next, to reach a schema."""


class ManyModels(OfModels):
    """Settings of a host of many models, each of which describes its inputs.

    Attributes:
        degree_field: the model's input that takes the degree as a number, 1 for a new image:
            `strength`, `prompt_strength`; it must be an input that the model describes. None: the
            degree is put in words.
        image_field: the model's input that takes the parent; None: the first that has a usual name
            (`image` …).
        n: most images of one request.
        inputs: further inputs, sent unchanged.
    """

    degree_field: str | None = None
    image_field: str | None = None
    n: Count = 1
    inputs: dict[str, Scalar] | None = None

    @property
    def exact_field(self) -> str | None:
        """Name of the field that takes the degree as a number. None: the degree is put in words."""
        return self.degree_field


Config = TypeVar("Config", bound=ManyModels)


class ModelHost(JobHost[Config]):
    """A host whose models describe their inputs.

    Each description is fetched once, before the model's first job.
    """

    batch = "n"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names = {self._config.model, self._config.variation_model or self._config.model}
        self._inputs = {name: OnFirstUse(partial(self._describe, name)) for name in names}

    @abstractmethod
    def _describe(self, name: str) -> Inputs:
        """Return the inputs of a model, as the host describes them.

        Raise Fault if the host does not.
        """

    @property
    def _requested_size(self) -> tuple[int, int] | None:
        return self._config.size

    def _fill(self, call: ImageCall, place: Callable[[bytes], str] = data_uri) -> dict[str, Any]:
        """Return the model's inputs for a call.

        `place` gives a parent's address. Raise Rejected if the model lacks an input.
        """
        config = self._config
        model = self._config.model_for(call)
        inputs = self._inputs[model].get()
        fields: dict[str, Any] = {**(config.inputs or {}), "prompt": call.prompt, **call.degree}
        image = config.image_field or next((name for name in IMAGES if name in inputs), IMAGES[0])
        for name in [*fields, image] if call.parents else fields:
            if name not in inputs:
                raise Rejected(f"{model} has no input '{name}'; {nearest_name(name, inputs)}")
        if "seed" in inputs:
            fields["seed"] = call.seed
        counts = [name for name in COUNTS if name in inputs]
        if counts:
            fields[counts[0]] = len(call.seeds)
        elif config.n > 1:
            raise Rejected(f"{model} has no input for the number of images. Set `n` to 1.")
        size = sides(config.size)
        if size.keys() <= inputs.keys():
            fields |= size
        elif "image_size" in inputs:
            fields["image_size"] = size
        elif not call.parents:  # an edit keeps its parent's size
            words = "has no input for a size. Remove `size`, or set the model's own in `inputs`"
            raise Rejected(f"{model} {words}.")
        if call.parents:
            schema = inputs[image]
            kinds = [schema, *entries_at(schema, "anyOf")]
            is_list = any(value_at(kind, "type") == "array" for kind in kinds)
            parent = place(call.parents[0])
            fields[image] = [parent] if is_list else parent
        return fields


def _inputs_in(name: str, document: Any, schema: Any) -> Inputs:
    """Return the inputs in a schema, following `$ref` into the OpenAPI `document`.

    Raise Fault if there is no `prompt`.
    """
    for _ in range(DEEPEST):
        reference = value_at(schema, "$ref")
        if not isinstance(reference, str):
            break
        keys = reference.removeprefix("#/").split("/")
        schema = value_at(document, *(key.replace("~1", "/") for key in keys))
    inputs = value_at(schema, "properties")
    if not isinstance(inputs, dict) or "prompt" not in inputs:
        raise Fault(
            f"{name} describes no input `prompt`: it is no model that draws from prompts", 404
        )
    return inputs


# fal: any of its models that draws from a prompt, by its queue and the inputs that the model
# describes.
#
# From fal-client (fal-ai/fal, commit c6f0afa, August 2026) and fal.ai's pages on queue and errors:
# `response_url` with /status says IN_QUEUE, IN_PROGRESS or COMPLETED, with /cancel (PUT) it
# cancels, and itself brings the result, or the model's error. `sync_mode` is not asked for: such
# images are not kept for a run that was killed. No key against double submission is documented. Not
# confirmed: whether COMPLETED with an `error` is ever followed by a result; the status of a request
# that is not known any more.


class FalSettings(ManyModels):
    """Settings of `fal`.

    Attributes:
        model: the endpoint's id, such as fal-ai/flux/dev.
        variation_model: the model that varies images, such as fal-ai/flux/dev/image-to-image; None:
            `model`.
        base_url: the queue's address.
        description_url: the address of the models' descriptions, asked without the key.
    """

    base_url: str = "https://queue.fal.run"
    description_url: str = "https://fal.ai/api/openapi/queue/openapi.json"
    key_env: str | None = "FAL_KEY"


class Fal(ModelHost[FalSettings]):
    """fal's hosted models, by its queue.

    The degree is a number where the model has an input for it.
    """

    Settings = FalSettings
    job_field = "response_url"
    key_hosts = ("fal.run",)
    key_scheme = "Key"
    result_hosts = ("fal.media",)
    starter = hosted_starter(
        "model: fal-ai/flux/dev\t# the endpoint's id",
        "variation_model: fal-ai/flux/dev/image-to-image",
        "degree_field: strength\t# an input that the model describes; null: the degree is put in "
        "words",
        "key_env: FAL_KEY\t# the environment variable that holds the key",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST to the model's queue."""
        return f"/{self._config.model_for(call)}", {"json": self._fill(call)}

    def job_status(self, job: str) -> JobStatus:
        """Return the state of a job, by a GET of the status, and then of the result."""
        answer = self._client.find(f"{job}/status")
        if answer is None:
            return "unknown"
        if answer.get("status") != "COMPLETED":
            return "waiting"
        try:
            return object_of(self._client.ask("GET", job))
        except Fault as fault:
            if fault.heals or fault.status in (401, 403):
                raise
            raise Ended(fault.words) from fault

    def cancel(self, job: str) -> None:
        """Have the host cancel a job, by PUT …/cancel."""
        self._client.ask("PUT", f"{job}/cancel")

    def response(self, call: ImageCall, answer: Mapping[str, Any]) -> Received:
        """Return the images in `images` or `image`.

        Refused for one that `has_nsfw_concepts` flags.
        """
        images = answer.get("images")
        if not isinstance(images, list):
            images = [answer.get("image")]
        flags = [*entries_at(answer, "has_nsfw_concepts"), *[False] * len(images)]
        return [
            Refused("has_nsfw_concepts") if flag else self._image(call, value_at(image, "url"))
            for image, flag in zip(images, flags, strict=False)
        ], None

    def _describe(self, name: str) -> Inputs:
        where = f"{self._config.description_url}?endpoint_id={name}"
        document = object_of(self._client.read(where))
        path = f"/{name}".replace("/", "~1")
        schema = {"$ref": f"#/paths/{path}/post/requestBody/content/application~1json/schema"}
        return _inputs_in(name, document, schema)


# Replicate: any of its models that draws from a prompt, by the inputs that the model describes.
#
# From replicate-python (commit 0110c2c, June 2025: its requests and recorded answers) and
# replicate.com's pages on files: /v1/predictions runs a version, /v1/models/OWNER/NAME/predictions
# an official model; images lie at replicate.delivery for an hour. `Prefer: wait` is not sent: the
# answer with the id would come only after the wait. No key against double submission is documented.
# Models tell that an image was refused in words alone. Not confirmed: the status of a prediction
# that was deleted.

LARGEST = 1_000_000
"""Most bytes of a parent that is sent within the request. A larger parent is uploaded as a file."""


class ReplicateSettings(ManyModels):
    """Settings of `replicate`.

    Attributes:
        model: OWNER/NAME of an official model, or OWNER/NAME:VERSION of any.
        base_url: the API's address.
    """

    base_url: str = "https://api.replicate.com"
    key_env: str | None = "REPLICATE_API_TOKEN"


class Replicate(ModelHost[ReplicateSettings]):
    """Replicate's hosted models. The degree is a number where the model has an input for it."""

    Settings = ReplicateSettings
    result_hosts = ("replicate.delivery",)
    starter = hosted_starter(
        "model: black-forest-labs/flux-dev\t# OWNER/NAME, or OWNER/NAME:VERSION",
        "key_env: REPLICATE_API_TOKEN\t# the environment variable that holds the key",
        "degree_field: prompt_strength\t# an input that the model describes; null: the degree is "
        "put in words",
    )

    def request(self, call: ImageCall) -> Sending:
        """Return a POST of a prediction, after the upload of a large parent."""
        name, _, version = self._config.model_for(call).partition(":")
        body = {"input": self._fill(call, self._place), **non_null(version=version or None)}
        return "/v1/predictions" if version else f"/v1/models/{name}/predictions", {"json": body}

    def job_status(self, job: str) -> JobStatus:
        """Return the state of a job, by a GET of the prediction."""
        answer = self._client.find(f"/v1/predictions/{job}")
        if answer is None or (answer.get("data_removed") and answer.get("output") is None):
            return "unknown"
        status = answer.get("status")
        if status == "failed":
            raise Ended(str(answer.get("error") or "the prediction failed without a word"))
        if status in ("canceled", "aborted"):
            raise Ended(f"the prediction was {status}")
        return answer if status == "succeeded" else "waiting"

    def cancel(self, job: str) -> None:
        """Have the host cancel a job, by POST …/cancel."""
        self._client.ask("POST", f"/v1/predictions/{job}/cancel")

    def response(self, call: ImageCall, answer: Mapping[str, Any]) -> Received:
        """Return the images that `output` names."""
        output = answer.get("output")
        urls = output if isinstance(output, list) else [output]
        return [self._image(call, url) for url in urls], None

    def _describe(self, name: str) -> Inputs:
        model, _, version = name.partition(":")
        path = f"/v1/models/{model}/versions/{version}" if version else f"/v1/models/{model}"
        answer = object_of(self._client.ask("GET", path))
        latest = answer if version else answer.get("latest_version")
        reference = {"$ref": "#/components/schemas/Input"}
        return _inputs_in(
            name,
            value_at(latest, "openapi_schema"),
            reference,
        )

    def _place(self, parent: bytes) -> str:
        """Return an address at which the host reads a parent.

        It is a data URI, or the address of an uploaded file if the parent is large.
        """
        if len(parent) <= LARGEST:
            return data_uri(parent)
        files = {"content": ("parent.png", parent, "image/png")}
        answer = object_of(
            self._client.ask(
                "POST",
                "/v1/files",
                files=files,
            )
        )
        url = value_at(answer, "urls", "get")
        if not isinstance(url, str):
            raise Fault.of_object(answer, "the answer to an upload names no address")
        return url
