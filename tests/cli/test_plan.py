"""`pe plan` as a user types it, against the run that follows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pe.cli.plan import plan
from tests.cli.test_commands import assert_one_sentence, installed, public, recipe, scans
from tests.cli.typed import pe

__all__ = ["public", "recipe", "scans"]  # fixtures


def test_the_plan_is_what_the_run_then_does(recipe: Path) -> None:
    found = json.loads(pe("plan", recipe, "--json", cwd=recipe.parent).stdout)
    assert found.keys() >= {
        "api_calls", "cost", "epsilon", "delta", "noise_multiplier", "votes_per_candidate", "warnings",
    }  # fmt: skip
    assert found["api_calls"] == {"random": 1, "variation": 4, "images": 8 + 2 * (8 + 8)}
    assert [one["images"] for one in found["per_iteration"]] == [8, 16, 16]
    assert (found["cost"], found["seconds"]) == (0, None)
    run = json.loads(pe("run", recipe, "--out", "out", "--json", cwd=recipe.parent).stdout)
    assert found["api_calls"]["random"] + found["api_calls"]["variation"] == run["api_calls"]
    assert (found["epsilon"], found["delta"]) == (pytest.approx(run["epsilon"]), run["delta"])
    status = json.loads(pe("status", "out", "--json", cwd=recipe.parent).stdout)
    assert (status["images"], status["calls"]) == (found["api_calls"]["images"], run["api_calls"])


def test_the_page_tells_calls_cost_time_noise_and_warnings(recipe: Path) -> None:
    changes = ["private.declared_size=24", "api.price.image=0.5", "limits.max_cost=10", "privacy.delta=0.1"]
    flags = [flag for change in changes for flag in ("--set", change)]
    page = pe("plan", recipe, *flags, "--samples-per-second", 0.01, cwd=recipe.parent).stdout
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


@pytest.mark.parametrize("kind", ["openai_images", "diffusion_server", "portfolio"])
def test_a_key_that_is_not_there_is_told_before_any_private_work(
    recipe: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_KEY_OF_MINE", raising=False)
    hosted = "key_env: NO_KEY_OF_MINE, prompts: {benign: a, malignant: b}"
    server = f"{{kind: diffusion_server, size: 8, base_url: 'http://127.0.0.1:9', {hosted}}}"
    apis = {
        "openai_images": f"{{kind: openai_images, model: m, image_size: 8, {hosted}}}",
        "diffusion_server": server,
        "portfolio": f"{{kind: portfolio, of: [{{kind: public_images, path: public, size: 8}}, {server}]}}",
    }
    api = f"api={apis[kind]}"
    told = "key_env: the environment variable NO_KEY_OF_MINE is not set"
    assert told in pe("plan", recipe, "--set", api, cwd=recipe.parent).stdout
    assert_one_sentence(pe("run", recipe, "--set", api, "--out", "out", cwd=recipe.parent), told)
    assert not (recipe.parent / "out").exists()


def test_the_page_tells_why_degree_0_calls_nothing(recipe: Path) -> None:
    page = pe("plan", recipe, "--set", "evolution.degree=[0.5, 0]", cwd=recipe.parent).stdout
    calls = page[page.index("Calls ") :].splitlines()
    assert calls[0].endswith(" of VARIATION_API")
    assert calls[1].strip() == "degree 0 at t = 2: copies of the chosen, which need no call"
    assert "copies" not in pe("plan", recipe, cwd=recipe.parent).stdout


def test_a_device_or_degree_that_refuses_a_start_is_a_warning(recipe: Path) -> None:
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    training = {"steps": 2, "expected_batch": 40, "block": 2}  # all records in every step: accounted in no time
    content["api"] = {"kind": "dpdm", "device": "cuda:99", "training": training, "sampling": {"steps": 5}}
    content["api"]["fit"] = {"budget_share": 0.5}
    content["private"] |= {"size": 8, "declared_size": 40}
    content["evolution"] |= {"degree": 0.1}
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")
    told = CliRunner().invoke(plan, [str(recipe)], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    assert "warning: A run would not start: device is 'cuda:99', and this machine has" in told.output
    assert "warning: A run would not start: evolution.degree is 0.1, and of 5 steps that leaves none" in told.output


def test_the_private_records_need_not_be_there(recipe: Path) -> None:
    result = pe("plan", recipe, "--set", "private.path=nowhere", "--set", "api.path=none", cwd=recipe.parent)
    assert result.returncode == 0, result.stderr
    assert "all  unknown      40" in result.stdout
    assert "warning: The number of calls is unknown, because the generator cannot be set up here" in result.stdout
    place = recipe.parent / "nowhere"
    assert f"warning: A run would not start: private.path: there is nothing at {place}: say where" in result.stdout
    assert sorted(path.name for path in recipe.parent.iterdir()) == ["public", "recipe.yaml", "scans"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("api.kind=none", "Unknown adapter 'none'"),
        ("api.siz=3", "siz"),
        ("embedding.kind=pixel", "Unknown embedding 'pixel'"),
        ("embedding.blurr=1", "unknown key 'blurr'; did you mean 'blur'"),
        ("evolution.population=9", "cannot be divided equally among 2 labels"),
    ],
)
def test_a_mistake_is_one_sentence(recipe: Path, change: str, sentence: str) -> None:
    assert_one_sentence(pe("plan", recipe, "--set", change, cwd=recipe.parent), sentence)


def test_an_embedding_that_cannot_be_set_up_is_a_warning(recipe: Path) -> None:
    page = pe("plan", recipe, "--set", "embedding.blur=99", cwd=recipe.parent).stdout
    assert "warning: A run would not start: the embedding cannot be set up here: blur is 99" in page


def test_the_fit_of_a_generator_is_told_release_by_release(recipe: Path) -> None:
    changes = ["api={kind: dp_merf}", "evolution.iterations=0", "private.declared_size=24"]
    page = pe("plan", recipe, *(flag for change in changes for flag in ("--set", change)), cwd=recipe.parent).stdout
    assert "Fit         ε = 20 of 20, before t = 0\n            fit/mean_features: multiplier 0." in page
    assert "Synthetic   8 images at the end; `pe extend`" in page


@pytest.mark.parametrize(
    ("kind", "settings", "parts"),
    [
        ("dpdm", {}, ["fit/training"]),
        (
            "pdp_diffusion",
            {"public": {"kind": "glyphs"}, "pretraining": {"steps": 7}},
            ["public images", "fit/training"],
        ),
        (
            "dp_sad",
            {"teacher": {"expected_batch": 40}, "discrimination": {"chains": 2}},
            ["fit/teacher", "fit/training"],
        ),
    ],
)
def test_a_dry_run_tells_what_each_part_of_the_fit_takes_here(
    recipe: Path, kind: str, settings: dict[str, Any], parts: list[str]
) -> None:
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    training = {"steps": 3, "expected_batch": 40, "draws": 1, "micro_batch": 2, "block": 2}
    network = {"channels": [8, 16]}
    content["api"] = {"kind": kind, "network": network, "training": training, "device": "cpu", **settings}
    content["private"] |= {"size": 8, "declared_size": 40}
    content["evolution"] = {"iterations": 0, "population": 20}
    content["privacy"] = {"epsilon": 8, "delta": 1e-3}
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")

    def planned(*flags: str) -> str:
        return CliRunner().invoke(plan, [str(recipe), *flags], catch_exceptions=False).output

    plain = json.loads(planned("--json"))
    found = json.loads(planned("--dry-run", "--json"))
    assert plain["dry_run"] is None
    assert [one["part"] for one in found["dry_run"]] == parts
    last = found["dry_run"][-1]
    assert (last["steps"], last["blocks"]) == (3, 2)
    assert last["noise_multiplier"] == found["fit"]["releases"][-1]["noise_multiplier"]
    assert all(one["seconds"] > 0 and one["parameters"] > 1000 for one in found["dry_run"])
    assert f"{parts[-1]}: 3 steps of {last['parameters']:,} parameters in about" in planned("--dry-run")


def test_a_missing_library_is_told_by_plan_and_refuses_a_run_before_anything_is_written(recipe: Path) -> None:
    site = recipe.parent / "site" / "flat-1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flat\nVersion: 1\nProvides-Extra: big\nProvides-Extra: all\n"
        "Requires-Dist: numpy>=1; extra == 'big'\nRequires-Dist: no-such-library>=2; extra == 'big'\n"
        "Requires-Dist: elsewhere; sys_platform == 'win32' and extra == 'big'\n"
        "Requires-Dist: flat[big]; extra == 'all'\n"
    )
    (site / "entry_points.txt").write_text(
        "[pe.adapters]\nflat = adapters.pools:PublicImages [all]\n"
        "[pe.embeddings]\nflat = embeddings.pixels:Pixels [big]\n"
    )
    sentence = "The adapter 'flat' needs no-such-library: not installed, so pip install 'flat[all]'"
    here = {"cwd": recipe.parent, "PYTHONPATH": str(site.parent)}
    before = sorted(recipe.parent.rglob("*"))
    flat = ["--set", "api.kind=flat"]
    plan = installed("plan", recipe, *flat, "--set", "embedding.kind=flat", **here)
    assert f"warning: A run would not start: {sentence[:1].lower()}{sentence[1:]}" in plan.stdout
    assert "the embedding 'flat' needs no-such-library" in plan.stdout
    assert "all      5      40" in plan.stdout
    for command in ("run", "probe"):
        assert_one_sentence(installed(command, recipe, *flat, **here), re.escape(sentence))
    assert_one_sentence(
        installed("run", recipe, "--set", "embedding.kind=flat", **here), "The embedding 'flat' needs no-such"
    )
    assert sorted(recipe.parent.rglob("*")) == before
    doctor = installed("doctor", **here).stdout
    assert "- pe.adapters: flat lacks no-such-library\n    pip install 'flat[all]'" in doctor
    assert not re.search(r"✓ pe\.adapters: .*\bflat\b", doctor)
