"""OpenAI's images API as servers speak it: JSON generations, multipart edits and variations."""

import base64

import numpy as np

from tests.endpoints.hosted import Hosted, encoded, on, pixels_of

SIDE = 16


class OpenAIServer(Hosted):
    """Every image has pixels of its own, so that it can be found again."""

    fails_at_get = False  # who are you: it does not say

    def __init__(self, script, response_format="b64_json", side=SIDE, heeds=None):
        super().__init__(script, side)
        self._format, self._heeds, self._random = response_format, heeds, np.random.default_rng(0)
        self.drawn: list[bytes] = []

    @on("POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/images/variations")
    def images(self, asked):
        return self._answer(asked.fault, asked.body, [asked.file] if asked.file else None)

    def _answer(self, fault, body, parents):
        self.script.requests.append({**body, "parents": parents})
        if fault == "refusal":
            error = {
                "message": "Your request was rejected by the safety system.",
                "code": "moderation_blocked",
            }
            return 400, {"error": error}
        if self._format == "refused" and "response_format" in body:
            error = {
                "message": "Unknown parameter: 'response_format'.",
                "code": "unknown_parameter",
            }
            return 400, {"error": error}
        count = int(body.get("n", 1)) + {"fewer": -1, "more": 1}.get(fault, 0)
        parent = parents[0] if parents and self._heeds else None
        share = 1.0 if parent is None else float(body.get(self._heeds, 0.75))
        if parent is not None and self._heeds == "nothing":
            self._random = np.random.default_rng(list(parent))
        files = [
            self._image(self.side + (fault == "wrong size"), parent, share) for _ in range(count)
        ]
        self.drawn += files
        images = [base64.b64encode(file).decode() for file in files]
        if fault == "duplicated":
            images = images[:1] * count
        if fault == "truncated base64":
            images[0] = images[0][: len(images[0]) // 2 * 2 - 7]
        self.script.delivered += count
        asked = {
            "text_tokens": (1 if parents else 3) * count,
            "image_tokens": 2 * count * bool(parents),
        }
        usage = {"total_tokens": 10 * count, "input_tokens": 3 * count, "output_tokens": 7 * count}
        inside = body.get("response_format", self._format) != "url"
        data = [{"b64_json": image} if inside else {"url": "/images/0.png"} for image in images]
        return {"created": 1, "data": data, "usage": usage | {"input_tokens_details": asked}}

    def _image(self, side, parent, share):
        pixels = self._random.integers(0, 256, (side, side, 3)).astype(np.uint8)
        if parent is not None:
            kept = self._random.random((side, side, 1)) >= share
            pixels = np.where(kept, pixels_of(parent), pixels)
        return encoded(pixels)
