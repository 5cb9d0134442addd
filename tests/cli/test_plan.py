"""`pe plan` and `pe probe` as a user types them, against the run that follows."""

import json
import re

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from adapters.http import policy as policy_module
from pe.cli.plan import plan, probe
from pe.errors import RecipeError
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
    assert (found["epsilon"], found["delta"]) == (pytest.approx(certificate["epsilon"]), certificate["delta"])
    status = json.loads(pe("status", "out", "--json", cwd=finished).stdout)
    assert (status["images"], status["calls"]) == (found["api_calls"]["images"], 5)
    measured = json.loads(pe("plan", "recipe.yaml", "--rate-of", "out", "--json", cwd=finished).stdout)
    assert measured["seconds"] > 0


def test_the_page_tells_calls_cost_time_noise_and_warnings(finished):
    changes = flags("api.price.image=0.5", "limits.max_cost=10", "privacy.delta=0.1")
    page = pe("plan", "recipe.yaml", *changes, "--samples-per-second", 0.01, cwd=finished).stdout
    for line in (
        "all      5      40",
        "Calls       1 of RANDOM_API, 4 of VARIATION_API",
        "Cost        20.00 USD",
        "Time        66.7 min",
        "Guarantee   ε = 20, δ = 0.1",
        "Degree      the generator obeys it exactly",
        "warning: limits.max_cost = 10 stops the run before its end, which needs 20.",
        "warning: δ = 0.1 is not below 1/24, one over the declared number of records",
        "warning: ε = 20 is above 10, where a guarantee protects hardly anybody",
    ):
        assert line in page, page
    page = pe("plan", "recipe.yaml", *flags("evolution.degree=[0.5, 0]"), cwd=finished).stdout
    assert "degree 0 at t = 2: copies of the chosen, which need no call" in page
    changes = flags("api={kind: dp_merf}", "evolution.iterations=0")
    page = pe("plan", "recipe.yaml", *changes, cwd=finished).stdout
    assert "Fit         ε = 20 of 20, before t = 0\n            fit/mean_features: multiplier 0." in page


def test_a_key_that_is_not_there_is_told_before_any_private_work(recipe, monkeypatch):
    monkeypatch.delenv("NO_KEY_OF_MINE", raising=False)
    hosted = "kind: openai_images, model: m, image_size: 8, key_env: NO_KEY_OF_MINE, prompts: {benign: a, malignant: b}"
    api = flags(f"api={{kind: portfolio, of: [{{kind: public_images, path: public, size: 8}}, {{{hosted}}}]}}")
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
        f"A run would not start: private.path: there is nothing at {recipe.parent / 'nowhere'}: say where",
        "A run would not start: the embedding cannot be set up here: blur is 99",
    ):
        assert f"warning: {warning}" in result.stdout
    training = "training: {steps: 2, expected_batch: 24, block: 2}, sampling: {steps: 5}, fit: {budget_share: 0.5}"
    changes = flags(f"api={{kind: dpdm, device: 'cuda:99', {training}}}", "private.size=8", "evolution.degree=0.1")
    told = CliRunner().invoke(plan, [str(recipe), *changes], catch_exceptions=False).output
    assert "warning: A run would not start: device is 'cuda:99', and this machine has" in told
    assert "warning: A run would not start: evolution.degree is 0.1, and of 5 steps that leaves none" in told
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["public", "recipe.yaml", "scans"]


def test_a_dry_run_tells_what_each_part_of_the_fit_takes_here(recipe):
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    training = {"steps": 3, "expected_batch": 24, "draws": 1, "micro_batch": 2, "block": 2}
    content["api"] = {"kind": "dp_sad", "network": {"channels": [8, 16]}, "training": training, "device": "cpu"}
    content["api"] |= {"teacher": {"expected_batch": 24}, "discrimination": {"chains": 2}}
    content["private"]["size"] = 8
    content["evolution"] = {"iterations": 0, "population": 20}
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")
    arguments = [str(recipe), "--dry-run"]
    page = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    found = json.loads(CliRunner().invoke(plan, [*arguments, "--json"], catch_exceptions=False).output)
    rows = found["dry_run"]
    assert [one["part"] for one in rows] == ["fit/teacher", "fit/training"]
    assert (rows[1]["steps"], rows[1]["blocks"]) == (3, 2)
    assert rows[1]["noise_multiplier"] == found["fit"]["releases"][-1]["noise_multiplier"]
    assert all(one["seconds"] > 0 and one["parameters"] > 1000 for one in rows)
    assert f"fit/training: 3 steps of {rows[1]['parameters']:,} parameters in about" in page


def test_a_missing_library_is_told_by_plan_and_refuses_a_run_before_anything_is_written(recipe):
    site = recipe.parent / "site" / "flat-1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flat\nVersion: 1\nProvides-Extra: big\nProvides-Extra: all\n"
        "Requires-Dist: numpy>=1; extra == 'big'\nRequires-Dist: no-such-library>=2; extra == 'big'\n"
        "Requires-Dist: elsewhere; sys_platform == 'win32' and extra == 'big'\n"
        "Requires-Dist: flat[big]; extra == 'all'\n"
    )
    adapter, embedding = "adapters.pools:PublicImages [all]", "embeddings.pixels:Pixels [big]"
    (site / "entry_points.txt").write_text(f"[pe.adapters]\nflat = {adapter}\n[pe.embeddings]\nflat = {embedding}\n")
    here = {"cwd": recipe.parent, "PYTHONPATH": str(site.parent)}
    before = sorted(recipe.parent.rglob("*"))
    found = installed("plan", recipe, *flags("api.kind=flat", "embedding.kind=flat"), **here)
    told = "adapter 'flat' needs no-such-library: not installed, so pip install 'flat[all]'"
    assert f"warning: A run would not start: the {told}" in found.stdout
    assert "the embedding 'flat' needs no-such-library" in found.stdout
    assert "all      5      40" in found.stdout
    assert_one_sentence(installed("run", recipe, *flags("api.kind=flat"), **here), re.escape(f"The {told}"))
    assert sorted(recipe.parent.rglob("*")) == before
    doctor = installed("doctor", **here).stdout
    assert "- pe.adapters: flat lacks no-such-library\n    pip install 'flat[all]'" in doctor
    assert not re.search(r"✓ pe\.adapters: .*\bflat\b", doctor)


# pe probe

GLYPHS = {"kind": "glyphs", "size": 28}
HOSTED = {"kind": "openai_images", "model": "m", "prompts": "a {label}", "image_size": 16, "key_env": None}


def ask(folder, api, *options, degree=(0.4, 0.2)):
    content = {
        "private": {"kind": "folder", "path": "nowhere", "size": 16, "classes": ["3", "7"]},
        "api": api,
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": 20, "degree": list(degree)},
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
    condition = r"^Condition of the first sample: parameters = 106 numbers from -\d.* to \d\S*$"
    assert re.search(condition, page, re.MULTILINE)
    picture = np.asarray(Image.open(tmp_path / "p.png"))
    assert picture.shape[0] > 2 * 112
    assert picture[:112].std() > 10
    assert "\nDegree 0.5\n" in ask(tmp_path, GLYPHS, degree=[0, 0])  # one that shows something


def test_an_endpoint_s_prompt_price_and_degree_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    with serving(OpenAIServer(Script(first=("500",)))) as url:
        price = {"call": 0.5, "million_tokens": 1000.0, "currency": "EUR"}
        found = json.loads(ask(tmp_path, HOSTED | {"base_url": f"{url}/v1", "n": 2, "price": price}, "--json"))
    first, second = found["calls"]
    assert (found["conditions"], found["degree"], found["currency"]) == ({"prompt": "a 3"}, 0.4, "EUR")
    assert "close variation" in found["degree_means"]
    assert (first["calls"], first["samples"], first["tokens"], first["cost"]) == (2, 2, 20, pytest.approx(1.02))
    assert (second["calls"], second["samples"], second["cost"]) == (1, 1, pytest.approx(0.51))


def test_a_server_that_ignores_the_degree_shows_in_the_ladder(tmp_path):
    script = Script()
    with serving(OpenAIServer(script, heeds="nothing")) as url:
        api = HOSTED | {"base_url": f"{url}/v1", "price": {"image": 0.05}}
        found = json.loads(ask(tmp_path, api, "--ladder", "--degree", "1", "--degree", "0.1", "--json"))
    assert (found["degree"], found["rises"]) == ("ignored", {"samples": False, "embedding": False})
    assert [(one["degree"], one["samples"], one["equal"], one["calls"]) for one in found["rungs"]] == [
        (0.1, 5, 0, 5),
        (1.0, 5, 5, 5),
    ]
    assert script.delivered == 15
    assert "almost identical image" in found["rungs"][0]["degree_means"]
    assert found["rungs"][1]["cost"] == pytest.approx(0.25)


def test_what_there_is_not_is_one_sentence(tmp_path):
    for options, sentence in ((("--label", "8"), "no label '8'"), (("--degree", "2"), "from 0 to 1, not at 2")):
        with pytest.raises(RecipeError, match=sentence):
            ask(tmp_path, GLYPHS, *options)
    with pytest.raises(AssertionError, match="give --ladder too, or one --degree"):
        ask(tmp_path, GLYPHS, "--degree", "0.1", "--degree", "1")
