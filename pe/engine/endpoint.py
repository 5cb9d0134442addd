"""Whether an endpoint can be reached and takes the key, and what it serves; asking for no image, by plain HTTP."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from pe.engine.health import Finding

_PATIENCE = 10.0
_MOST = 2**20  # bytes of an answer that are read


class _NoRedirect(HTTPRedirectHandler):
    """The key goes to the host that is named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def endpoint_findings(url: str, key_env: str | None) -> Iterator[Finding]:
    """What can be found out of an endpoint that speaks OpenAI's API; ours is asked whether it is ready, too.

    Args:
        url: its address, with or without /v1.
        key_env: the environment variable that holds the key; None: none is sent.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if urlsplit(base).scheme not in ("http", "https"):
        yield Finding("problem", f"endpoint {url}: no address", "give it as https://HOST or http://HOST:PORT")
        return
    key = os.environ.get(key_env or "", "").strip()
    if key_env and not key:
        yield Finding("problem", f"endpoint {base}: the variable {key_env} is not set", f"export {key_env}=KEY")
        return
    opener = build_opener(_NoRedirect)
    began = time.monotonic()
    status, answer = _get(opener, f"{base}/v1/models", key)
    milliseconds = 1000 * (time.monotonic() - began)
    if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        yield Finding("problem", f"endpoint {base}: {_said(status, answer)}", _remedy(status, base))
        return
    names = ", ".join(str(entry.get("id")) for entry in answer["data"][:5] if isinstance(entry, dict)) or "no model"
    yield Finding("ok", f"endpoint {base}: serves {names}, answers in {milliseconds:.0f} ms")
    ready, why = _get(opener, f"{base}/readyz", "")
    if ready == 503:
        yield Finding("problem", f"endpoint {base}: {_said(ready, why)}", "wait until a replica has its model loaded")
    elif ready == 200:
        yield Finding("ok", f"endpoint {base}: ready")


def _get(opener: OpenerDirector, url: str, key: str) -> tuple[int, Any]:
    """Status and JSON; 0 and why for no answer."""
    request = Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})  # noqa: S310 (http alone, see above)
    try:
        with opener.open(request, timeout=_PATIENCE) as answer:
            return answer.status, _json(answer)
    except HTTPError as error:
        return error.code, _json(error)
    except (URLError, OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))


def _json(answer: IO[bytes]) -> Any:
    try:
        return json.loads(answer.read(_MOST))
    except (ValueError, RecursionError, OSError):
        return None


def _said(status: int, answer: Any) -> str:
    """What went wrong, in the endpoint's own words where it has any."""
    if not status:
        return f"no answer ({answer})"
    error = answer.get("error") if isinstance(answer, dict) else None
    words = error.get("message") if isinstance(error, dict) else None
    return f"HTTP {status}" + (f", {' '.join(str(words).split())[:200]}" if words else "")


def _remedy(status: int, base: str) -> str:
    remedies = {
        0: "see whether it runs, and whether this machine may reach it",
        200: "it does not list models as OpenAI's API does: name the address before /v1",
        401: "name the variable that holds its key: --key-env NAME",
        403: "name the variable that holds its key: --key-env NAME",
        404: f"{base}/v1/models is not there: name the address before /v1",
    }
    return remedies.get(status, "ask again, or look at the endpoint's log")
