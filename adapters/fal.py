"""fal: any of its models that draws from a prompt, by its queue and the inputs that the model describes.

Read from fal-client (fal-ai/fal, commit c6f0afa, August 2026) and fal.ai's pages on the queue and on errors: POST
queue.fal.run/MODEL is answered by `request_id` and `response_url`; that address with /status says IN_QUEUE,
IN_PROGRESS or COMPLETED, with /cancel (PUT) it cancels, and itself brings the result, or the model's error. A model is
described, without a key, at fal.ai/api/openapi/queue/openapi.json. `sync_mode` is not asked for: such images are not
kept for a run that was killed. No key against double submission is documented. Images lie at fal.media. Not confirmed:
whether COMPLETED with an `error` is ever followed by a result; the status of a request that is not known any more.
"""

from __future__ import annotations

from typing import Any

from adapters.http import Asked, Credentials, Received, object_of
from adapters.http.faults import Fault
from adapters.http.jobs import Finished, JobClient
from adapters.http.models import ManyModels, Model, ModelHost, data_uri
from adapters.http.pictures import Pixels
from adapters.http.starters import hosted
from adapters.http.waiting import Ended, Look
from pe.plugins.protocols import Failed, Refused


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
