"""A guard before an endpoint, whose keys expire; and a command that gets the next one."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any


class Guarded:
    """An app behind a guard, which lets in who shows one of `accepted`; after `expires` requests nobody but the last.

    Attributes:
        came: the headers of each request.
    """

    def __init__(self, app: Any, *accepted: str, expires: int = 10**9, status: int = 401, words: str = "no") -> None:
        self._app, self._accepted, self._expires = app, accepted, expires
        self._status, self._words = status, words
        self._lock, self._let_in = threading.Lock(), 0
        self.came: list[dict[str, str]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        with self._lock:
            self.came.append(headers)
            accepted = self._accepted if self._let_in < self._expires else self._accepted[-1:]
            good = headers.get("authorization", "") in accepted
            self._let_in += good
        if good:
            await self._app(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        body = f'{{"error": "{self._words}: {headers.get("authorization")}"}}'.encode()
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self._status, "headers": kind})
        await send({"type": "http.response.body", "body": body})


def printing(path: Path) -> list[str]:
    """A command that prints key-1 when it is first run, then key-2, …; it counts in `path`."""
    code = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); n = int(p.read_text()) if p.exists() else 0; "
        "p.write_text(str(n + 1)); print(f'key-{n + 1}')"
    )
    return [sys.executable, "-c", code, str(path)]
