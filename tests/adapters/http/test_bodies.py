"""What comes as an answer's body: bounded as it is unpacked, read once, in whatever encoding it came."""

from __future__ import annotations

import base64
import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import client as client_module
from adapters.http.answers import encoded
from adapters.http.client import HTTPClient
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.settings import Connection
from adapters.server_client import ServerClient
from embeddings.http import HTTPEmbedding
from pe.data.images import Images
from pe.errors import PEError
from pe.plugins.protocols import Failed, RandomRequest
from tests.adapters.http.test_words import MAKE, key, miss
from tests.endpoints.serving import serving

__all__ = ["key"]  # a fixture

CHAT: dict[str, Any] = {"model": "m", "prompts": "a {label}", "key_env": "THE_KEY", "tries": 1}
EACH: dict[str, Callable[[str], str]] = {
    "openai_images": lambda url: miss(MAKE["openai_images"](url)).reason,
    "sdapi": lambda url: miss(MAKE["sdapi"](url)).reason,
    "chat": lambda url: miss(Chat(base_url=f"{url}/v1", **CHAT)).reason,
    "a server of ours": lambda url: miss(ServerClient(base_url=url, prompts="a", tries=1)).reason,
    "an embedding": lambda url: embedded(url),
}


def embedded(url: str) -> str:
    with pytest.raises(PEError) as told:
        HTTPEmbedding(url=url, trusted_with_private_data=True, tries=1).embed(Images.examples(1, (8, 8, 3)))
    return str(told.value)


def sending(body: bytes, status: int = 200, **headers: str) -> Callable[..., Any]:
    """An app that answers each request with this."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return app


ZEROS = bytes(2**23)
BOMBS = {
    "gzip": (gzip.compress(ZEROS), "gzip"),
    "deflate": (zlib.compress(ZEROS), "deflate"),
    "gzip in gzip": (gzip.compress(gzip.compress(ZEROS)), "gzip, gzip"),
    "plain": (ZEROS, "identity"),
}


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("kind", EACH)
def test_no_more_than_so_many_bytes_are_unpacked(
    kind: str, bomb: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 2**21)
    body, encoding = BOMBS[bomb]
    with serving(sending(body, status, content_encoding=encoding)) as url:
        assert "larger than 2097152 bytes" in EACH[kind](url)


@pytest.mark.parametrize("kind", EACH)
def test_what_cannot_be_unpacked_is_told_as_such(kind: str) -> None:
    with serving(sending(b"no gzip", content_encoding="gzip")) as url:
        assert "while decompressing" in EACH[kind](url)


@pytest.mark.parametrize("piece", ["<", "<script", "<a ", "<!--", "</style", "x<script>"])
def test_a_page_of_errors_is_read_in_linear_time(piece: str) -> None:
    began = time.monotonic()
    Fault.of_response(502, {}, piece * (2**21 // len(piece)))
    assert time.monotonic() - began < 0.5


def test_the_words_of_a_page_are_those_that_it_shows() -> None:
    page = "<html><style>b{}</style><title>503</title>Service <b>un</b>available <script>if(a<b){}</script>at 3 < 4"
    assert Fault.of_response(503, {}, page).words == "503 Service un available at 3 < 4"


IMAGE = base64.b64encode(encoded(Images(np.full((1, 16, 16, 3), 9, dtype=np.uint8)))[0])
ODD = b'{"data": [{"b64_json": "%b", "x": "\xe9\xff"}], "images": ["%b"], "usage": {"total_tokens": 1%b}}'
TEXT = b'{"choices": [{"message": {"content": "caf\xe9"}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize("kind", MAKE)
def test_an_answer_that_is_not_utf_8_is_paid_for_once_and_kept(kind: str) -> None:
    with serving(sending(ODD % (IMAGE, IMAGE, b"0" * 5000), content_type="application/json")) as url:
        api = MAKE[kind](url)
        seeds = np.array([7], dtype=np.uint64)
        answer = api.random_api(RandomRequest(("cat",), seeds, api.draw_conditions(("cat",), seeds)))
    assert (answer.samples.pixels == 9).all()
    assert (len(answer.samples), answer.usage.calls) == (1, 1)


@pytest.mark.parametrize(
    ("charset", "text"), [("", None), ("; charset=iso-8859-1", "café"), ("; charset=none-such", None)]
)
def test_a_text_is_read_in_the_encoding_that_the_answer_names_and_else_has_failed(charset: str, text: str) -> None:
    with serving(sending(TEXT, content_type=f"application/json{charset}")) as url:
        api, seeds = Chat(base_url=f"{url}/v1", **CHAT), np.array([7], dtype=np.uint64)
        answer = api.random_api(RandomRequest(("cat",), seeds, api.draw_conditions(("cat",), seeds)))
    if text is None:
        assert answer.missing == {0: Failed("the endpoint sent bytes that are no UTF-8 in a text")}
    else:
        assert answer.samples.strings == [text]
    assert answer.usage.calls == 1


def test_json_is_read_in_utf_16() -> None:
    with serving(sending(json.dumps({"a": "é"}).encode("utf-16"), content_type="application/json")) as url:
        asking = HTTPClient(url, Connection(), 1, Credentials(Connection()))
        assert client_module.object_of(asking.ask("/")) == {"a": "é"}
