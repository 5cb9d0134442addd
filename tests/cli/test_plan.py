"""`pe plan` and `pe probe` as a user types them, against the run that follows."""

import json
import re

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from adapters.http import retries
from pe.cli.plan import probe
from tests.cli.typed import assert_one_sentence, installed, pe
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving


def flags(*changes):
    return [word for change in changes for word in ("--set", change)]


def test_the_plan_is_what_the_run_then_does(finished):
    found = json.loads(pe("plan", "recipe.yaml", "--json", cwd=finished).stdout)
    assert found["api_calls"] == {"random": 1, "variation": 4, "images": 8 + 2 * (8 + 8)}
    assert [one["images"] for one in found["per_iteration"]] == [8, 16, 16]
    assert (found["cost"], found["seconds"], found["dry_run"]) == (0, None, None)
    certificate = json.loads((finished / "out" / "certificate.json").read_text())
    assert (found["epsilon"], found["delta"]) == (
        pytest.approx(certificate["epsilon"]),
        certificate["delta"],
    )
    status = json.loads(pe("view", "out", "--json", cwd=finished).stdout)
    assert (status["images"], status["calls"]) == (found["api_calls"]["images"], 5)
    measured = json.loads(
        pe("plan", "recipe.yaml", "--rate-of", "out", "--json", cwd=finished).stdout
    )
    assert measured["seconds"] > 0


def test_the_page_tells_calls_cost_time_noise_and_warnings(finished):
    changes = flags("api.price.image=0.5", "limits.max_cost=10")
    page = pe("plan", "recipe.yaml", *changes, "--samples-per-second", 0.01, cwd=finished).stdout
    for line in (
        "all      5      40",
        "Calls       at most 1 of RANDOM_API, 4 of VARIATION_API",
        "Cost        at most 20.00 USD",
        "Time        66.7 min",
        "Guarantee   ε = 20, δ = 0.001",
        "warning: limits.max_cost = 10 may stop the run before its end, which needs up to 20.",
    ):
        assert line in page, page
    changes = flags("api={kind: dp_merf}", "evolution.iterations=0")
    page = pe("plan", "recipe.yaml", *changes, cwd=finished).stdout
    assert (
        "Fit         ε = 20 of 20, before t = 0\n            fit/mean_features: multiplier 0."
        in page
    )
    page = pe(
        "plan", "recipe.yaml", *flags("api={kind: dp_merf, fit: {budget_share: 0.3}}"), cwd=finished
    ).stdout
    assert "Fit         ε = 6 of 20 (api.fit.budget_share), before t = 0" in page


def test_a_key_that_is_not_there_is_told_before_any_private_work(recipe, monkeypatch):
    monkeypatch.delenv("NO_KEY_OF_MINE", raising=False)
    hosted = (
        "kind: openai_images, model: m, image_size: 8, key_env: NO_KEY_OF_MINE, prompts: {benign: "
        "a, malignant: b}"
    )
    api = flags(
        "api={kind: portfolio, of: [{kind: public_images, path: public, size: 8}, "
        f"{{{hosted}}}]}}"
    )
    told = "key_env: the environment variable NO_KEY_OF_MINE is not set"
    assert told in pe("plan", recipe, *api, cwd=recipe.parent).stdout
    assert_one_sentence(pe("run", recipe, *api, "--out", "out", cwd=recipe.parent), told)
    assert not (recipe.parent / "out").exists()


def test_what_is_not_there_and_would_refuse_a_start_is_a_warning(recipe):
    changes = flags("private.path=nowhere", "api.path=none", "embedding.blur=99")
    result = pe("plan", recipe, *changes, cwd=recipe.parent)
    assert result.returncode == 0, result.stderr
    assert "all  unknown      40" in result.stdout
    for warning in (
        "The number of calls is unknown, because the generator cannot be set up here",
        f"A run would not start. There is nothing at {recipe.parent / 'nowhere'}. Set",
        "A run would not start. The embedding cannot be set up here: blur is 99",
    ):
        assert f"warning: {warning}" in result.stdout
    assert sorted(path.name for path in recipe.parent.iterdir()) == [
        "public",
        "recipe.yaml",
        "scans",
    ]


def test_a_missing_library_refuses_a_run_before_anything_is_written(recipe):
    site = recipe.parent / "site" / "flat-1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flat\nVersion: 1\nProvides-Extra: big\nProvides-Extra: all\n"
        "Requires-Dist: numpy>=1; extra == 'big'\nRequires-Dist: no-such-library>=2; extra == "
        "'big'\n"
        "Requires-Dist: flat[big]; extra == 'all'\n"
    )
    (site / "entry_points.txt").write_text(
        "[pe.adapters]\nflat = adapters.pools:PublicImages [all]\n"
    )
    here = {"cwd": recipe.parent, "PYTHONPATH": str(site.parent)}
    before = sorted(recipe.parent.rglob("*"))
    told = "The adapter 'flat' needs no-such-library: not installed, so pip install 'flat[all]'"
    assert_one_sentence(installed("run", recipe, *flags("api.kind=flat"), **here), re.escape(told))
    assert sorted(recipe.parent.rglob("*")) == before


GLYPHS = {"kind": "glyphs", "size": 28}
HOSTED = {
    "kind": "openai_images",
    "server": None,
    "model": "m",
    "prompts": "a {label}",
    "image_size": 16,
}
HOSTED |= {"key_env": None}


def ask(folder, api, *options):
    content = {
        "private": {"kind": "folder", "path": "nowhere", "size": 16, "classes": ["3", "7"]},
        "api": api,
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": 20, "degree": 0.4},
        "limits": {"max_cost": 1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    arguments = [str(folder / "recipe.yaml"), "--out", str(folder / "p.png"), *options]
    result = CliRunner().invoke(probe, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_needs_no_private_data_and_saves_a_picture(tmp_path):
    page = ask(tmp_path, GLYPHS, "--label", "7")
    assert "Label '7'" in page
    assert "RANDOM_API    4 images of 28×28×1" in page
    picture = np.asarray(Image.open(tmp_path / "p.png"))
    assert picture[:112].std() > 10
    caption = picture[112:130]  # the label
    assert picture.shape[0] == 2 * (112 + 13 + 4 + 4) + 8
    assert caption[:, :12].min() < 100 < 255 == caption[:, 20:100].min()


def test_an_endpoint_s_prompt_price_and_degree_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "FIRST", 0.02)
    with serving(OpenAIServer(Script(first=("500",)))) as url:
        price = {"call": 0.5, "million_tokens": 1000.0, "currency": "EUR"}
        found = json.loads(
            ask(tmp_path, HOSTED | {"base_url": f"{url}/v1", "n": 2, "price": price}, "--json")
        )
    first, (second,) = found["random"], found["rungs"]
    assert (found["conditions"], second["degree"], found["currency"]) == (
        {"prompt": "a 3"},
        0.4,
        "EUR",
    )
    assert "close variation" in second["degree_means"]
    assert "told" not in found  # one degree is compared with none
    assert (first["calls"], first["samples"], first["tokens"], first["cost"]) == (
        2,
        2,
        20,
        pytest.approx(1.02),
    )
    assert (second["calls"], second["samples"], second["cost"]) == (1, 1, pytest.approx(0.51))
