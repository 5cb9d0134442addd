"""What went wrong, in the words of the server and of the libraries below: whole, in one line, without the key."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.http import Rejected
from adapters.http import policy as policy_module
from adapters.http.faults import LONGEST
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.plugins.protocols import Failed, RandomRequest, Refused
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving

KEY = "sk-canary-90d4"
GIVEN: dict[str, Any] = {"prompts": "a {label}", "image_size": 16, "tries": 2, "key_env": "THE_KEY", "timeout": 5}
MAKE: dict[str, Callable[[str], OpenAIImages | SDAPI]] = {
    "openai_images": lambda url: OpenAIImages(base_url=f"{url}/v1", model="m", **GIVEN),
    "sdapi": lambda url: SDAPI(base_url=url, **GIVEN),
}
EACH = pytest.mark.parametrize("kind", MAKE)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setattr(policy_module, "FIRST", 0.01)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


def reason(kind: str, url: str) -> str:
    """Why one image is not there."""
    return miss(MAKE[kind](url)).reason


def miss(api: Any) -> Refused | Failed:
    seeds = np.array([7], dtype=np.uint64)
    return api.random_api(RandomRequest(("cat",), seeds, api.draw_conditions(("cat",), seeds))).missing[0]


def saying(answer: object, came: list[str] | None = None) -> Callable[..., Any]:
    """An app that answers with this, and status 200; `came` are the methods of its requests."""

    async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if came is not None:
            came.append(scope["method"])
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


@EACH
@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "CUDA out\nof \x1b[31mmemory", "code": 500}},
        {"error": "CUDA out\nof \x1b[31mmemory"},
        {"detail": "CUDA out\nof \x1b[31mmemory", "images": None},
        {"error": "CUDA out\nof \x1b[31mmemory", "images": [], "data": []},
    ],
)
def test_an_error_that_comes_as_a_success_is_told_in_the_server_s_words(kind: str, answer: dict[str, object]) -> None:
    with serving(saying(answer)) as url:
        assert reason(kind, url) == "HTTP 200: the answer holds no list of images: CUDA out of [31mmemory"


@EACH
@pytest.mark.parametrize(
    "error", [{"message": "no", "code": "content_filter"}, "NSFW content was found", {"type": "moderation_blocked"}]
)
def test_a_refusal_that_comes_as_a_success_is_one_and_is_not_asked_again(kind: str, error: object) -> None:
    came: list[str] = []
    with serving(saying({"error": error}, came)) as url:
        assert isinstance(miss(MAKE[kind](url)), Refused)
    assert came.count("POST") == 1


@EACH
def test_an_answer_without_words_is_told_by_its_keys(kind: str) -> None:
    with serving(saying({"job": 5, "state": "queued"})) as url:
        assert reason(kind, url).endswith("no list of images: it has the keys ['job', 'state']")


@EACH
@pytest.mark.parametrize("before", range(LONGEST - 70, LONGEST, 7))
def test_words_are_bounded_and_hold_no_part_of_the_key(kind: str, before: int) -> None:
    with serving(saying({"error": "x" * before + KEY + "y" * 5000})) as url:
        said = reason(kind, url)
    assert len(said) < LONGEST + 20
    assert KEY[:6] not in said


@EACH
@pytest.mark.parametrize(("known", "words"), [(False, "self-signed certificate"), (True, "not valid for '127.0.0.1'")])
def test_a_certificate_s_fault_is_named(
    kind: str, known: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=other.example", "-addext", "subjectAltName=DNS:other.example"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*new, "-keyout", key_file, "-out", certificate], check=True, capture_output=True)
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = serving(OpenAIServer(Script()), ssl_certfile=certificate, ssl_keyfile=key_file)
    with server as url, pytest.raises(Rejected, match=f"{words}.*name its authority's file in SSL_CERT_FILE"):
        reason(kind, url)  # at once: it would fail for ever
