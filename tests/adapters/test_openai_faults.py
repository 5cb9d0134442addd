"""The OpenAI-style adapter over a server with faults: what is retried, what fails, in which words."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable

import pytest

from adapters.openai_images import OpenAIImages
from pe.errors import APIError, RecipeError, Unavailable
from pe.plugins.protocols import Failed, Refused
from tests.adapters.openai_asking import Make, key, make, random, settings_for
from tests.endpoints.faults import CONTENT, TRANSPORT, Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving

__all__ = ["key", "make"]  # fixtures


def bomb() -> str:
    """A PNG of some 4 kB that says it is 65,535 × 65,535 pixels, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2**22), 9)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


@pytest.mark.parametrize("fault", TRANSPORT)
def test_transport_faults_are_retried_and_counted(make: Make, fault: str) -> None:
    api, script = make(Script(first=(fault, fault)))
    answer = random(api)
    assert len(answer.samples) == 4
    assert not answer.missing
    assert answer.usage.calls == 3
    assert script.seen[fault] == 2


@pytest.mark.parametrize("fault", CONTENT)
def test_what_is_wrong_with_one_image_costs_no_other(make: Make, fault: str) -> None:
    api, script = make(Script(first=(fault,)), size=f"{SIDE}x{SIDE}")
    answer = random(api)
    expected = {"truncated base64": 3, "wrong size": 0, "fewer": 3, "more": 4, "duplicated": 4, "refusal": 0}[fault]
    assert len(answer.samples) == expected
    assert len(answer.missing) == 4 - expected
    outcome = Refused if fault == "refusal" else Failed
    assert all(isinstance(miss, outcome) for miss in answer.missing.values())
    assert answer.usage.images == (0 if fault == "refusal" else script.delivered)


HOSTILE = {
    "no list": {"data": None},
    "an object in place of the list": {"data": {"b64_json": "AAAA"}},
    "a list in place of the object": [{"b64_json": "AAAA"}],
    "entries that are no objects": {"data": [None, 3, "x", ["y"]]},
    "neither image nor address": {"data": [{}, {"b64_json": None}, {"b64_json": 7}, {"b64_json": ""}]},
    "a file": {"data": [{"url": "file:///etc/passwd"}] * 4},
    "plain http": {"data": [{"url": "http://127.0.0.1:1/x.png"}] * 4},
    "an address that is none": {"data": [{"url": "https://[::"}, {"url": 5}, {"url": "https://"}, {"url": ["https"]}]},
    "text that is no base64": {"data": [{"b64_json": "\u00e9" * 50}, {"b64_json": "data:image/png"}] * 2},
    "a bomb": {"data": [{"b64_json": bomb()}] * 4},
    "nesting without end": "[" * 1_000_000,
    "odd usage": {"data": [], "usage": {"total_tokens": "many"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_server_answers_each_item_fails_with_a_sentence(name: str) -> None:
    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        while (await receive()).get("more_body"):
            pass
        body = HOSTILE[name] if isinstance(HOSTILE[name], str) else json.dumps(HOSTILE[name])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    with serving(app) as url:
        answer = random(OpenAIImages(**settings_for(url, tries=2)))
    assert len(answer.samples) == 0
    assert sorted(answer.missing) == [0, 1, 2, 3]
    assert all(isinstance(miss, Failed) and miss.retryable and miss.reason for miss in answer.missing.values())
    assert answer.usage.tokens == 0


def test_an_endpoint_that_is_down_is_waited_for(make: Make) -> None:
    api, _ = make(Script(first=("500",) * 9), tries=3)
    assert random(api).usage.calls == 10
    api, script = make(Script(first=("503 html",) * 999), tries=3, patience=0.5)
    with pytest.raises(Unavailable, match="HTTP 503: 503 Service unavailable"):
        random(api)
    assert script.delivered == 0


def test_a_missing_key_is_one_sentence_and_only_when_it_is_needed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_KEY")
    api, _ = make()
    assert api.capabilities.max_chunk == 4
    with pytest.raises(RecipeError, match="the environment variable THE_KEY is not set"):
        random(api)


def test_without_a_server_the_run_stops_with_its_name() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 gave no answer for .*Connect"):
        random(OpenAIImages(**settings_for("http://127.0.0.1:9", tries=2, patience=0.1)))


def test_the_key_goes_to_no_other_host_by_a_redirect() -> None:
    elsewhere = Script()

    async def redirecting(scope: dict, receive: object, send: Callable) -> None:
        location = f"{scope['state_url']}/v1/images/generations?signed=1".encode()
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
        await send({"type": "http.response.body", "body": b""})

    with serving(OpenAIServer(elsewhere)) as other:

        async def app(scope: dict, receive: object, send: Callable) -> None:
            await redirecting({**scope, "state_url": other}, receive, send)

        with serving(app) as url:
            api = OpenAIImages(**settings_for(url))
            with pytest.raises(APIError, match=r"redirects to 'http://127.0.0.1:\d+/v1/images/generations'"):
                random(api)
    assert not elsewhere.keys
