"""Errors in OpenAI's shape, for all that can go wrong with a request, also in Ray's HTTP proxy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("ray.serve")

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
"""HTTP status → OpenAI's type of error, and the usual code. No error has any other status."""

_WORDS = {404: "There is no such path; see /openapi.json.", 405: "This path takes another method."}
_PASSED = frozenset(
    b"accept authorization content-length content-type host origin transfer-encoding"
    b" user-agent".split()
)


class Detail(BaseModel):
    """An error as OpenAI describes it."""

    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    """The body of every error."""

    error: Detail


class Refusal(HTTPException):
    """An error to answer a request with.

    Args:
        status: one of CODES.
        message: one sentence: what is wrong, and what to do.
        param: the field of the request that is wrong.
        code: the error's name for programs; empty: the usual one in CODES.
        wait: seconds after which to ask again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str = "",
        wait: int | None = None,
    ) -> None:
        super().__init__(
            status,
            message,
            {} if wait is None else {"Retry-After": str(wait)},
        )
        kind, usual = CODES[status]
        self._error = Error(
            error=Detail(message=message, type=kind, param=param, code=code or usual)
        )

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        return JSONResponse(self._error.model_dump(), self.status_code, self.headers)


def unavailable(why: str) -> Refusal:
    """Return a 503 error, for a failure that the request did not cause."""
    return Refusal(503, f"{why}: ask again in 2 s.", wait=2)


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an error of any kind.

    It repeats nothing of the request but the name of a field.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        name = "".join(map(str, fault["loc"][:1]))[:40].encode("ascii", "replace").decode()
        return Refusal(
            400,
            f"{name or 'The body'}: {fault['msg'][:200]}.",
            name or None,
        )
    if isinstance(error, HTTPException) and error.status_code in _WORDS:
        return Refusal(error.status_code, _WORDS[error.status_code])
    # only the class, because the message may hold a prompt
    log.error("server broke", extra={"error": type(error).__name__})
    return unavailable("The server failed on this request")


def middlewares() -> list[Middleware]:
    """Return the middleware of Ray's proxies.

    They load it by RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH.
    """
    return [Middleware(ProxyMiddleware)]


class ProxyMiddleware:
    """Middleware around Ray's proxy, which passes on only the headers that this server reads.

    The proxy acts on other headers of anybody's request (deadlines, routing) and fails on bytes
    that are not text. When a replica has died it answers in its own words, or not at all; those
    answers become a Refusal.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # stays false for an error that the server did not word, and for no answer at all
        passes = False

        async def answer(message: Message) -> None:
            """Hold back errors that are not in JSON: the server's own are."""
            nonlocal passes
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type")
                passes = message["status"] < 400 or kind == b"application/json"
            if passes:
                await send(message)

        headers = [(name, value) for name, value in scope["headers"] if name in _PASSED]
        with suppress(Exception):  # the proxy itself failed, and has logged why
            await self._app({**scope, "headers": headers}, receive, answer)
        if not passes:
            await unavailable("No replica could answer").response()(scope, receive, send)
