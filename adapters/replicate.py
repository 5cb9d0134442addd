"""Replicate: any of its models that draws from a prompt, by the inputs that the model describes.

Read from replicate-python (commit 0110c2c, June 2025: its requests and recorded answers) and replicate.com's pages on
input and output files: a model is described at /v1/models/OWNER/NAME, or /versions/ID below it, in `openapi_schema`;
POST /v1/predictions runs a version, /v1/models/OWNER/NAME/predictions an official model; GET /v1/predictions/ID says
starting, processing, succeeded, failed or canceled; images lie at replicate.delivery for an hour. `Prefer: wait` is not
sent: the answer with the id would come only after the wait. No key against double submission is documented. Models
tell that an image was refused in words alone. Not confirmed: the status of a prediction that was deleted.
"""

from __future__ import annotations

from adapters.http import Asked, Received, object_of
from adapters.http.faults import Fault
from adapters.http.jobs import Finished, JobClient
from adapters.http.models import ManyModels, Model, ModelHost, data_uri
from adapters.http.starters import hosted
from adapters.http.waiting import Ended, Look

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
