"""Proxies and certificate authorities of the environment, which every endpoint's client heeds."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.hf_inference import HFInference
from adapters.http import Rejected
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from embeddings.http import HTTPEmbedding
from pe.data.images import Images
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest
from tests.endpoints.authority import Authority
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.sd_server import EmbeddingServer, SDServer
from tests.endpoints.serving import serving

API = OpenAIImages | SDAPI | HFInference
GIVEN: dict[str, Any] = {"prompts": "a {label}", "image_size": 16, "key_env": None, "timeout": 5, "tries": 1}
UNASKED = {"server": None}
APIS: dict[str, tuple[Callable[[Script], object], Callable[..., API]]] = {
    "openai_images": (
        OpenAIServer,
        lambda url, **more: OpenAIImages(base_url=f"{url}/v1", model="m", **GIVEN | UNASKED | more),
    ),
    "sdapi": (SDServer, lambda url, **more: SDAPI(base_url=url, **GIVEN | UNASKED | more)),
    "hf_inference": (SDServer, lambda url, **more: HFInference(base_url=f"{url}/hf", **GIVEN | more)),
}
EACH = pytest.mark.parametrize("kind", APIS)


def by_tls(authority: Authority, **more: object) -> dict[str, Any]:
    return {"ssl_certfile": authority.server[0], "ssl_keyfile": authority.server[1], **more}


def image(kind: str, url: str, **more: object) -> Answer:
    """What an adapter of this kind makes of one request; its connections are closed then."""
    api = APIS[kind][1](url, **more)
    try:
        return asked(api)
    finally:
        del api
        gc.collect()


def asked(api: API) -> Answer:
    seeds = np.array([7], dtype=np.uint64)
    return api.random_api(RandomRequest(("cat",), seeds, api.draw_conditions(("cat",), seeds)))


@EACH
def test_a_request_goes_through_the_proxy_of_the_environment(kind: str, seen: list[str]) -> None:
    with serving(APIS[kind][0](Script())) as url:
        assert len(image(kind, url).samples) == 1
    (asked,) = seen
    assert asked.startswith(f"POST {url}/")


@EACH
def test_what_no_proxy_names_is_asked_directly(kind: str, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(APIS[kind][0](Script())) as url:
        assert len(image(kind, url).samples) == 1
    assert seen == []


@EACH
def test_by_tls_a_proxy_tunnels_and_reads_nothing(
    kind: str, seen: list[str], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    with serving(APIS[kind][0](Script()), **by_tls(authority)) as url:
        assert len(image(kind, url).samples) == 1
    assert seen == [f"CONNECT {url.removeprefix('https://')}"]


def test_private_images_go_through_the_same_proxy(seen: list[str]) -> None:
    with serving(EmbeddingServer(Script())) as url:
        embedding = HTTPEmbedding(url=f"{url}/v1/embeddings", trusted_with_private_data=True, model="m")
        assert embedding.embed(Images(np.zeros((2, 4, 4, 3), dtype=np.uint8))).shape == (2, 3)
    assert seen == [f"POST {url}/v1/embeddings"]


@EACH
def test_a_redirect_is_refused_behind_a_proxy_too(kind: str, seen: list[str]) -> None:
    async def app(scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        headers = [(b"location", b"http://127.0.0.1:1/elsewhere")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with serving(app) as url, pytest.raises(Exception, match="it redirects to"):
        image(kind, url)
    assert [each for each in seen if url in each] == seen[-1:]


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "a folder", None])
@EACH
def test_the_authorities_of_the_environment_are_trusted(
    kind: str, variable: str | None, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if variable in ("SSL_CERT_DIR", "a folder"):
        found = subprocess.run(
            ["openssl", "x509", "-hash", "-noout", "-in", authority.root], capture_output=True, text=True, check=True
        )
        (tmp_path / f"{found.stdout.strip()}.0").write_bytes(authority.root.read_bytes())
        monkeypatch.setenv("REQUESTS_CA_BUNDLE" if variable == "a folder" else variable, str(tmp_path))
    elif variable:
        monkeypatch.setenv(variable, str(authority.root))
    expected = pytest.raises(Rejected, match="unable to get local issuer") if variable is None else nullcontext()
    with serving(APIS[kind][0](Script()), **by_tls(authority)) as url, expected:
        assert len(image(kind, url).samples) == 1


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"])
def test_authorities_that_cannot_be_read_are_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/nowhere/at/all.pem")
    with pytest.raises(RecipeError, match=f"{variable}: .*/nowhere/at/all.pem"):
        image("sdapi", "https://127.0.0.1:1")


def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "ftp://me:canary-8@proxy.example:21")
    with pytest.raises(RecipeError, match="HTTP_PROXY") as error:
        image("sdapi", "http://127.0.0.1:1")
    assert "canary-8" not in str(error.value)
