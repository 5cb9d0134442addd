"""What `pe doctor` tells of an endpoint: whether it takes the key, who answers, what that server
heeds.
"""

import json

import pytest
from click.testing import CliRunner

from pe.cli.doctor import doctor
from tests.endpoints.foreign import ForeignOpenAI
from tests.endpoints.guard import Guarded
from tests.endpoints.serving import serving


def told(*arguments):
    return CliRunner().invoke(doctor, list(map(str, arguments)))


def recipe(folder, api, private="{kind: mnist}"):
    sections = [f"private: {private}", f"api: {{{api}}}"]
    sections += ["embedding: {kind: pixels}", "privacy: {epsilon: 1, delta: 1e-5}"]
    (folder / "r.yaml").write_text("\n".join(sections))
    return folder / "r.yaml"


def test_a_recipe_s_endpoint_is_looked_at_with_its_own_credentials(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("canary-77d1")
    monkeypatch.setenv("TENANT", "a")
    server = Guarded(ForeignOpenAI("sglang"), "Bearer canary-77d1")
    with serving(server) as url:
        api = f"kind: openai_images, model: m, prompts: a, image_size: 8, base_url: {url}/v1"
        good = told(recipe(tmp_path, f"{api}, key_file: key, headers_env: {{X-Tenant: TENANT}}"))
        bad = told(recipe(tmp_path, f"{api}, key_env: null"))
    assert (good.exit_code, "SGLang" in good.output, server.came[0]["x-tenant"]) == (0, True, "a")
    assert (bad.exit_code, "HTTP 401" in bad.output) == (1, True)
    assert "canary" not in good.output + bad.output
    missing = told("--endpoint", "http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY")
    assert (missing.exit_code, "NO_SUCH_KEY is not set" in missing.output) == (1, True)


def test_without_an_endpoint_it_is_told_whether_a_run_could_start(tmp_path):
    file = recipe(tmp_path, "kind: glyphs")
    result = told(file)
    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "✓ glyphs and pixels: a run could start here",
    )
    assert told(file, "--key-env", "A").exit_code == 2
    api = f"kind: causal_lm, model: {tmp_path}, prompts: a"
    result = told(recipe(tmp_path, api, "{kind: folder, path: nowhere, size: 8}"))
    assert (result.exit_code, result.output[:24]) == (1, "✗ A run would not start.")


OWN = {
    "vary": "noise",
    "degree": "exact",
    "prompts": False,
    "guidance": False,
    "shape": [28, 28, 1],
}
DRAWN = "the model draws 28×28 (height, width) alone, not"
OPENAI, SERVER = "kind: openai_images, prompts: a, image_size: 8", "kind: diffusion_server"
ASKS_MUCH = f"{SERVER}, prompts: a, guidance: 7.5, size: 512, image_size: 28, vary: meaning"


@pytest.mark.parametrize(
    ("api", "own", "problems"),
    [
        (f"{OPENAI}, model: m", None, []),
        (f"{OPENAI}, model: n", None, ["model n: the endpoint lists none"]),
        (
            "kind: chat, model: my-model, prompts: a",
            None,
            ["model my-model: the endpoint lists none of this name"],
        ),
        (
            f"{OPENAI}, model: m, size: 512x28",
            OWN,
            ["the model takes no prompts", f"{DRAWN} 512x28"],
        ),
        (
            ASKS_MUCH,
            OWN,
            ["the server varies images by noise", "no prompts", "has no guidance", f"{DRAWN} 512"],
        ),
        (f"{SERVER}, classes: {{a: 0}}, steps: 9", OWN, []),
        (
            SERVER,
            OWN | {"prompts": True, "shape": None},
            ["takes prompts, and the recipe has none"],
        ),
        (f"{SERVER}, prompts: a", None, ["the server is none of `pe serve`"]),
    ],
)
def test_one_look_finds_all_that_the_served_model_does_otherwise(
    tmp_path, monkeypatch, api, own, problems
):
    app = ForeignOpenAI("sglang")
    entry = {"object": "model", "owned_by": "sglang", "id": "m"} | ({"pe": own} if own else {})
    monkeypatch.setitem(app.kind.gets["/v1/models"], "data", [entry])
    with serving(app) as url:
        base = url if SERVER in api else f"{url}/v1"
        result = told(recipe(tmp_path, f"{api}, base_url: {base}, key_env: null"), "--json")
    found = [one["what"] for one in json.loads(result.stdout) if one["state"] == "problem"]
    assert [problem in what for problem, what in zip(problems, found, strict=True)] == [True] * len(
        problems
    )
    assert result.exit_code == bool(problems)
