"""What is decided on a request before it reaches a replica; no server is needed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

from adapters.server import ingress as bodies
from adapters.server.checks import Description, Settings, checked
from adapters.server.errors import Door, Refusal
from adapters.server.formats import BatchRequest
from adapters.server.ingress import JSON, Bounded

SMALL = Description("small", 16, class_count=62, shape=(28, 28, 1))


def wanted(size: tuple[int, int] | None) -> BatchRequest:
    return BatchRequest(np.zeros(1, np.uint64), size=size)


def test_a_model_of_one_size_takes_that_size_and_no_other() -> None:
    settings = Settings(model="small")
    found = [checked(wanted(size), SMALL, settings) for size in (None, (28, 28))]
    assert [each.size for each in found] == [None, None]  # both are of one batch
    with pytest.raises(Refusal, match="28x28"):
        checked(wanted((28, 32)), SMALL, settings)


def test_a_body_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_PATIENCE", 0.1)

    async def drips() -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def read() -> None:
        scope = {"type": "http", "headers": [(b"content-type", JSON.encode())]}
        async for _ in Bounded(Request(scope, drips), JSON, 10**6).stream():
            pass

    with pytest.raises(Refusal) as refusal:
        asyncio.run(asyncio.wait_for(read(), 20))
    assert refusal.value.status_code == 408


def test_a_large_body_has_time_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_PATIENCE", 0.15)
    pieces = [bytes(2**14)] * 10

    async def comes() -> dict[str, Any]:
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

    async def read() -> bytes:
        return await Bounded(
            Request({"type": "http", "headers": [(b"content-type", JSON.encode())]}, comes), JSON, 10**6
        ).body()

    assert len(asyncio.run(read())) == 10 * 2**14


def test_a_request_without_a_path_does_not_reach_the_proxy() -> None:
    sent: list[dict[str, Any]] = []

    async def proxy(*_: Any) -> None:
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Door(proxy)({"type": "http", "method": "GET", "path": "*", "headers": []}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["error"]["type"] == "invalid_request_error"
