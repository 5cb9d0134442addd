"""Stability's v2beta, as the OpenAPI description behind its reference has it (see adapters/hosts.py)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.endpoints.hosted import Hosted


class StabilityServer(Hosted):
    """Multipart forms in, image/png out; `refusal` is denied, `blurred` is drawn and blurred for its content."""

    def routes(self) -> list[Route]:
        return [Route("/v2beta/stable-image/generate/{service}", self.generate, methods=["POST"])]

    async def generate(self, request: Request) -> Response:
        async with request.form() as form:
            fields: dict[str, Any] = {name: value for name, value in form.items() if isinstance(value, str)}
            parent = await form["image"].read() if "image" in form else None
        self.script.requests.append({**fields, "service": request.path_params["service"], "parents": parent})
        fault, ultra = request.scope["fault"], request.path_params["service"] == "ultra"
        multipart = request.headers["content-type"].startswith("multipart/form-data")
        if not multipart or request.headers["accept"] != "image/*":
            return _error(400, "bad_request", "content-type: must be multipart/form-data")
        if fault == "refusal":
            return _error(403, "content_moderation", "Your request was flagged.")
        if fault == "no credits":
            return _error(402, "payment_required", "You lack sufficient credits to make this request.")
        if not ultra and (parent is not None) != (fields.get("mode") == "image-to-image"):
            return _error(400, "bad_request", "image: is only valid for image-to-image requests")
        if parent is not None and ("strength" not in fields or (not ultra and "aspect_ratio" in fields)):
            return _error(400, "bad_request", "strength: is required")
        image = self.drawn(fault, int(fields["seed"]), parent, float(fields.get("strength", 1)))
        reason = "CONTENT_FILTERED" if fault == "blurred" else "SUCCESS"
        return Response(image, media_type="image/png", headers={"finish-reason": reason, "seed": fields["seed"]})


def _error(status: int, name: str, words: str) -> Response:
    return JSONResponse({"id": "a1b2c3d4", "name": name, "errors": [words]}, status_code=status)
