"""Black Forest Labs: FLUX by its own API, whose variations are edits of `input_image` by a wording.

Read from black-forest-labs/skills (bfl-api, commit d0793c8, February 2026) and docs.bfl.ai's page on errors: POST
/v1/MODEL with `x-key` is answered by an id and a `polling_url`, which is asked with the key; the statuses are Pending,
Ready, Error, Request Moderated, Content Moderated and Task not found; an image's address is valid for ten minutes.
Pages of other users show Reasoning, Generating and Failed, too: what is not known counts as at work. No key against
double submission is documented. Not confirmed: the HTTP status of Task not found; how long a result can be asked for.
"""

from __future__ import annotations

import base64
from typing import Any

from adapters.http import Asked, Credentials, Received, Scalar, Size, object_of
from adapters.http.faults import Fault
from adapters.http.jobs import ByJobs, Finished, JobClient, JobGenerator
from adapters.http.starters import hosted
from adapters.http.waiting import Ended, Look
from pe.plugins.validation import Count


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
