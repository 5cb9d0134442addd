"""OpenAI's files and batches as its API reference has them, over the scripted server of chat completions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.hosted import on

LINES = ("refusal", "filter", "policy", "empty", "500", "expired", "absent", "torn")
"""What becomes of single requests of a batch; beside them `invalid`."""


@dataclass
class Batch:
    """A batch and the requests in it.

    Attributes:
        outcome: `completed`, or how it ends: expired, cancelled (after its first half), failed, full.
    """

    said: dict[str, Any]
    lines: list[dict[str, Any]]
    outcome: str
    looks: int = 0
    answered: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


class BatchServer(ChatServer):
    """Ends each batch at its second look, with its answers in the order from the last to the first.

    Args:
        script: which requests to the server have transport faults; `lost`: it is heeded, and its answer is lost.
        outcomes: of the next batches.
        lines: which requests in batches have which fault; None: none has.

    Attributes:
        finished: how many batches may end; those after them stay at work.
        worked: body of a request → how often it was worked on, and billed.
        submitted: batches that were taken.
    """

    def __init__(self, script, outcomes=(), lines=None):
        super().__init__(script)
        self._outcomes, self._script = list(outcomes), lines or Script()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.worked: Counter[str] = Counter()
        self.finished, self.submitted, self.page = float("inf"), 0, 2

    @property
    def held(self):
        """Batches that were looked at, and may not end."""
        return sum(batch.looks > 0 for place, batch in enumerate(self.batches.values()) if place >= self.finished)

    @on("POST /v1/files")
    def upload(self, asked):
        assert asked.body == {"purpose": "batch"}
        return {"id": self._store(asked.file, "input"), "object": "file", "status": "processed"}

    @on("GET /v1/files/{name}/content")
    def content(self, asked, name):
        found = self.files.get(name)
        return (404, {"error": {"message": "No such File object"}}) if found is None else Response(found)

    @on("POST /v1/batches")
    def create(self, asked):
        body = asked.body
        assert (body["completion_window"], body["endpoint"]) == ("24h", "/v1/chat/completions")
        lines = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        assert all((line["method"], line["url"]) == ("POST", body["endpoint"]) for line in lines)
        assert len({line["custom_id"] for line in lines}) == len(lines)
        name = f"batch_{self.submitted:03}"
        self.submitted += 1
        counts = {"total": len(lines), "completed": 0, "failed": 0}
        said = {"id": name, "object": "batch", "status": "validating", "request_counts": counts, **body}
        self.batches[name] = Batch(said, lines, self._outcomes.pop(0) if self._outcomes else "completed")
        return said

    @on("GET /v1/batches")
    def listed(self, asked):
        names = list(self.batches)[::-1]
        start = names.index(asked.query["after"]) + 1 if "after" in asked.query else 0
        page = [self.batches[name].said for name in names[start : start + self.page]]
        return {"object": "list", "data": page, "has_more": start + self.page < len(names)}

    @on("GET /v1/batches/{name}")
    def retrieve(self, asked, name):
        if name not in self.batches:
            return 404, {"error": {"message": f"No batch found with id '{name}'."}}
        batch = self.batches[name]
        batch.looks += 1
        if batch.said["status"] in ("validating", "in_progress"):
            batch.said["status"] = "in_progress"
            if batch.looks > 1 and list(self.batches).index(name) < self.finished:
                self._end(batch)
        return batch.said

    def _end(self, batch):
        if batch.outcome in ("failed", "full"):
            code = {"failed": "invalid_model", "full": "token_limit_exceeded"}[batch.outcome]
            listed = [{"code": code, "message": f"scripted: {batch.outcome}", "line": None, "param": None}]
            batch.said |= {"status": "failed", "errors": {"object": "list", "data": listed}}
            return
        for i, line in enumerate(batch.lines):
            whole = batch.outcome == "completed" or i < len(batch.lines) // 2
            self._work(batch, line, self._script.next() if whole else "expired")
        for key, lines in (("output_file_id", batch.answered), ("error_file_id", batch.errors)):
            written = [line if isinstance(line, str) else json.dumps(line) for line in lines[::-1]]
            batch.said[key] = self._store("\n".join(written).encode(), key) if lines else None
        batch.said["status"] = batch.outcome

    def _work(self, batch, line, fault):
        """Answer one request of a batch, or not."""
        body, number = line["body"], {"id": "batch_req_1", "custom_id": line["custom_id"]}
        if fault == "expired":
            said = {"code": "batch_expired", "message": "This request could not be executed in time."}
            batch.errors.append(number | {"response": None, "error": said})
        elif fault in ("policy", "500", "invalid"):
            code = {"policy": "content_filter", "500": "server_error", "invalid": "unknown_parameter"}[fault]
            failed = {"error": {"message": f"scripted: {fault}", "code": code, "type": None}}
            status = 500 if fault == "500" else 400
            batch.errors.append(number | {"response": {"status_code": status, "body": failed}, "error": None})
        elif fault != "absent":
            self.worked[json.dumps(body)] += 1
            self.script.delivered += 1
            choice = self._choice(0, fault, str(body["messages"][-1]["content"]), int(body.get("seed", 0)))
            usage = {"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40}
            answer = {"object": "chat.completion", "choices": [choice], "usage": usage}
            whole = number | {"response": {"status_code": 200, "body": answer}, "error": None}
            batch.answered.append(json.dumps(whole)[:40] if fault == "torn" else whole)

    def _store(self, content, kind):
        name = f"file-{kind}-{len(self.files)}"
        self.files[name] = content
        return name
