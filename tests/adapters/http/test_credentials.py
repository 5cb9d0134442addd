"""What tells an endpoint who asks, and how a key that expires is renewed, against real servers on
loopback.
"""

import base64
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import Connection, Credentials, Rejected
from adapters.http.faults import LONGEST, Fault
from adapters.openai_images import OpenAIImages
from embeddings.http import HTTPEmbedding
from pe.data.images import Images
from pe.errors import RecipeError
from tests.adapters.http.test_client import asked, sdapi
from tests.endpoints.asking import CANARY, random
from tests.endpoints.guard import Guarded, printing
from tests.endpoints.sd_server import EmbeddingServer, SDServer


def guarded(*accepted, **more):
    return Guarded(SDServer(None), *accepted, **more)


def test_basic_auth_and_headers_come_from_the_environment(serve, monkeypatch):
    monkeypatch.setenv("PAIR", "me:canary-pass")
    monkeypatch.setenv("TENANT", "canary-tenant")
    basic = f"Basic {base64.b64encode(b'me:canary-pass').decode()}"
    server = guarded(basic)
    settings = {"basic_auth_env": "PAIR", "headers_env": {"X-Tenant": "TENANT"}}
    assert len(asked(serve(server), **settings).samples) == 1
    assert [(each["authorization"], each["x-tenant"]) for each in server.came] == [
        (basic, "canary-tenant")
    ]


FAILING = [sys.executable, "-c", "raise SystemExit('log in')"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"key_file": "/k", "key_command": ["k"]}, "`key_file` and `key_command` are set"),
        ({"client_key": "/k"}, "`client_key` needs `client_cert`"),
        (
            {"headers_env": {"X-A": "UNSET_1"}},
            "headers_env.X-A: the environment variable UNSET_1 is not set",
        ),
        (
            {"basic_auth_env": "NO_PAIR"},
            "basic_auth_env: the environment variable NO_PAIR has no colon",
        ),
        ({"key_env": "TWO_LINES"}, "key_env: the environment variable TWO_LINES is not one line"),
        ({"key_command": ["/nowhere/program"]}, "key_command: '/nowhere/program' cannot be run"),
        ({"key_command": FAILING}, r"ended with status 1 \(log in\)"),
        (
            {"base_url": "http://me:canary@127.0.0.1:1"},
            "name in `basic_auth_env` an environment variable",
        ),
    ],
)
def test_a_setting_that_names_no_key_is_one_sentence(settings, sentence, monkeypatch):
    monkeypatch.setenv("NO_PAIR", "canary")
    monkeypatch.setenv("TWO_LINES", "canary\ncanary")
    with pytest.raises(RecipeError, match=sentence) as error:
        random(
            OpenAIImages(
                **{"model": "m", "prompts": "a", "image_size": 16, "server": None, **settings}
            )
        )
    assert "canary" not in str(error.value)


def test_a_password_in_the_address_of_private_images_is_refused():
    with pytest.raises(RecipeError, match="url` holds a user or a password") as error:
        HTTPEmbedding(url="http://me:canary-pw@127.0.0.1:1", trusted_with_private_data=True)
    assert "canary-pw" not in str(error.value)


def test_a_key_that_expires_midway_is_had_anew_from_its_command(serve, tmp_path):
    server = guarded("Bearer key-1", "Bearer key-2", expires=2)
    api = sdapi(serve(server), key_command=printing(tmp_path / "runs"))
    assert [len(random(api).samples) for _ in range(4)] == [1] * 4
    sent = [each["authorization"] for each in server.came]
    assert sent == ["Bearer key-1"] * 3 + ["Bearer key-2"] * 2
    assert (tmp_path / "runs").read_text().strip() == "2"


def test_a_key_s_file_is_read_again_when_it_changes_or_the_key_is_refused(serve, tmp_path):
    path, server = (
        tmp_path / "key",
        Guarded(EmbeddingServer(None), "Bearer old", "Bearer new", expires=2),
    )
    path.write_text("old\n")
    url = f"{serve(server)}/v1/embeddings"
    embedding = HTTPEmbedding(url=url, trusted_with_private_data=True, model="m", key_file=path)
    images = Images(np.zeros((2, 4, 4, 3), dtype=np.uint8))
    embedding.embed(images)
    path.unlink()
    embedding.embed(images)  # the old one is sent while there is no new one
    with pytest.raises(RecipeError, match=r"key_file: .* cannot be read"):
        embedding.embed(images)
    path.write_text("new\n")
    embedding.embed(images)
    assert [each["authorization"] for each in server.came] == ["Bearer old"] * 3 + ["Bearer new"]


def test_all_workers_share_one_new_key(serve, tmp_path):
    api = sdapi(
        serve(guarded("Bearer key-2")), key_command=printing(tmp_path / "runs"), concurrency=8
    )
    with ThreadPoolExecutor(8) as pool:
        assert [len(answer.samples) for answer in pool.map(lambda _: random(api), range(16))] == [
            1
        ] * 16
    assert (tmp_path / "runs").read_text().strip() == "2"


def test_a_new_key_that_is_refused_stops_the_run_and_stands_in_no_message(serve, tmp_path):
    server = guarded("nobody")
    with pytest.raises(Rejected, match=r"HTTP 401.*\[key\]") as error:
        asked(serve(server), key_command=printing(tmp_path / "runs"))
    assert "key-" not in str(error.value)
    assert [each["authorization"] for each in server.came] == ["Bearer key-1", "Bearer key-2"]


def test_a_key_that_is_the_same_again_is_not_tried_again(serve, tmp_path):
    (tmp_path / "key").write_text("same")
    server = guarded("nobody")
    with pytest.raises(Rejected, match="HTTP 401"):
        asked(serve(server), key_file=tmp_path / "key")
    assert len(server.came) == 1


@pytest.mark.parametrize(
    ("adapter", "task", "more"),
    [(OpenAIImages, "images/generations", {"image_size": 16}), (Chat, "chat/completions", {})],
)
def test_azure_has_addresses_and_a_header_for_keys_of_its_own_and_tokens_that_expire(
    adapter, task, more, serve, tmp_path
):
    server = Guarded(None, "nobody")
    settings = {
        "base_url": serve(server),
        "model": "m/1",
        "prompts": "a",
        "azure_api_version": "2025-04-01",
    } | more
    for held in ({"key_env": "THE_KEY"}, {"key_command": printing(tmp_path / "runs")}):
        with pytest.raises(Rejected):
            random(adapter(**settings | held))
    sent = [(each.get("api-key"), each.get("authorization")) for each in server.came]
    assert sent == [(CANARY, None), (None, "Bearer key-1"), (None, "Bearer key-2")]
    assert {each["to"] for each in server.came} == {
        f"/openai/deployments/m/1/{task}?api-version=2025-04-01"
    }


@pytest.mark.parametrize("before", [0, LONGEST - 10])
def test_a_message_holds_no_part_of_a_key_not_even_one_that_is_cut_off(before, monkeypatch):
    monkeypatch.setenv("A_KEY", "sk-canary-90d4-xyz")
    words = Credentials(Connection(key_env="A_KEY")).clean(
        Fault("x" * before + "sk-canary-90d4-xyz" + "y" * 500).words
    )
    assert "sk-can" not in words
    assert "[key]" in words
