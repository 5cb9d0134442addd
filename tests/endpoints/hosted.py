"""What the scripted servers of hosts share: faults, and an imaginary model that heeds its seed and the degree."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.routing import Route

from adapters.prompts import LADDER
from tests.endpoints.faults import Script, fail, lost


class Hosted:
    """An ASGI app.

    Args:
        script: which requests fail.
        side: of its images, pixels.
    """

    key_header: ClassVar[bytes] = b"authorization"

    def __init__(self, script: Script, side: int = 64) -> None:
        self.script, self.side = script, side
        self._app = Starlette(routes=self.routes())

    def routes(self) -> list[Route]:
        raise NotImplementedError

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        self.script.keys.add(headers.get(self.key_header, b"").decode())
        self.script.bearers.add(headers.get(b"authorization", b"").decode())
        scope["fault"] = self.script.next()
        if not (scope["fault"] and await fail(scope["fault"], send)):
            await self._app(scope, receive, lost if scope["fault"] == "lost" else send)

    def drawn(self, fault: str, seed: int, parent: bytes | None = None, degree: float = 1.0) -> bytes:
        """A PNG file of the seed's noise; of a variation, `degree` of the way from the parent to it."""
        side = self.side + (fault == "wrong size")
        pixels = np.random.default_rng(seed).uniform(0, 255, (side, side, 3))
        if parent is not None:
            old = np.asarray(Image.open(io.BytesIO(parent)).convert("RGB").resize((side, side)), dtype=float)
            pixels = old + degree * (pixels - old)
        buffer = io.BytesIO()
        Image.fromarray(np.rint(pixels).astype(np.uint8)).save(buffer, "PNG")
        self.script.delivered += 1
        return buffer.getvalue()[: 400 if fault == "truncated" else None]


def degree_of(prompt: str) -> float:
    """The degree that a shipped wording in a prompt tells; 1 where it holds none."""
    return next((degree for degree, text in LADDER.items() if str(text) in prompt), 1.0)
