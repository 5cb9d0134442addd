"""OpenAI's Batch API: many requests in a file, answered within a day, at a lower price."""

# From OpenAI's API reference and the SDK's types (3.52), November 2026: the answers stand in
# output_file_id, and those with errors in error_file_id, both in any order. A batch that exceeds
# the tokens that may be queued ends as `failed` with the code token_limit_exceeded
# (openai/openai-python, issue 2084). There is no key against double submission; but a batch carries
# `metadata` of ours, by which GET /batches, a list, finds it. How soon a new batch stands in that
# list, and in which order, is not documented. Azure documents the same of its v1 API; there a batch
# never expires.

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from adapters.http.answers import entries_at, value_at
from adapters.http.client import object_of, parse_body
from adapters.http.faults import Fault, Rejected
from adapters.http.jobs import JobStatus, wait_for_job
from adapters.openai_sdk import OpenAIEndpoint, form
from pe.plugins.protocols import JobNote

log = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
"""The path that all requests of a batch go to."""

MOST = 50_000
"""Most requests of one batch."""

QUEUE = 900.0
"""Seconds after which a batch that found the queue full is submitted again."""

_OURS = "pe-"
_KEY = "private_evolution"
_DONE = ("completed", "expired", "cancelled", "failed")

Line = dict[str, Any] | Fault
"""The body of the answer to one request of a batch, or why there is none."""


class Batches:
    """Batches of requests for texts by a chat model.

    They are looked at every `poll` seconds, later more rarely.

    A batch is noted under a name of ours before it is submitted.
    """

    def __init__(self, endpoint: OpenAIEndpoint, poll: float) -> None:
        self._endpoint = endpoint
        self._host = endpoint.host
        self._clean = endpoint.policy.clean
        self._poll = poll
        self._states: dict[str, str] = {}

    @property
    def wait(self) -> str:
        """The batches that are waited for now, in a clause, or an empty text."""
        states = list(self._states.items())
        more = f", and {len(states) - 1} more" if len(states) > 1 else ""
        return f"the batch {states[0][0]} is {states[0][1]}{more}" if states else ""

    def finish(self, bodies: Sequence[Mapping[str, Any]], note: JobNote) -> Mapping[str, Any]:
        """Wait for the batch that is noted, or submit these requests as a new one.

        Return the batch once it has ended.

        Raises Ended if the endpoint does not know a batch that it has taken, Fault or Rejected if
        the batch failed.
        """
        try:
            # Without a time limit: the endpoint ends it, and what it has answered by then is paid.
            batch = wait_for_job(
                note,
                self._endpoint.policy,
                start=lambda: self._start(bodies, note),
                look=lambda job: self._look(job, note),
                poll=self._poll,
            )
        finally:
            self._states.pop(note.job, None)
        if batch.get("status") != "failed":
            return batch
        note.write("")
        errors = entries_at(batch, "errors", "data") or [None]
        words = str(value_at(errors[0], "message") or "no words")
        code = str(value_at(errors[0], "code") or "")
        if code == "token_limit_exceeded":
            raise Fault(words, 429, code, QUEUE)
        raise Rejected(f"{self._host} does not take the batch: {self._clean(f'{code}: {words}')}")

    def read(self, batch: Mapping[str, Any]) -> dict[int, Line]:
        """Return the answers of a batch that has ended: number of the request → answer.

        A request without an answer is left out.
        """
        answers: dict[int, Line] = {}
        for key in ("output_file_id", "error_file_id"):
            for line in self._lines(str(batch[key])) if batch.get(key) else ():
                number = re.fullmatch("[0-9]{1,8}", str(line.get("custom_id")))
                if number:
                    answers[int(number[0])] = _answer(line)
        return answers

    def _start(self, bodies: Sequence[Mapping[str, Any]], note: JobNote) -> None:
        """Upload the requests and submit them as a batch.

        A name of ours is noted before the batch is submitted under it, the batch's id afterwards.
        """
        line = {"method": "POST", "url": PATH}
        lines = [
            json.dumps(line | {"custom_id": str(i), "body": body}) for i, body in enumerate(bodies)
        ]
        file = self._upload("\n".join(lines).encode())
        name = f"{_OURS}{secrets.token_hex(16)}"
        note.write(name)
        note.calls += 1
        fields = {
            "input_file_id": file,
            "endpoint": PATH,
            "completion_window": "24h",
            "metadata": {_KEY: name},
        }
        try:
            answer = self._endpoint.ask("POST", "/batches", body=fields)
        except Fault as fault:
            if fault.status is not None and 400 <= fault.status < 500:  # it was not taken
                note.write("")
            raise
        note.write(_id_of(object_of(answer)))

    def _upload(self, content: bytes) -> str:
        file = ("requests.jsonl", content, "application/jsonl")
        request = form({"purpose": "batch"}, file=file)
        try:
            return _id_of(object_of(self._endpoint.ask("POST", "/files", **request)))
        except Fault as fault:
            if fault.status not in (404, 405, 501):
                raise
            raise Rejected(
                f"{self._host} has no Batch API (POST /files brought {self._clean(str(fault))}). "
                "Remove `batch`, or name an endpoint that has one.",
                fault.status,
            ) from None

    def _look(self, job: str, note: JobNote) -> JobStatus:
        if job.startswith(_OURS):
            batch = self._find_by_name(job)
        else:
            batch = self._endpoint.find(f"/batches/{quote(job, safe='')}")
        if batch is None:
            return "unknown"
        name = _id_of(batch)
        status = str(batch.get("status"))
        if name != job:
            note.write(name)
        if status in _DONE:
            return batch
        completed = value_at(batch, "request_counts", "completed") or 0
        total = value_at(batch, "request_counts", "total") or 0
        self._states[name] = f"{status}, {completed} of {total} requests answered"
        return "waiting"

    def _find_by_name(self, name: str) -> dict[str, Any] | None:
        """Find the batch to which we gave this name, among all that the endpoint lists."""
        after: dict[str, str] = {}
        while True:
            options = {"params": {"limit": 100, **after}}
            page = object_of(
                self._endpoint.ask(
                    "GET",
                    "/batches",
                    options=options,
                )
            )
            batches = [batch for batch in entries_at(page, "data") if isinstance(batch, dict)]
            for batch in batches:
                if value_at(batch, "metadata", _KEY) == name:
                    return batch
            if not batches or not page.get("has_more"):
                return None
            after = {"after": _id_of(batches[-1])}

    def _lines(self, file: str) -> list[dict[str, Any]]:
        """Return the JSON objects in the lines of a file.

        Other lines are skipped. The list is empty if the file is gone.
        """
        try:
            response = self._endpoint.ask("GET", f"/files/{quote(file, safe='')}/content")
        except Fault as fault:
            if fault.status != 404:
                raise
            log.warning(
                "%s: the file %s of a batch is gone: its requests are made again.", self._host, file
            )
            return []
        if b'"custom_id"' not in response.content:  # a gateway's page, say
            raise Fault.of(response)
        lines = map(_parse, response.content.splitlines())
        return [line for line in lines if isinstance(line, dict)]


def _id_of(answer: Mapping[str, Any]) -> str:
    name = answer.get("id")
    if not isinstance(name, str) or not name:
        raise Fault.of_object(answer, "the answer has no id")
    return name


def _parse(line: bytes) -> Any:
    try:
        return parse_body(line)
    except (ValueError, RecursionError):
        return None


def _answer(line: Mapping[str, Any]) -> Line:
    error = line.get("error")
    body = value_at(line, "response", "body")
    if isinstance(body, dict):
        status = value_at(line, "response", "status_code")
        if status is None or (isinstance(status, int) and status < 400):
            return body
        return Fault.of_response(
            status if isinstance(status, int) else 500,
            {},
            json.dumps(body),
        )
    if isinstance(error, dict):  # of the batch, not of the model: it expired, or was cancelled
        code = error.get("code")
        return Fault(f"{code}: {error.get('message')}", code=str(code or ""))
    return Fault("the batch's answer to the request is neither a response nor an error")
