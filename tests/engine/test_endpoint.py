"""What `pe doctor` tells of an endpoint: whether it takes the key, who answers, what that server heeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pe.cli.plan import doctor
from tests.adapters.http.test_credentials import Guarded
from tests.endpoints.foreign import ForeignOpenAI, ForeignSD
from tests.endpoints.serving import serving

RECIPE = """\
private: {{kind: mnist}}
api: {api}
embedding: {{kind: pixels}}
privacy: {{epsilon: 1, delta: 1e-5}}
"""


def told(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (ForeignOpenAI("ovms"), "OpenVINO Model Server, by `kind: openai_images`: degree exact (`strength`)"),
        (ForeignOpenAI("localai"), "LocalAI, by `kind: openai_images`: it cannot vary an image"),
        (ForeignSD("forge"), "Forge, by `kind: sdapi`: degree exact; seed heeded; several parents: each is varied"),
        (ForeignSD("xinference"), "Xinference, by `kind: sdapi`"),
    ],
)
def test_the_server_is_recognised_and_what_it_heeds_is_told(app: Any, words: str) -> None:
    with serving(app) as url:
        for address in (url, f"{url}/v1"):
            result = told("--endpoint", address)
            assert result.exit_code == 0, result.output
            assert words in result.output
    assert not app.requests


def test_an_unknown_server_is_told_to_be_one() -> None:
    app = ForeignOpenAI("ovms")
    app.kind.gets["/v1/models"]["data"][0]["owned_by"] = "somebody"
    with serving(app) as url:
        output = told("--endpoint", url).output
    app.kind.gets["/v1/models"]["data"][0]["owned_by"] = "OVMS"
    assert "serves m" in output
    assert "not recognised, so served with care: one parent a request" in output


def test_a_recipe_s_endpoint_is_looked_at_with_its_own_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("canary-77d1")
    monkeypatch.setenv("TENANT", "a")
    server = Guarded(ForeignOpenAI("sglang"), "Bearer canary-77d1")
    with serving(server) as url:
        api = f"{{kind: openai_images, model: m, prompts: a, image_size: 8, base_url: {url}/v1, key_file: key"
        (tmp_path / "good.yaml").write_text(RECIPE.format(api=api + ", headers_env: {X-Tenant: TENANT}}"))
        (tmp_path / "bad.yaml").write_text(RECIPE.format(api=api.replace("key_file: key", "key_env: null}")))
        good, bad = told(str(tmp_path / "good.yaml")), told(str(tmp_path / "bad.yaml"))
    assert good.exit_code == 0, good.output
    assert "SGLang" in good.output
    assert server.came[0]["x-tenant"] == "a"
    assert bad.exit_code == 1
    assert "HTTP 401" in bad.output
    assert "canary" not in good.output + bad.output


def test_without_an_endpoint_it_is_told_whether_a_run_could_start(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE.format(api="{kind: glyphs}"))
    result = told(str(tmp_path / "r.yaml"))
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "✓ glyphs and pixels: a run could start here")
    api = f"{{kind: causal_lm, model: {tmp_path}, prompts: a}}"
    (tmp_path / "none.yaml").write_text(RECIPE.format(api=api).replace("mnist", "folder, path: nowhere, size: 8"))
    result = told(str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert result.output.startswith("✗ A run would not start: ")
    assert told(str(tmp_path / "r.yaml"), "--key-env", "A").exit_code == 2


def test_a_key_that_is_not_there_is_named() -> None:
    result = told("--endpoint", "http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY")
    assert result.exit_code == 1
    assert "NO_SUCH_KEY is not set" in result.output


OWN = {"vary": "noise", "degree": "exact", "prompts": False, "guidance": False, "shape": [28, 28, 1]}
DRAWN = "the model draws 28×28 (height, width) alone, not"


@pytest.mark.parametrize(
    ("api", "own", "problems"),
    [
        ("kind: openai_images, model: m, prompts: a, image_size: 8", None, []),
        ("kind: openai_images, model: n, prompts: a, image_size: 8", None, ["model n: the endpoint lists none"]),
        ("kind: chat, model: my-model, prompts: a", None, ["model my-model: the endpoint lists none of this name"]),
        (
            "kind: openai_images, model: m, prompts: a, image_size: 8, size: 512x28",
            OWN,
            ["the model takes no prompts", f"{DRAWN} 512x28"],
        ),
        (
            "kind: diffusion_server, prompts: a, guidance: 7.5, size: 512, image_size: 28, vary: meaning",
            OWN,
            ["the server varies images by noise", "takes no prompts", "has no guidance", f"{DRAWN} 512"],
        ),
        ("kind: diffusion_server, classes: {a: 0}, steps: 9", OWN, []),
        ("kind: diffusion_server", OWN | {"prompts": True, "shape": None}, ["takes prompts, and the recipe has none"]),
        ("kind: diffusion_server, prompts: a", None, ["the server is none of `pe serve`"]),
    ],
)
def test_one_look_finds_all_that_the_served_model_does_otherwise(
    tmp_path: Path, api: str, own: dict[str, Any] | None, problems: list[str]
) -> None:
    app = ForeignOpenAI("sglang")
    (entry,) = app.kind.gets["/v1/models"]["data"]
    with serving(app) as url:
        base = url if "diffusion_server" in api else f"{url}/v1"
        (tmp_path / "r.yaml").write_text(RECIPE.format(api=f"{{{api}, base_url: {base}, key_env: null}}"))
        entry |= {"id": "m"} | ({"pe": own} if own else {})
        result = told(str(tmp_path / "r.yaml"), "--json")
        entry.pop("pe", None)
    found = [one["what"] for one in json.loads(result.stdout) if one["state"] == "problem"]
    assert [problem in what for problem, what in zip(problems, found, strict=True)] == [True] * len(problems)
    assert result.exit_code == bool(problems)
