"""What becomes of a request before and after the engine; no server is needed."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

from adapters.diffusion.items import Outcome
from adapters.server import bodies
from adapters.server.bodies import JSON, read_body
from adapters.server.errors import Refusal
from adapters.server.formats import BatchRequest
from adapters.server.server import Server
from tests.adapters.server.asking import settings_of


def body_of(pieces: list[bytes], pause: float) -> Awaitable[bytes]:
    """The body of a request whose pieces come after a pause each, the last one again and again."""

    async def comes() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {
            "type": "http.request",
            "body": pieces.pop(0) if pieces else b" ",
            "more_body": pieces != [b"end"],
        }

    request = Request({"type": "http", "headers": [(b"content-type", JSON.encode())]}, comes)
    return read_body(request, JSON, 10**6)


def test_a_body_that_drips_is_given_up_and_a_large_one_has_time_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "_PATIENCE", 0.15)
    with pytest.raises(Refusal) as refusal:
        asyncio.run(asyncio.wait_for(body_of([], 0.001), 20))
    assert refusal.value.status_code == 408
    assert (
        len(asyncio.run(asyncio.wait_for(body_of([bytes(2**14)] * 10 + [b"end"], 0.03), 20)))
        == 10 * 2**14
    )


def server(**limits: Any) -> Server:
    options = [part for name, value in limits.items() for part in ("--limit", f"{name}={value}")]
    return Server(settings_of("small", "--max-batch", "4", *options).model_dump(mode="json"))


async def made(by: Server, *counts: int) -> list[list[Outcome]]:
    """The outcomes of requests for so many images each, all at once."""
    wanted = [BatchRequest(np.arange(count, dtype=np.uint64), steps=1) for count in counts]
    request = Request({"type": "http"})
    return await asyncio.gather(*(by._make(request, each) for each in wanted))


def test_no_key_has_more_under_way_than_it_may_nor_all_together() -> None:
    one = server(requests=2, waiting=8)
    with one._counted("one"), one._counted("one"), one._counted("other"):
        with pytest.raises(Refusal, match="2 requests under way") as refusal, one._counted("one"):
            pass
        assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "1"})
    with one._counted("one"):
        pass
    with pytest.raises(Refusal, match="The server is full") as refusal:
        asyncio.run(made(one, 9, 1))  # the first are more than fit, but the only ones
    assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "2"})
    assert [len(each) for each in asyncio.run(made(one, 4, 4))] == [4, 4]


def test_what_is_not_made_in_time_is_asked_for_later() -> None:
    with pytest.raises(Refusal, match="not finished in time") as refusal:
        asyncio.run(made(server(seconds=0.001), 16))
    assert (refusal.value.status_code, refusal.value.headers) == (503, {"Retry-After": "2"})
