"""What a request is answered with when it is not done: OpenAI's shape, for all that can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import JSONResponse

CODES: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "unavailable"),
}
"""Status → OpenAI's type, and the code unless another is named; a server answers no other error."""

RETRYABLE = (408, 429, 503)


@dataclass
class Refusal(Exception):
    """A request that is not done.

    Attributes:
        status: one of CODES.
        message: one sentence: what, and what to do.
        param: the field that is to blame.
        code: a machine's word for it; empty: the status's own.
        wait: seconds after which to ask again.
    """

    status: int
    message: str
    param: str | None = None
    code: str = ""
    wait: int | None = None

    def response(self) -> JSONResponse:
        """The answer."""
        kind, code = CODES[self.status]
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code or code}
        headers = {} if self.wait is None else {"Retry-After": str(self.wait)}
        return JSONResponse({"error": error}, self.status, headers)


def unavailable(why: str, wait: int = 2) -> Refusal:
    """Nobody is to blame, and asking again may help."""
    return Refusal(503, f"{why}: ask again in {wait} s.", wait=wait)
