"""OpenAI's files and batches as its API reference has them, over the scripted server of chat completions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script

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

    def __init__(self, script: Script, outcomes: tuple[str, ...] = (), lines: Script | None = None) -> None:
        super().__init__(script)
        self._outcomes, self._script = list(outcomes), lines or Script()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.worked: Counter[str] = Counter()
        self.finished, self.submitted, self.page = float("inf"), 0, 2

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("/v1/files", self.upload, methods=["POST"]),
            Route("/v1/files/{id}/content", self.content),
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.list),
            Route("/v1/batches/{id}", self.retrieve),
        ]

    @property
    def held(self) -> int:
        """Batches that were looked at, and may not end."""
        return sum(batch.looks > 0 for place, batch in enumerate(self.batches.values()) if place >= self.finished)

    async def upload(self, request: Request) -> Response:
        async with request.form() as form:
            assert form["purpose"] == "batch"
            content = await form["file"].read()
        said = {"id": self._store(content, "input"), "object": "file", "bytes": len(content), "created_at": 1795485721}
        return JSONResponse(said | {"filename": "requests.jsonl", "purpose": "batch", "status": "processed"})

    async def content(self, request: Request) -> Response:
        found = self.files.get(request.path_params["id"])
        if found is None:
            return JSONResponse({"error": {"message": "No such File object"}}, status_code=404)
        return Response(found, media_type="application/octet-stream")

    async def create(self, request: Request) -> Response:
        asked = await request.json()
        assert (asked["completion_window"], asked["endpoint"]) == ("24h", "/v1/chat/completions")
        lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        assert all((line["method"], line["url"]) == ("POST", asked["endpoint"]) for line in lines)
        assert len({line["custom_id"] for line in lines}) == len(lines)
        name = f"batch_{self.submitted:03}"
        self.submitted += 1
        counts = {"total": len(lines), "completed": 0, "failed": 0}
        said = {"id": name, "object": "batch", "status": "validating", "request_counts": counts, **asked}
        said["created_at"] = 1795485721
        self.batches[name] = Batch(said, lines, self._outcomes.pop(0) if self._outcomes else "completed")
        return JSONResponse(said)

    async def list(self, request: Request) -> Response:
        names = list(self.batches)[::-1]
        start = names.index(request.query_params["after"]) + 1 if "after" in request.query_params else 0
        page = names[start : start + self.page]
        said = [self.batches[name].said for name in page]
        return JSONResponse({"object": "list", "data": said, "has_more": start + self.page < len(names)})

    async def retrieve(self, request: Request) -> Response:
        name = request.path_params["id"]
        if name not in self.batches:
            return JSONResponse({"error": {"message": f"No batch found with id '{name}'."}}, status_code=404)
        batch = self.batches[name]
        batch.looks += 1
        if batch.said["status"] in ("validating", "in_progress"):
            batch.said["status"] = "in_progress"
            if batch.looks > 1 and list(self.batches).index(name) < self.finished:
                self._end(batch)
        return JSONResponse(batch.said)

    def _end(self, batch: Batch) -> None:
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

    def _work(self, batch: Batch, line: dict[str, Any], fault: str) -> None:
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
            batch.answered.append(json.dumps(whole)[:40] if fault == "torn" else whole)  # type: ignore[arg-type]

    def _store(self, content: bytes, kind: str) -> str:
        name = f"file-{kind}-{len(self.files)}"
        self.files[name] = content
        return name
