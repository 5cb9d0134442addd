"""OpenAI's chat completions as servers speak them, over an imaginary model that fills blanks and heeds its seed."""

import re
from typing import Any

import numpy as np

from tests.endpoints.hosted import Hosted, on

_WORDS = (
    "the of and to in is was for on that with as it by at from his her an were are which this be had has not "
    "film place food service story music people night good bad warm cold slow quick bright quiet old new"
)
WORDS = _WORDS.split()
CONTENT = ("refusal", "moved refusal", "filter", "policy", "named policy", "empty", "fewer", "no message")
"""What comes in an answer; beside them `cut`, `parts`, `reasoning parts`, `refusal parts`, `thoughts`, `only thoughts`
and `finish REASON`."""

POLICIES = {
    "policy": {"message": "The response was filtered", "type": None, "param": "prompt", "code": "content_filter"},
    "named policy": {  # as LiteLLM 1.106.2 puts what it knows for one; it keeps no code
        "message": "litellm.ContentPolicyViolationError: OpenAIException - No.",
        "type": "invalid_request_error",
        "param": None,
        "code": "400",
    },
}


class ChatServer(Hosted):
    """An ASGI app: a prompt is answered with thirty words; blanks, with itself and a word for each of them."""

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
        choices = [self._choice(i, fault, prompt, int(body.get("seed", 0)) + i) for i in range(count)]
        self.script.delivered += count
        usage = {"prompt_tokens": 10, "completion_tokens": 30 * count, "total_tokens": 10 + 30 * count}
        usage |= {"completion_tokens_details": {"reasoning_tokens": 5}}
        return {"object": "chat.completion", "model": "m", "choices": choices, "usage": usage}

    def _choice(self, index, fault, prompt, seed):
        if fault == "no message":
            return {"index": index, "finish_reason": "stop"}
        content: Any = {"empty": " \n", "filter": None, "refusal": None, "moved refusal": None}.get(
            fault, self._written(prompt, seed)
        )
        if fault == "parts":
            content = [{"type": "text", "text": content[:9]}, {"type": "text", "text": content[9:]}]
        if fault == "reasoning parts":
            kinds = ("reasoning", "thinking", "reasoning.text")
            content = [*({"type": kind, "text": "hm "} for kind in kinds), {"type": "output_text", "text": content}]
        if fault == "refusal parts":
            content = [{"type": "refusal", "refusal": "I can't."}]
        if fault in ("thoughts", "only thoughts"):
            content = "<think>hm" if fault == "only thoughts" else f"hm</think>\n\n{content}<|im_end|>"
        message = {"role": "assistant", "content": content, "refusal": "I can't." if fault == "refusal" else None}
        if fault == "moved refusal":  # as LiteLLM 1.106.2 does with a field that it has no place for
            message = {"role": "assistant", "content": None, "provider_specific_fields": {"refusal": "I can't."}}
        ended = {"filter": "content_filter", "cut": "length"}.get(fault, "stop")
        ended = fault.removeprefix("finish ") if fault.startswith("finish ") else ended
        return {"index": index, "finish_reason": ended, "message": message}

    def _written(self, prompt, seed):
        random = np.random.default_rng(seed)
        _, _, text = prompt.partition("\n\n")
        if not text:
            return f'"{" ".join(random.choice(WORDS, 30))}"\n'  # as models like to
        return re.sub(r"\b_\b", lambda _: str(random.choice(WORDS)), text)
