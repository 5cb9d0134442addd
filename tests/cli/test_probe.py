"""`pe probe` shows what a generator makes, before anything depends on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from adapters.http import policy as policy_module
from pe.cli.plan import probe
from pe.errors import APIError, RecipeError
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


def recipe(folder: Path, api: dict[str, object], **limits: object) -> Path:
    content = {
        "private": {"kind": "folder", "path": "nowhere", "size": 16, "classes": ["3", "7"]},
        "api": api,
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": 20, "degree": [0.4, 0.2]},
        "limits": limits,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(probe, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_needs_no_private_data_and_saves_a_picture(tmp_path: Path) -> None:
    page = ask(recipe(tmp_path, {"kind": "glyphs", "size": 28}), "--out", tmp_path / "p.png", "--label", "7")
    assert "Label '7'" in page
    assert "RANDOM_API    4 images of 28×28×1" in page
    assert re.search(
        r"^Condition of the first sample: parameters = 106 numbers from -\d.* to \d\S*$", page, re.MULTILINE
    )
    picture = np.asarray(Image.open(tmp_path / "p.png"))
    assert picture.shape[0] > 2 * 112
    assert picture[:112].std() > 10


def test_a_run_that_varies_nothing_is_probed_at_a_degree_that_shows_something(tmp_path: Path) -> None:
    file = recipe(tmp_path, {"kind": "glyphs", "size": 28})
    file.write_text(file.read_text().replace("- 0.4", "- 0").replace("- 0.2", "- 0"))
    assert "\nDegree 0.5\n" in ask(file, "--out", tmp_path / "p.png")


def test_an_endpoint_s_prompt_price_and_degree_are_told(tmp_path: Path) -> None:
    script = Script(first=("500",))
    with serving(OpenAIServer(script)) as url:
        api = {"kind": "openai_images", "model": "m", "prompts": "a {label}", "image_size": 16, "n": 2, "key_env": None}
        price = {"call": 0.5, "million_tokens": 1000.0, "currency": "EUR"}
        path = recipe(tmp_path, api | {"base_url": f"{url}/v1", "price": price}, max_cost=1)
        found = json.loads(ask(path, "--out", tmp_path / "p.png", "--json"))
    first, second = found["calls"]
    assert found["conditions"] == {"prompt": "a 3"}
    assert found["degree"] == 0.4
    assert "close variation" in found["degree_means"]
    assert (first["calls"], first["samples"], first["tokens"], first["cost"]) == (2, 2, 20, pytest.approx(1.02))
    assert (second["calls"], second["samples"], second["cost"]) == (1, 1, pytest.approx(0.51))
    assert found["currency"] == "EUR"


def test_a_refusal_is_told_in_its_words(tmp_path: Path) -> None:
    with serving(OpenAIServer(Script(first=("refusal",)))) as url:
        api = {"kind": "openai_images", "model": "m", "prompts": "a", "image_size": 16, "key_env": None}
        path = recipe(tmp_path, api | {"base_url": f"{url}/v1"})
        with pytest.raises(APIError, match="no sample: Your request was rejected by the safety system"):
            ask(path, "--out", tmp_path / "p.png")


def test_a_ladder_shows_parents_and_their_variations_by_degree(tmp_path: Path) -> None:
    path = recipe(tmp_path, {"kind": "glyphs", "size": 28})
    page = ask(path, "--ladder", "--out", tmp_path / "p.png")
    assert "RANDOM_API    5 images of 28×28×1" in page
    assert re.search(r"^ +degree +distance +embedding +equal\n +0 +0 +0 +5\n +0\.1 ", page, re.MULTILINE)
    assert "Does the distance grow with the degree? between samples yes, in the embedding yes" in page
    assert "The degree is heeded, as measured: variations of degree 1 lie farther from their 5 parents" in page
    picture = np.asarray(Image.open(tmp_path / "p.png"))
    assert picture.shape[:2] == (5 * 112 + 4 * 8, 6 * 112 + 5 * 8)
    assert (picture[:112, :112] == picture[:112, 120:232]).all()  # degree 0 is the parent
    assert (picture[:112, :112] != picture[:112, -112:]).any()


def test_a_server_that_ignores_the_degree_shows_in_the_ladder(tmp_path: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script, heeds="nothing")) as url:
        api = {"kind": "openai_images", "model": "m", "prompts": "a", "image_size": 16, "key_env": None}
        path = recipe(tmp_path, api | {"base_url": f"{url}/v1", "price": {"image": 0.5}}, max_cost=1)
        options = ("--ladder", "--degree", "1", "--degree", "0.1", "--out", tmp_path / "p.png", "--json")
        found = json.loads(ask(path, *options))
    assert (found["degree"], found["rises"]) == ("ignored", {"samples": False, "embedding": False})
    assert [(one["degree"], one["samples"], one["equal"], one["calls"]) for one in found["rungs"]] == [
        (0.1, 5, 0, 5),
        (1.0, 5, 5, 5),
    ]
    assert script.delivered == 15
    assert "almost identical image" in found["rungs"][0]["degree_means"]
    assert found["rungs"][1]["cost"] == pytest.approx(2.5)


def test_several_degrees_are_a_ladder_s(tmp_path: Path) -> None:
    path = recipe(tmp_path, {"kind": "glyphs", "size": 28})
    result = CliRunner().invoke(probe, [str(path), "--degree", "0.1", "--degree", "1"])
    assert result.exit_code == 2
    assert "give --ladder too, or one --degree" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"), [(("--label", "8"), "no label '8'"), (("--degree", "2"), "from 0 to 1, not at 2")]
)
def test_what_there_is_not_is_one_sentence(tmp_path: Path, options: tuple[str, str], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        ask(recipe(tmp_path, {"kind": "glyphs", "size": 28}), *options)
