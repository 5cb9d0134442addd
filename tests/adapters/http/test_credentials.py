"""What tells an endpoint who asks, and how a key that expires is renewed, against real servers on loopback."""

from __future__ import annotations

import base64
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.http import Connection, Endpoints, Rejected
from adapters.openai_images import OpenAIImages
from embeddings.http import HTTPEmbedding
from pe.data.images import Images
from pe.errors import APIError, RecipeError, Unavailable
from tests.adapters.http.test_environment import APIS, EACH, asked, by_tls, image
from tests.endpoints.authority import Authority
from tests.endpoints.faults import Script
from tests.endpoints.guard import Guarded, printing
from tests.endpoints.sd_server import EmbeddingServer
from tests.endpoints.serving import serving


def guarded(kind: str, *accepted: str, **more: Any) -> Guarded:
    return Guarded(APIS[kind][0](Script()), *accepted, **more)


@EACH
def test_basic_auth_and_headers_come_from_the_environment(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIR", "me:canary-pass")
    monkeypatch.setenv("TENANT", "canary-tenant")
    basic = f"Basic {base64.b64encode(b'me:canary-pass').decode()}"
    server = guarded(kind, basic)
    given = {"basic_auth_env": "PAIR", "headers_env": {"X-Tenant": "TENANT"}}
    with serving(server) as url:
        assert len(image(kind, url, **given).samples) == 1
    assert [(each["authorization"], each["x-tenant"]) for each in server.came] == [(basic, "canary-tenant")]


@EACH
def test_without_a_key_none_is_sent(kind: str) -> None:
    server = guarded(kind, "")
    with serving(server) as url:
        assert len(image(kind, url).samples) == 1
    assert not any({"authorization", "api-key"} & each.keys() for each in server.came)


@EACH
def test_a_client_shows_its_certificate(kind: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    tls = by_tls(authority, ssl_ca_certs=str(authority.root), ssl_cert_reqs=ssl.CERT_REQUIRED)
    certificate, key = authority.client
    with serving(APIS[kind][0](Script()), **tls) as url:
        assert len(image(kind, url, client_cert=certificate, client_key=key).samples) == 1
        with pytest.raises(Unavailable):
            image(kind, url, patience=0.1)


def test_a_certificate_that_cannot_be_used_is_named(authority: Authority) -> None:
    with pytest.raises(RecipeError, match=r"client_cert: .*client.pem with the key of .*server.key cannot be used"):
        image("sdapi", "https://127.0.0.1:1", client_cert=authority.client[0], client_key=authority.server[1])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"key_file": "/k", "key_command": ["k"]}, "key_file and key_command are given"),
        ({"key_env": "K", "basic_auth_env": "B"}, "key_env and basic_auth_env are given"),
        ({"client_key": "/k"}, "client_key is given without client_cert"),
        ({"key_command": []}, "at least 1 entries"),
        ({"headers_env": {"a b": "C"}}, "headers_env"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        OpenAIImages(model="m", prompts="a", image_size=16, **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"headers_env": {"X-A": "UNSET_1"}}, "headers_env.X-A: the environment variable UNSET_1 is not set"),
        ({"basic_auth_env": "NO_PAIR"}, "basic_auth_env: the environment variable NO_PAIR has no colon"),
        ({"key_env": "TWO_LINES"}, "key_env: the environment variable TWO_LINES is not one line"),
        ({"key_file": "/nowhere/key"}, "key_file: /nowhere/key cannot be read"),
        ({"key_command": ["/nowhere/program"]}, "key_command: '/nowhere/program' cannot be run"),
        ({"key_command": [sys.executable, "-c", "raise SystemExit('log in')"]}, r"ended with status 1 \(log in\)"),
        ({"key_command": [sys.executable, "-c", ""]}, "what it printed is not one line"),
    ],
)
def test_what_is_not_there_is_named(settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PAIR", "canary")
    monkeypatch.setenv("TWO_LINES", "canary\ncanary")
    with pytest.raises(RecipeError, match=sentence) as error:
        Endpoints(["http://127.0.0.1:1"], Connection(**settings), 1)
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("kind", [*APIS, "http"])
def test_a_password_in_an_address_is_refused(kind: str) -> None:
    url = "http://me:canary-pw@127.0.0.1:1"
    with pytest.raises(RecipeError, match="name in basic_auth_env an environment variable") as error:
        HTTPEmbedding(url=url, trusted_with_private_data=True) if kind == "http" else APIS[kind][1](url)
    assert "canary-pw" not in str(error.value)


@EACH
def test_a_key_that_expires_midway_is_had_anew_from_its_command(kind: str, tmp_path: Path) -> None:
    server = guarded(kind, "Bearer key-1", "Bearer key-2", expires=2)
    with serving(server) as url:
        api = APIS[kind][1](url, key_command=printing(tmp_path / "runs"))
        assert [len(asked(api).samples) for _ in range(4)] == [1] * 4
        del api
    sent = [each["authorization"] for each in server.came]
    assert sent == ["Bearer key-1"] * 3 + ["Bearer key-2"] * 2
    assert (tmp_path / "runs").read_text() == "2"


def test_a_key_s_file_is_read_again_when_it_changes_or_the_key_is_refused(tmp_path: Path) -> None:
    path, server = tmp_path / "key", Guarded(EmbeddingServer(Script()), "Bearer old", "Bearer new", expires=2)
    path.write_text("old\n")
    with serving(server) as url:
        embedding = HTTPEmbedding(url=f"{url}/v1/embeddings", trusted_with_private_data=True, model="m", key_file=path)
        images = Images(np.zeros((2, 4, 4, 3), dtype=np.uint8))
        embedding.embed(images)
        path.unlink()
        embedding.embed(images)  # the old one is sent while there is no new one
        with pytest.raises(RecipeError, match=r"key_file: .* cannot be read"):
            embedding.embed(images)
        path.write_text("new\n")
        embedding.embed(images)
    assert [each["authorization"] for each in server.came] == ["Bearer old"] * 3 + ["Bearer new"]


def test_all_workers_share_one_new_key(tmp_path: Path) -> None:
    server = guarded("sdapi", "Bearer key-2")
    with serving(server) as url:
        api = APIS["sdapi"][1](url, key_command=printing(tmp_path / "runs"), concurrency=8)
        with ThreadPoolExecutor(8) as pool:
            assert [len(answer.samples) for answer in pool.map(lambda _: asked(api), range(24))] == [1] * 24
    assert (tmp_path / "runs").read_text() == "2"


@EACH
def test_a_new_key_that_is_refused_stops_the_run_and_stands_in_no_message(kind: str, tmp_path: Path) -> None:
    server = guarded(kind, "nobody")
    with serving(server) as url, pytest.raises(Rejected, match=r"HTTP 401.*\[key\]") as error:
        image(kind, url, key_command=printing(tmp_path / "runs"))
    assert "key-" not in str(error.value)
    assert [each["authorization"] for each in server.came] == ["Bearer key-1", "Bearer key-2"]


def test_a_key_that_is_the_same_again_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("same")
    server = guarded("sdapi", "nobody")
    with serving(server) as url, pytest.raises(Rejected, match="HTTP 401"):
        image("sdapi", url, key_file=tmp_path / "key")
    assert len(server.came) == 1


def test_a_refusal_of_a_content_filter_renews_no_key(tmp_path: Path) -> None:
    server = guarded("sdapi", "nobody", status=403, words="blocked by the content filter")
    with serving(server) as url:
        assert len(image("sdapi", url, key_command=printing(tmp_path / "runs")).missing) == 1
    assert (tmp_path / "runs").read_text() == "1"


def test_a_command_that_fails_midway_is_named(tmp_path: Path) -> None:
    once = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.exists() and sys.exit('log in'); p.touch(); "
    server = guarded("openai_images", "nobody")
    with serving(server) as url, pytest.raises((APIError, RecipeError), match=r"key_command.*log in"):
        image("openai_images", url, key_command=[sys.executable, "-c", f"{once}print('k')", str(tmp_path / "ran")])


def test_azure_has_keys_in_a_header_of_their_own_and_tokens_that_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "azure-key")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = Guarded(None, "nobody")
    given = {"model": "m", "prompts": "a", "image_size": 16, "azure_api_version": "2025-04-01"}
    with serving(server) as url:
        for held in ({"key_env": "THE_KEY"}, {"key_command": printing(tmp_path / "runs")}):
            with pytest.raises(Rejected):
                asked(OpenAIImages(base_url=url, **given | held))
    sent = [(each.get("api-key"), each.get("authorization")) for each in server.came]
    assert sent == [("azure-key", None), (None, "Bearer key-1"), (None, "Bearer key-2")]
