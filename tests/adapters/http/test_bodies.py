"""What comes as an answer's body: bounded as it is unpacked, read once, in whatever encoding it came."""

from __future__ import annotations

import base64
import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import client as client_module
from adapters.http.answers import PictureRule, encoded
from adapters.http.client import HTTPClient
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.policy import Outcome
from adapters.http.settings import Connection
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from adapters.server_client import ServerClient
from embeddings.http import HTTPEmbedding, vectors_of
from pe.data.images import Images
from pe.errors import PEError, Unavailable
from pe.plugins.protocols import Failed, RandomRequest
from tests.adapters.http.test_words import GIVEN, MAKE, key, miss, saying
from tests.endpoints.serving import serving

__all__ = ["key"]  # a fixture

CHAT: dict[str, Any] = {"model": "m", "prompts": "a {label}", "key_env": "THE_KEY", "tries": 1}
SHORT = {"patience": 0.2}
EACH: dict[str, Callable[[str], str]] = {
    "openai_images": lambda url: missed(OpenAIImages(base_url=f"{url}/v1", model="m", **GIVEN, **SHORT)),
    "sdapi": lambda url: missed(SDAPI(base_url=url, **GIVEN, **SHORT)),
    "chat": lambda url: missed(Chat(base_url=f"{url}/v1", **CHAT, **SHORT)),
    "a server of ours": lambda url: missed(ServerClient(base_url=url, prompts="a", tries=1, **SHORT)),
    "an embedding": lambda url: embedded(url),
}


def missed(api: Any) -> str:
    try:
        return miss(api).reason
    except Unavailable as error:
        return str(error)


def embedded(url: str) -> str:
    with pytest.raises(PEError) as told:
        HTTPEmbedding(url=url, trusted_with_private_data=True, tries=1, **SHORT).embed(Images.examples(1, (8, 8, 3)))
    return str(told.value)


def sending(body: bytes, status: int = 200, came: list[str] | None = None, **headers: str) -> Callable[..., Any]:
    """An app that answers each request with this; `came` are the methods of its requests."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if came is not None:
            came.append(scope["method"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return app


ZEROS = bytes(2**23)
BOMBS = {
    "gzip": (gzip.compress(ZEROS), "gzip", 200),
    "deflate": (zlib.compress(ZEROS), "deflate", 503),
    "gzip in gzip": (gzip.compress(gzip.compress(ZEROS)), "gzip, gzip", 200),
    "plain": (ZEROS, "identity", 200),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("kind", EACH)
def test_no_more_than_so_many_bytes_are_unpacked(kind: str, bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BYTES", 2**21)
    body, encoding, status = BOMBS[bomb]
    with serving(sending(body, status, content_encoding=encoding)) as url:
        assert "larger than 2097152 bytes" in EACH[kind](url)


@pytest.mark.parametrize("kind", EACH)
def test_what_cannot_be_unpacked_is_told_as_such_and_asked_for_once(kind: str) -> None:
    came: list[str] = []
    with serving(sending(b"no gzip", came=came, content_encoding="gzip")) as url:
        assert "the answer cannot be unpacked: Error -3 while decompressing" in EACH[kind](url)
    assert came.count("POST") == 1


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
        assert client_module.object_of(asking.ask("GET", "/")) == {"a": "é"}


FILE = base64.b64decode(IMAGE)
PADDED = base64.b64encode(FILE + b"\0" * (-len(FILE) % 3) + b"\xfb\xff\xbf\0").decode()  # +/+/AA==
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "MIME's lines": lambda text: "\r\n".join(text[i : i + 76] for i in range(0, len(text), 76)) + "\r\n",
    "spaces and tabs": lambda text: f" \t{text[:50]} {text[50:]}",
    "no padding": lambda text: text.rstrip("="),
    "URL-safe": lambda text: text.replace("+", "-").replace("/", "_"),
    "a data URI": lambda text: f"data:image/png;base64,\n{quote(text)}",
}
BROKEN = ["", "=", "A", "AAAAA", "AA=AAA==", "AAAA!", "\u00e9" * 8]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MAKE)
def test_base64_is_read_as_servers_write_it(kind: str, form: str) -> None:
    text = FORMS[form](PADDED)
    with serving(saying({"data": [{"b64_json": text}], "images": [text]})) as url:
        api, seeds = MAKE[kind](url), np.array([7], dtype=np.uint64)
        answer = api.random_api(RandomRequest(("cat",), seeds, api.draw_conditions(("cat",), seeds)))
    assert (answer.samples.pixels == 9).all()
    assert len(answer.samples) == 1


@pytest.mark.parametrize("form", [form for form in FORMS if form != "a data URI"])
def test_vectors_in_base64_are_read_alike(form: str) -> None:
    vector = np.array([np.nan, -1.5, 3e8, 0.1], "<f4")
    text = FORMS[form](base64.b64encode(vector.tobytes()).decode())
    outcome = Outcome([{"index": 0, "embedding": text}], None, 1)
    assert np.array_equal(vectors_of(outcome, 1, "image", "host")[0], vector, equal_nan=True)


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_base64_has_failed(text: str) -> None:
    found = PictureRule(16, 16).decode_text(text)
    assert isinstance(found, Failed)
    assert "base64" in found.reason or "no PNG" in found.reason
