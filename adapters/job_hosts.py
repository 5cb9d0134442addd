"""Black Forest Labs: FLUX by its own API, whose variations are edits of `input_image` by a wording.

Read from black-forest-labs/skills (bfl-api, commit d0793c8, February 2026) and docs.bfl.ai's page on errors: POST
/v1/MODEL with `x-key` is answered by an id and a `polling_url`, which is asked with the key; the statuses are Pending,
Ready, Error, Request Moderated, Content Moderated and Task not found; an image's address is valid for ten minutes.
Pages of other users show Reasoning, Generating and Failed, too: what is not known counts as at work. No key against
double submission is documented. Not confirmed: the HTTP status of Task not found; how long a result can be asked for.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from adapters.http import Asked, Credentials, Received, Scalar, Size, object_of
from adapters.http.answers import Pixels
from adapters.http.client import OnFirstUse
from adapters.http.faults import Fault, Rejected
from adapters.http.generator import hosted
from adapters.http.jobs import ByJobs, Ended, Finished, JobClient, JobGenerator, Look
from adapters.prompts import Ladder
from pe.errors import nearest_name
from pe.plugins.protocols import Failed, Refused
from pe.plugins.settings import Count


class BFLSettings(ByJobs):
    """What a recipe says of Black Forest Labs.

    Attributes:
        model: the last part of the model's address, such as flux-2-pro.
        variation_model: that varies images, where it is another one; None: `model`.
        base_url: of the API; https://api.eu.bfl.ai keeps to Europe.
        size: height and width that are asked for, multiples of 16; None: the model's default.
        extra: further fields, sent as they are (safety_tolerance, steps, guidance …).
    """

    model: str
    variation_model: str | None = None
    base_url: str = "https://api.bfl.ai"
    key_env: str | None = "BFL_API_KEY"
    concurrency: Count = 8
    size: Size | None = None
    extra: dict[str, Scalar] | None = None

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that is asked for; None: any."""
        return self.size


class BFL(JobGenerator[BFLSettings]):
    """RANDOM_API and VARIATION_API by Black Forest Labs: one image a job, seeded; variations by a wording."""

    Settings = BFLSettings
    starter = hosted(
        "model: flux-2-pro\t# the last part of the model's address",
        "key_env: BFL_API_KEY\t# the environment variable that holds the key",
    )
    key_hosts = result_hosts = ("bfl.ai",)

    def _credentials(self) -> Credentials:
        return Credentials(self._given, header="x-key")

    def _submit(self, client: JobClient, asked: Asked) -> None:
        given = self._given
        body: dict[str, Any] = {"output_format": "png", **(given.extra or {}), "prompt": asked.prompt}
        body["seed"] = asked.seed
        if given.size is not None:
            body |= {"height": given.size[0], "width": given.size[1]}
        if asked.parents:
            body["input_image"] = base64.b64encode(asked.parents[0]).decode()
        model = (given.variation_model or given.model) if asked.parents else given.model
        answer = object_of(client.ask("POST", f"/v1/{model}", json=body))
        if not isinstance(answer.get("polling_url"), str):
            raise Fault.of_object(answer, "the answer names no polling_url")
        asked.job.write(answer["polling_url"])

    def _look(self, client: JobClient, job: str) -> Look:
        answer = self._find(client, job)
        status = "Task not found" if answer is None else answer.get("status")
        if answer is None or status == "Task not found":
            return Look("unknown")
        if status == "Ready":
            return Look("done", answer)
        if status in ("Request Moderated", "Content Moderated"):
            raise Ended(str(status), refused=True)
        if status in ("Error", "Failed"):
            raise Ended(Fault.of_object(answer, f"the job ended as {status}").words)
        return Look("waiting")

    def _read(self, client: JobClient, sent: Finished) -> Received:
        result = sent.answer.get("result")
        url = result.get("sample") if isinstance(result, dict) else None
        return [client.picture(url, sent.asked, self._rule)], None


# Hosts of many models, each of which describes its own inputs, under names of its own.


IMAGES = ("image", "image_url", "input_image", "init_image", "image_urls", "input_images", "images")
COUNTS = ("num_outputs", "num_images")
DEEPEST = 8
"""References that are followed, from one to the next."""


class ManyModels(ByJobs):
    """A host of many models.

    Attributes:
        model: as the host names it.
        variation_model: that varies images, where it is another one; None: `model`.
        degree_field: the model's input that takes the degree as a number, 1 for a new image: `strength`,
            `prompt_strength`; it must be among those that the model describes. None: the degree is put in words.
        image_field: the model's input that takes the parent; None: the first of the usual names that it describes.
        size: height and width that the model is asked for; None: its default.
        n: most images of one request.
        inputs: further inputs, sent as they are.
    """

    model: str
    variation_model: str | None = None
    degree_field: str | None = None
    image_field: str | None = None
    size: Size | None = None
    n: Count = 1
    inputs: dict[str, Scalar] | None = None

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(self.wordings, self.degree_field, exact=self.degree_field is not None)


Chosen = TypeVar("Chosen", bound=ManyModels)


@dataclass(frozen=True)
class Model:
    """A model, as its host describes it.

    Attributes:
        name: as the host names it.
        inputs: input → its schema.
    """

    name: str
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, document: Any, schema: Any) -> Model:
        """From an OpenAPI document and the schema in it, or a reference to that schema.

        Raises:
            Fault: it describes no inputs.
        """
        for _ in range(DEEPEST):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                break
            keys, schema = schema["$ref"].removeprefix("#/").split("/"), document
            for key in keys:
                schema = schema.get(key.replace("~1", "/")) if isinstance(schema, dict) else None
        inputs = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(inputs, dict) or "prompt" not in inputs:
            raise Fault(f"{name} describes no input `prompt`: it is no model that draws from prompts", 400)
        return cls(name, inputs)

    def fill(self, given: ManyModels, asked: Asked, parent: str = "") -> dict[str, Any]:
        """What is asked for, under the model's names; `parent`: the address of the image to be varied, or a data URI.

        Raises:
            Rejected: the model has no input for it.
        """
        filled: dict[str, Any] = {**(given.inputs or {}), "prompt": asked.prompt, **asked.told}
        for name in filled:
            self._check(name)
        if "seed" in self.inputs:
            filled["seed"] = asked.seed
        counts = [name for name in COUNTS if name in self.inputs]
        if counts:
            filled[counts[0]] = len(asked.seeds)
        elif given.n > 1:
            raise Rejected(f"{self.name} has no input for the number of images: set `n` to 1.")
        if given.size is not None:
            filled |= self._sized(given.size, needed=not asked.parents)
        if asked.parents:
            name = given.image_field or next((name for name in IMAGES if name in self.inputs), IMAGES[0])
            self._check(name)
            filled[name] = [parent] if _is_list(self.inputs[name]) else parent
        return filled

    def _check(self, name: str) -> None:
        if name not in self.inputs:
            raise Rejected(f"{self.name} has no input '{name}'; {nearest_name(name, self.inputs)}")

    def _sized(self, size: tuple[int, int], needed: bool) -> dict[str, Any]:
        sides = {"width": size[1], "height": size[0]}
        if sides.keys() <= self.inputs.keys():
            return sides
        if "image_size" in self.inputs:
            return {"image_size": sides}
        if needed:
            raise Rejected(f"{self.name} has no input for a size: leave it out, or set the model's own in `inputs`.")
        return {}


class ModelHost(JobGenerator[Chosen]):
    """A host whose models describe themselves; they are asked to once, before the first job."""

    def _connect(self, credentials: Credentials) -> JobClient:
        client, given = super()._connect(credentials), self._given
        names = {given.model, given.variation_model or given.model}
        self._models = {name: OnFirstUse(partial(self._describe, client, name)) for name in names}
        return client

    @abstractmethod
    def _describe(self, client: JobClient, name: str) -> Model:
        """A model as the host describes it; a `Fault` where it does not."""

    @property
    def _most(self) -> int:
        return self._given.n

    @property
    def _asked_size(self) -> tuple[int, int] | None:
        return self._given.size

    def _model(self, asked: Asked) -> Model:
        """The model that a request is for."""
        given = self._given
        return self._models[(given.variation_model or given.model) if asked.parents else given.model].get()


def data_uri(image: bytes) -> str:
    """A PNG file as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _is_list(schema: Any) -> bool:
    kinds = [schema, *schema.get("anyOf", ())] if isinstance(schema, dict) else []
    return any(isinstance(kind, dict) and kind.get("type") == "array" for kind in kinds)


# fal: any of its models that draws from a prompt, by its queue and the inputs that the model describes.
#
# Read from fal-client (fal-ai/fal, commit c6f0afa, August 2026) and fal.ai's pages on the queue and on errors: POST
# queue.fal.run/MODEL is answered by `request_id` and `response_url`; that address with /status says IN_QUEUE,
# IN_PROGRESS or COMPLETED, with /cancel (PUT) it cancels, and itself brings the result, or the model's error. A model
# is described, without a key, at fal.ai/api/openapi/queue/openapi.json. `sync_mode` is not asked for: such images are
# not kept for a run that was killed. No key against double submission is documented. Images lie at fal.media. Not
# confirmed: whether COMPLETED with an `error` is ever followed by a result; the status of a request that is not known
# any more.


class FalSettings(ManyModels):
    """What a recipe says of fal.

    Attributes:
        model: the endpoint's id, such as fal-ai/flux/dev.
        variation_model: that varies images, such as fal-ai/flux/dev/image-to-image; None: `model`.
        base_url: of the queue.
        description_url: where models are described, asked without the key.
    """

    base_url: str = "https://queue.fal.run"
    description_url: str = "https://fal.ai/api/openapi/queue/openapi.json"
    key_env: str | None = "FAL_KEY"


class Fal(ModelHost[FalSettings]):
    """RANDOM_API and VARIATION_API by fal's queue; the degree is a number where the model has an input for it."""

    Settings = FalSettings
    starter = hosted(
        "model: fal-ai/flux/dev\t# the endpoint's id",
        "variation_model: fal-ai/flux/dev/image-to-image",
        "degree_field: strength\t# an input that the model describes; null: the degree is put in words",
        "key_env: FAL_KEY\t# the environment variable that holds the key",
    )
    key_hosts = ("fal.run",)
    result_hosts = ("fal.media",)

    def _credentials(self) -> Credentials:
        return Credentials(self._given, scheme="Key")

    def _describe(self, client: JobClient, name: str) -> Model:
        document = object_of(client.read(f"{self._given.description_url}?endpoint_id={name}"))
        path = f"/{name}".replace("/", "~1")
        schema = {"$ref": f"#/paths/{path}/post/requestBody/content/application~1json/schema"}
        return Model.of(name, document, schema)

    def _submit(self, client: JobClient, asked: Asked) -> None:
        model = self._model(asked)
        parent = data_uri(asked.parents[0]) if asked.parents else ""
        answer = object_of(client.ask("POST", f"/{model.name}", json=model.fill(self._given, asked, parent)))
        if not isinstance(answer.get("response_url"), str):
            raise Fault.of_object(answer, "the answer names no response_url")
        asked.job.write(answer["response_url"])

    def _look(self, client: JobClient, job: str) -> Look:
        answer = self._find(client, f"{job}/status")
        if answer is None:
            return Look("unknown")
        if answer.get("status") != "COMPLETED":
            return Look("waiting")
        try:
            return Look("done", object_of(client.ask("GET", job)))
        except Fault as fault:
            if fault.heals or fault.status in (401, 403):
                raise
            raise Ended(fault.words) from fault

    def _cancel(self, client: JobClient, job: str) -> None:
        client.ask("PUT", f"{job}/cancel")

    def _read(self, client: JobClient, sent: Finished) -> Received:
        images, flagged = sent.answer.get("images"), sent.answer.get("has_nsfw_concepts")
        images = images if isinstance(images, list) else [sent.answer.get("image")]
        flags = flagged if isinstance(flagged, list) else []
        return [
            Refused("has_nsfw_concepts")
            if place < len(flags) and flags[place]
            else self._picture(client, sent.asked, image)
            for place, image in enumerate(images)
        ], None

    def _picture(self, client: JobClient, asked: Asked, image: Any) -> Pixels | Failed:
        return client.picture(image.get("url") if isinstance(image, dict) else None, asked, self._rule)


# Replicate: any of its models that draws from a prompt, by the inputs that the model describes.
#
# Read from replicate-python (commit 0110c2c, June 2025: its requests and recorded answers) and replicate.com's pages
# on input and output files: a model is described at /v1/models/OWNER/NAME, or /versions/ID below it, in
# `openapi_schema`; POST /v1/predictions runs a version, /v1/models/OWNER/NAME/predictions an official model; GET
# /v1/predictions/ID says starting, processing, succeeded, failed or canceled; images lie at replicate.delivery for an
# hour. `Prefer: wait` is not sent: the answer with the id would come only after the wait. No key against double
# submission is documented. Models tell that an image was refused in words alone. Not confirmed: the status of a
# prediction that was deleted.


LARGEST = 1_000_000
"""Bytes of a parent that goes into a request; a larger one is uploaded as a file."""


class ReplicateSettings(ManyModels):
    """What a recipe says of Replicate.

    Attributes:
        model: OWNER/NAME of an official model, or OWNER/NAME:VERSION of any.
        base_url: of the API.
    """

    base_url: str = "https://api.replicate.com"
    key_env: str | None = "REPLICATE_API_TOKEN"


class Replicate(ModelHost[ReplicateSettings]):
    """RANDOM_API and VARIATION_API by predictions; the degree is a number where the model has an input for it."""

    Settings = ReplicateSettings
    starter = hosted(
        "model: black-forest-labs/flux-dev\t# OWNER/NAME, or OWNER/NAME:VERSION",
        "key_env: REPLICATE_API_TOKEN\t# the environment variable that holds the key",
        "degree_field: prompt_strength\t# an input that the model describes; null: the degree is put in words",
    )
    result_hosts = ("replicate.delivery",)

    def _describe(self, client: JobClient, name: str) -> Model:
        model, _, version = name.partition(":")
        answer = object_of(client.ask("GET", f"/v1/models/{model}" + (f"/versions/{version}" if version else "")))
        described = answer if version else answer.get("latest_version")
        document = described.get("openapi_schema") if isinstance(described, dict) else None
        return Model.of(name, document, {"$ref": "#/components/schemas/Input"})

    def _submit(self, client: JobClient, asked: Asked) -> None:
        model = self._model(asked)
        parent = _place(client, asked.parents[0]) if asked.parents else ""
        name, _, version = model.name.partition(":")
        body = {"input": model.fill(self._given, asked, parent), **({"version": version} if version else {})}
        where = "/v1/predictions" if version else f"/v1/models/{name}/predictions"
        answer = object_of(client.ask("POST", where, json=body))
        if not isinstance(answer.get("id"), str):
            raise Fault.of_object(answer, "the answer names no prediction")
        asked.job.write(answer["id"])

    def _look(self, client: JobClient, job: str) -> Look:
        answer = self._find(client, f"/v1/predictions/{job}")
        if answer is None or (answer.get("data_removed") and answer.get("output") is None):
            return Look("unknown")
        status = answer.get("status")
        if status == "succeeded":
            return Look("done", answer)
        if status == "failed":
            raise Ended(str(answer.get("error") or "the prediction failed without a word"))
        if status in ("canceled", "aborted"):
            raise Ended(f"the prediction was {status}")
        return Look("waiting")

    def _cancel(self, client: JobClient, job: str) -> None:
        client.ask("POST", f"/v1/predictions/{job}/cancel")

    def _read(self, client: JobClient, sent: Finished) -> Received:
        output = sent.answer.get("output")
        urls = output if isinstance(output, list) else [output]
        return [client.picture(url, sent.asked, self._rule) for url in urls], None


def _place(client: JobClient, parent: bytes) -> str:
    """The address of a parent, for the host to read."""
    if len(parent) <= LARGEST:
        return data_uri(parent)
    answer = object_of(client.ask("POST", "/v1/files", files={"content": ("parent.png", parent, "image/png")}))
    urls = answer.get("urls")
    if not isinstance(urls, dict) or not isinstance(urls.get("get"), str):
        raise Fault.of_object(answer, "the answer to an upload names no address")
    return str(urls["get"])
