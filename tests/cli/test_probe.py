"""`pe probe` shows what a generator makes, before anything depends on it."""

import json
import re

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image

from adapters.http import policy as policy_module
from pe.cli.plan import probe
from pe.errors import RecipeError
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving

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
