"""OpenAI's API under the one `Policy`: single requests, and batches of requests."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from adapters.http.client import HTTPClient, object_of, read_json
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.jobs import JobStatus, wait_for_job
from adapters.http.policy import CheckStop, Outcome, Policy
from adapters.http.settings import Connection
from pe.plugins.protocols import JobNote

if TYPE_CHECKING:
    import httpx2

Result = TypeVar("Result")

OPENAI = "https://api.openai.com/v1"

_BILLED_TO = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Header → environment variable, as OpenAI's SDK sends them."""

log = logging.getLogger(__name__)


class OpenAIConnection(Connection):
    """Connection settings of an endpoint that speaks OpenAI's API.

    Attributes:
        base_url: the endpoint's address; None: OpenAI's own.
        azure_api_version: the API version of Azure OpenAI, whose `base_url` is the resource's address; None: not Azure.
    """

    base_url: str | None = None
    key_env: str | None = "OPENAI_API_KEY"
    azure_api_version: str | None = None

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return self.base_url or OPENAI

    def path(self, task: str, model: str) -> str:
        """Return the path of a task; on Azure it lies below the model's deployment, except for images/variations."""
        if self.azure_api_version is None:
            return f"/{task}"
        deployment = "" if task == "images/variations" else f"/deployments/{quote(model, safe='')}"
        return f"/openai{deployment}/{task}?api-version={quote(self.azure_api_version)}"

    def read_credentials(self) -> Credentials:
        """Read the key; Azure takes it in the header `api-key`, but expiring tokens (Entra ID) in `Authorization`."""
        is_azure_key = self.azure_api_version is not None and not self.key_expires
        return Credentials(self, header="api-key" if is_azure_key else "Authorization")


def billed_to() -> dict[str, str]:
    """Return the headers that name the organisation and project to bill, where the environment has them."""
    return {name: os.environ[variable] for name, variable in _BILLED_TO.items() if os.environ.get(variable)}


class OpenAIEndpoint:
    """An endpoint that speaks OpenAI's API, under the one policy; RecipeError if the key cannot be read."""

    def __init__(self, config: OpenAIConnection, concurrency: int) -> None:
        self.host, credentials = urlsplit(config.url).netloc, config.read_credentials()
        self._client = HTTPClient(config.url, config, concurrency, credentials)
        self.policy = Policy.of(config, self.host, concurrency, credentials)

    def send(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Make one request; see `HTTPClient.ask`."""
        return self._client.ask(method, path, headers=billed_to(), **request)

    def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[dict[str, Any]], Result],
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """POST a body; return as outcome what `read` makes of the JSON object that answers it: see `Policy.call`."""
        return self.policy.call(
            lambda: self.send("POST", path, json=body), lambda response: read(object_of(response)), check_stop
        )


# OpenAI's Batch API: many requests in a file, answered within a day, at a lower price.
#
# From OpenAI's API reference and the SDK's types (3.52), November 2026: the answers stand in output_file_id, and those
# with errors in error_file_id, both in any order. A batch that exceeds the tokens that may be queued ends as `failed`
# with the code token_limit_exceeded (openai/openai-python, issue 2084). There is no key against double submission; but
# a batch carries `metadata` of ours, by which GET /batches, a list, finds it. How soon a new batch stands in that list,
# and in which order, is not documented. Azure documents the same of its v1 API; there a batch never expires.

MOST = 50_000
"""Most requests of one batch."""

QUEUE = 900.0
"""Seconds after which a batch that found the queue full is submitted again."""

_OURS, _KEY = "pe-", "private_evolution"
_DONE = ("completed", "expired", "cancelled", "failed")

Line = dict[str, Any] | Fault
"""The body of the answer to one request of a batch, or why there is none."""


class Batches:
    """Batches of requests to one path of an endpoint, which are looked at every `poll` seconds, later more rarely.

    A batch is noted under a name of ours before it is submitted.
    """

    def __init__(self, endpoint: OpenAIEndpoint, path: str, poll: float) -> None:
        self._host, self._policy, self._send = endpoint.host, endpoint.policy, endpoint.send
        self._path, self._poll = path, poll
        self._states: dict[str, str] = {}

    @property
    def wait(self) -> str:
        """The batches that are waited for now, in a clause; empty if there are none."""
        states = list(self._states.items())
        more = f", and {len(states) - 1} more" if len(states) > 1 else ""
        return f"the batch {states[0][0]} is {states[0][1]}{more}" if states else ""

    def finish(self, bodies: Sequence[Mapping[str, Any]], note: JobNote) -> Mapping[str, Any]:
        """Wait for the batch that is noted, or submit these requests as a new one; return the batch once it has ended.

        Raises Ended if the endpoint does not know a batch that it has taken, Fault or Rejected if the batch failed.
        """
        try:
            # Without a time limit: the endpoint ends it, and what it has answered by then is paid.
            batch = wait_for_job(
                self._host,
                note,
                self._policy,
                start=lambda: self._start(bodies, note),
                look=lambda job: self._look(job, note),
                poll=self._poll,
            )
        finally:
            self._states.pop(note.job, None)
        if batch.get("status") != "failed":
            return batch
        note.write("")
        errors = batch.get("errors")
        entries = errors.get("data") if isinstance(errors, dict) else None
        error = next((entry for entry in entries or [] if isinstance(entry, dict)), {})
        words, code = str(error.get("message") or "no words"), str(error.get("code") or "")
        if code == "token_limit_exceeded":
            raise Fault(words, 429, code, QUEUE)
        raise Rejected(f"{self._host} does not take the batch: {self._policy.clean(f'{code}: {words}')}")

    def read(self, batch: Mapping[str, Any]) -> dict[int, Line]:
        """Return the answers of a batch that has ended: number of the request → the request's answer, if it has one."""
        files = [batch.get(key) for key in ("output_file_id", "error_file_id")]
        lines = [line for file in files if file for line in self._lines(str(file))]
        return {number: _answer(line) for line in lines if (number := _number(line)) is not None}

    def _start(self, bodies: Sequence[Mapping[str, Any]], note: JobNote) -> None:
        """Upload the requests, note a name of ours, submit them as a batch of this name, and note the batch's id."""
        line = {"method": "POST", "url": self._path}
        lines = [json.dumps({"custom_id": str(i), **line, "body": body}) for i, body in enumerate(bodies)]
        file = self._upload("\n".join(lines).encode())
        name = f"{_OURS}{secrets.token_hex(16)}"
        note.write(name)
        note.calls += 1
        fields = {"input_file_id": file, "endpoint": self._path, "completion_window": "24h", "metadata": {_KEY: name}}
        try:
            answer = self._send("POST", "/batches", json=fields)
        except Fault as fault:
            if fault.status is not None and 400 <= fault.status < 500:  # it was not taken
                note.write("")
            raise
        note.write(_id_of(object_of(answer)))

    def _upload(self, content: bytes) -> str:
        file = ("requests.jsonl", content, "application/jsonl")
        try:
            return _id_of(object_of(self._send("POST", "/files", files={"file": file}, data={"purpose": "batch"})))
        except Fault as fault:
            if fault.status not in (404, 405, 501):
                raise
            raise Rejected(
                f"{self._host} has no Batch API (POST /files brought {self._policy.clean(str(fault))}): leave out "
                "`batch`, or name an endpoint that has one.",
                fault.status,
            ) from None

    def _look(self, job: str, note: JobNote) -> JobStatus:
        batch = self._find_by_name(job) if job.startswith(_OURS) else self._find(job)
        if batch is None:
            return "unknown"
        name, status = _id_of(batch), str(batch.get("status"))
        if name != job:
            note.write(name)
        if status in _DONE:
            return batch
        counts = batch.get("request_counts")
        counts = counts if isinstance(counts, dict) else {}
        self._states[name] = f"{status}, {counts.get('completed', 0)} of {counts.get('total', 0)} requests answered"
        return "waiting"

    def _find(self, job: str) -> dict[str, Any] | None:
        try:
            return object_of(self._send("GET", f"/batches/{quote(job, safe='')}"))
        except Fault as fault:
            if fault.status != 404:
                raise
            return None

    def _find_by_name(self, name: str) -> dict[str, Any] | None:
        """Find the batch to which we gave this name, among all that the endpoint lists; None if there is none."""
        after: dict[str, str] = {}
        while True:
            page = object_of(self._send("GET", "/batches", params={"limit": 100, **after}))
            batches = [batch for batch in page.get("data") or [] if isinstance(batch, dict)]
            for batch in batches:
                if isinstance(marks := batch.get("metadata"), dict) and marks.get(_KEY) == name:
                    return batch
            if not batches or not page.get("has_more"):
                return None
            after = {"after": _id_of(batches[-1])}

    def _lines(self, file: str) -> list[dict[str, Any]]:
        """The JSON objects in the lines of a file; other lines are skipped; none if the file is gone."""
        try:
            response = self._send("GET", f"/files/{quote(file, safe='')}/content")
        except Fault as fault:
            if fault.status != 404:
                raise
            log.warning("%s: the file %s of a batch is gone: its requests are made again.", self._host, file)
            return []
        if b'"custom_id"' not in response.content:  # a gateway's page, say
            raise Fault.of_response(response.status_code, {}, response.content[:4096])
        lines = [_object(line) for line in response.content.splitlines()]
        return [line for line in lines if line is not None]


def _id_of(answer: Mapping[str, Any]) -> str:
    if not isinstance(name := answer.get("id"), str) or not name:
        raise Fault.of_object(answer, "the answer has no id")
    return name


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        content = read_json(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _number(line: Mapping[str, Any]) -> int | None:
    """Return the number of the request that a line answers; None if the line names none."""
    name = line.get("custom_id")
    return int(name) if isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 9 else None


def _answer(line: Mapping[str, Any]) -> Line:
    error, response = line.get("error"), line.get("response")
    if isinstance(response, dict) and isinstance(body := response.get("body"), dict):
        status = response.get("status_code")
        if status is None or (isinstance(status, int) and status < 400):
            return body
        return Fault.of_response(status if isinstance(status, int) else 500, {}, json.dumps(body))
    if isinstance(error, dict):  # of the batch, not of the model: it expired, or was cancelled
        return Fault(f"{error.get('code')}: {error.get('message')}", code=str(error.get("code") or ""))
    return Fault("the batch's answer to the request is neither a response nor an error")
