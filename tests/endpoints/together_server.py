"""Together's images/generations, as its OpenAPI description has it (see adapters/hosts.py).

The shape of its errors is described there; the words of a refusal are ours.
"""

from __future__ import annotations

import base64

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.hosted import Hosted, degree_of


class TogetherServer(Hosted):
    """Answers with as many images as asked for, each with a seed of its own."""

    def routes(self) -> list[Route]:
        return [Route("/v1/images/generations", self.generations, methods=["POST"])]

    async def generations(self, request: Request) -> Response:
        body, fault = await request.json(), request.scope["fault"]
        self.script.requests.append(body)
        if fault == "refusal":
            message = "NSFW content detected in prompt."
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
            return JSONResponse({"id": "o1", "error": error}, status_code=422)
        sent = body.get("image_url") or next(iter(body.get("reference_images", ())), None)
        parent = None if sent is None else base64.b64decode(sent.partition(",")[2])
        images = [
            self.drawn(fault, body["seed"] + i, parent, degree_of(body["prompt"]))
            for i in range(body["n"] - (fault == "fewer"))
        ]
        data = [
            {"index": i, "type": "b64_json", "b64_json": base64.b64encode(image).decode()}
            for i, image in enumerate(images)
        ]
        return JSONResponse({"id": "o1", "model": body["model"], "object": "list", "data": data})
