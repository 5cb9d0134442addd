"""OpenAI's chat completions as servers speak them, over an imaginary model that fills blanks and
heeds its seed.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.responses import Response

from tests.endpoints.faults import Script
from tests.endpoints.hosted import Hosted, on

_WORDS = (
    "the of and to in is was for on that with as it by at from his her an were are which this be "
    "had has not film place food service story music people night good bad warm cold slow quick "
    "bright quiet old new"
)
WORDS = _WORDS.split()
CONTENT = (
    "refusal",
    "moved refusal",
    "filter",
    "policy",
    "named policy",
    "empty",
    "fewer",
    "no message",
)
"""What comes in an answer; beside them `cut`, `reasoning parts`, `refusal parts`, `thoughts`, `only
thoughts` and `finish REASON`."""

POLICIES = {
    "policy": {
        "message": "The response was filtered",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
    },
    "named policy": {  # as LiteLLM 1.106.2 puts what it knows for one; it keeps no code
        "message": "litellm.ContentPolicyViolationError: OpenAIException - No.",
        "type": "invalid_request_error",
        "param": None,
        "code": "400",
    },
}


class ChatServer(Hosted):
    """An ASGI app: a prompt is answered with thirty words; blanks, with itself and a word for each
    of them.
    """

    @on("GET /v1/models")
    def models(self, asked):
        return {"data": [{"id": "m"}]}

    @on("POST /v1/chat/completions")
    def complete(self, asked):
        body, fault = asked.body, asked.fault
        self.script.requests.append(body)
        if fault in POLICIES:
            return 400, {"error": POLICIES[fault]}
        count = body.get("n", 1) - (fault == "fewer")
        prompt = str(body["messages"][-1]["content"])
        choices = [
            self._choice(i, fault, prompt, int(body.get("seed", 0)) + i) for i in range(count)
        ]
        self.script.delivered += count
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 30 * count,
            "total_tokens": 10 + 30 * count,
        }
        usage |= {"completion_tokens_details": {"reasoning_tokens": 5}}
        return {"object": "chat.completion", "model": "m", "choices": choices, "usage": usage}

    def _choice(self, index, fault, prompt, seed):
        if fault == "no message":
            return {"index": index, "finish_reason": "stop"}
        content: Any = {"empty": " \n", "filter": None, "refusal": None, "moved refusal": None}.get(
            fault, self._written(prompt, seed)
        )
        if fault == "reasoning parts":
            kinds = ("reasoning", "thinking", "reasoning.text")
            content = [
                *({"type": kind, "text": "hm "} for kind in kinds),
                {"type": "output_text", "text": content},
            ]
        if fault == "refusal parts":
            content = [{"type": "refusal", "refusal": "I can't."}]
        if fault in ("thoughts", "only thoughts"):
            content = (
                "<think>hm" if fault == "only thoughts" else f"hm</think>\n\n{content}<|im_end|>"
            )
        message = {
            "role": "assistant",
            "content": content,
            "refusal": "I can't." if fault == "refusal" else None,
        }
        if (
            fault == "moved refusal"
        ):  # as LiteLLM 1.106.2 does with a field that it has no place for
            message = {
                "role": "assistant",
                "content": None,
                "provider_specific_fields": {"refusal": "I can't."},
            }
        ended = {"filter": "content_filter", "cut": "length"}.get(fault, "stop")
        ended = fault.removeprefix("finish ") if fault.startswith("finish ") else ended
        return {"index": index, "finish_reason": ended, "message": message}

    def _written(self, prompt, seed):
        random = np.random.default_rng(seed)
        _, _, text = prompt.partition("\n\n")
        if not text:
            return f'"{" ".join(random.choice(WORDS, 30))}"\n'  # as models like to
        return re.sub(r"\b_\b", lambda _: str(random.choice(WORDS)), text)


LINES = ("refusal", "filter", "policy", "empty", "500", "expired", "absent", "torn")
"""What becomes of single requests of a batch; beside them `invalid`."""


@dataclass
class Batch:
    """A batch and the requests in it."""

    said: dict[str, Any]
    lines: list[dict[str, Any]]
    outcome: str
    looks: int = 0
    answered: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


class BatchServer(ChatServer):
    """Ends each batch at its second look, with its answers in the order from the last to
    the first.
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
        return sum(
            batch.looks > 0
            for place, batch in enumerate(self.batches.values())
            if place >= self.finished
        )

    @on("POST /v1/files")
    def upload(self, asked):
        assert asked.body == {"purpose": "batch"}
        return {"id": self._store(asked.file, "input"), "object": "file", "status": "processed"}

    @on("GET /v1/files/{name}/content")
    def content(self, asked, name):
        found = self.files.get(name)
        return (
            (404, {"error": {"message": "No such File object"}})
            if found is None
            else Response(found)
        )

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
        said = {
            "id": name,
            "object": "batch",
            "status": "validating",
            "request_counts": counts,
            **body,
        }
        self.batches[name] = Batch(
            said, lines, self._outcomes.pop(0) if self._outcomes else "completed"
        )
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
            listed = [
                {"code": code, "message": f"scripted: {batch.outcome}", "line": None, "param": None}
            ]
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
            said = {
                "code": "batch_expired",
                "message": "This request could not be executed in time.",
            }
            batch.errors.append(number | {"response": None, "error": said})
        elif fault in ("policy", "500", "invalid"):
            code = {
                "policy": "content_filter",
                "500": "server_error",
                "invalid": "unknown_parameter",
            }[fault]
            failed = {"error": {"message": f"scripted: {fault}", "code": code, "type": None}}
            status = 500 if fault == "500" else 400
            batch.errors.append(
                number | {"response": {"status_code": status, "body": failed}, "error": None}
            )
        elif fault != "absent":
            self.worked[json.dumps(body)] += 1
            self.script.delivered += 1
            choice = self._choice(
                0, fault, str(body["messages"][-1]["content"]), int(body.get("seed", 0))
            )
            usage = {"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40}
            answer = {"object": "chat.completion", "choices": [choice], "usage": usage}
            whole = number | {"response": {"status_code": 200, "body": answer}, "error": None}
            batch.answered.append(json.dumps(whole)[:40] if fault == "torn" else whole)

    def _store(self, content, kind):
        name = f"file-{kind}-{len(self.files)}"
        self.files[name] = content
        return name
