"""What the OpenAI-style adapter asks of a real server on loopback."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

import pe
from adapters.openai_images import OpenAIImages, OpenAISettings, billed
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Usage
from pe.recipe.schema import Recipe
from tests.adapters.openai_asking import CANARY, Make, key, make, random, settings_for, varied
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving

__all__ = ["key", "make"]  # fixtures


def test_one_request_brings_n_images_of_one_prompt(make: Make) -> None:
    api, script = make(size=f"{SIDE}x{SIDE}", quality="low", extra={"guidance_scale": 3.5})
    answer = random(api)
    assert answer.samples.array.shape == (4, SIDE, SIDE, 3)
    assert answer.usage == Usage(1, 4, 40, text_in=12, image_out=28, megapixels=4 * SIDE * SIDE / 1e6)
    (body,) = script.requests
    wanted = {"prompt": "a photo of a cat", "model": "gpt-image-x", "n": 4, "quality": "low", "guidance_scale": 3.5}
    assert {name: body[name] for name in wanted} == wanted
    assert script.keys == {f"Bearer {CANARY}"}


def test_organisation_and_project_are_sent_as_openais_sdk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-2")
    seen: list[tuple[str | None, str | None]] = []

    class Noting(OpenAIServer):
        async def generations(self, request: Request) -> Response:
            seen.append((request.headers.get("openai-organization"), request.headers.get("openai-project")))
            return await super().generations(request)

    with serving(Noting(Script())) as url:
        random(OpenAIImages(**settings_for(url)))
    assert seen == [("org-1", "proj-2")]


def test_a_variation_is_an_edit_of_its_parent_in_words_for_its_degree(make: Make) -> None:
    api, script = make(wordings={0.5: "like {prompt}, a little changed", 1: "another"}, input_fidelity="high")
    assert len(varied(api, 0.5).samples) == len(varied(api, 0.51).samples) == 2
    first, second = script.requests
    assert (first["prompt"], second["prompt"]) == ("like a cat, a little changed", "another")
    assert first["input_fidelity"] == "high"
    assert first["n"] == "2"
    (parent,) = first["parents"]
    assert (np.asarray(Image.open(io.BytesIO(parent))) == 77).all()
    assert api.capabilities.degree == "wording"
    assert "a little changed" in api.describe_degree(0.2)


def test_a_degree_in_a_field_that_the_server_may_drop_is_told_in_words_too(make: Make) -> None:
    api, script = make(degree_field="strength", seed_field="seed")
    varied(api, 0.25, prompt="a ragdoll cat")
    (body,) = script.requests
    assert float(body["strength"]) == 0.25
    assert body["prompt"].startswith("Make a close variation")
    assert int(body["seed"]) == 0
    assert api.capabilities.degree == "wording"
    assert api.describe_degree(0.25).endswith("and sent as strength = 0.25, which the server may ignore")


def test_the_degree_is_exact_where_the_user_says_that_the_server_heeds_the_field(make: Make) -> None:
    api, script = make(degree_field="strength", degree_exact=True)
    varied(api, 0.25, prompt="a ragdoll cat")
    worded, words = make(degree_field="strength", degree_exact=True, wordings={1: "another {prompt}"})
    varied(worded, 0.25, prompt="a ragdoll cat")
    bodies = [*script.requests, *words.requests]
    assert [float(body["strength"]) for body in bodies] == [0.25, 0.25]
    assert [body["prompt"] for body in bodies] == ["a ragdoll cat", "another a ragdoll cat"]
    assert api.capabilities.degree == worded.capabilities.degree == "exact"
    assert api.describe_degree(0.25) == "sent as strength = 0.25"


def test_servers_that_have_variations_get_no_prompt(make: Make) -> None:
    api, script = make(variation="variations")
    assert len(varied(api, 0.5).samples) == 2
    assert "prompt" not in script.requests[0]
    assert (api.capabilities.degree, api.describe_degree(0.5)) == ("none", "not told to the endpoint")


@pytest.mark.parametrize(("exact", "degree"), [(False, "none"), (True, "exact")])
def test_a_field_alone_is_no_degree_unless_it_is_heeded(make: Make, exact: bool, degree: str) -> None:
    api, script = make(variation="variations", degree_field="strength", degree_exact=exact)
    varied(api, 0.5)
    assert float(script.requests[0]["strength"]) == 0.5
    assert api.capabilities.degree == degree


def test_servers_that_name_a_path_unless_told_otherwise_send_the_images_themselves(make: Make) -> None:
    for settings in ({}, {"variation": "variations"}):
        api, script = make(default="url", **settings)
        assert len(random(api).samples) == 4
        assert len(varied(api).samples) == 2
        assert {body["response_format"] for body in script.requests} == {"b64_json"}
    api, _ = make(default="url", response_format=None)
    assert "have it send the image itself (`response_format: b64_json`)" in random(api).missing[0].reason


def test_the_example_for_an_own_server_works_where_addresses_are_the_default() -> None:
    example = Recipe.load(Path(__file__).parents[2] / "examples" / "openai_server.yaml").api.settings
    with serving(OpenAIServer(Script(), "url", side=512)) as url:
        api = OpenAIImages(**{**example, "base_url": f"{url}/v1"})
        assert len(random(api, 1, "benign").samples) == 1


def test_response_format_is_not_sent_to_those_who_refuse_it(make: Make) -> None:
    api, script = make(default="refused", response_format=None)
    assert len(random(api).samples) == 4
    assert "response_format" not in script.requests[0]
    with pytest.raises(APIError, match="Unknown parameter: 'response_format'"):
        random(make(default="refused")[0])


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"base_url": "https://eu.api.openai.com/v1"}, None),
        ({"base_url": "https://mine.openai.azure.com/openai/v1"}, None),
        ({"base_url": "https://gateway.example", "azure_api_version": "2025-04-01-preview"}, None),
        ({"base_url": "https://gateway.example/openai.com/v1"}, "b64_json"),
        ({"response_format": "b64_json"}, "b64_json"),
        ({"base_url": "http://127.0.0.1:8000/v1", "response_format": None}, None),
    ],
)
def test_who_is_sent_response_format(given: dict[str, str | None], sent: str | None) -> None:
    settings = OpenAISettings(model="m", prompts="a", image_size=8, **given)
    assert settings.served_by(settings.profile).response_format == sent


def test_degree_0_is_the_parent_itself_and_costs_nothing(make: Make) -> None:
    api, script = make()
    answer = varied(api, 0.0)
    assert (answer.samples.array == 77).all()
    assert (answer.usage.calls, answer.usage.images) == (0, 0)
    assert not script.requests


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (None, Usage(0)),
        ("many", Usage(0)),
        ({"total_tokens": 9}, Usage(0, tokens=9)),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(0, tokens=7, image_out=4)),
        (
            {
                "total_tokens": 100,
                "input_tokens": 30,
                "input_tokens_details": {"text_tokens": 10, "image_tokens": 20, "more": {}},
                "output_tokens": 70,
                "output_tokens_details": {"text_tokens": 6, "image_tokens": 64},
            },
            Usage(0, tokens=100, text_in=10, image_in=20, text_out=6, image_out=64),
        ),
        ({"input_tokens_details": [3], "output_tokens": -4, "total_tokens": "7"}, Usage(0)),
    ],
)
def test_tokens_are_counted_by_kind_as_far_as_the_server_tells_them_apart(told: object, counted: Usage) -> None:
    assert (billed(told) or Usage(0)) == counted


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": 0}, r"n must be at least 1, not 0\."),
        ({"prompts": ""}, "prompts holds an empty text"),
        ({"prompts": {}}, "prompts is empty"),
        ({"prompts": {"dog": "a dog"}}, "there is none for the label 'cat'"),
        ({"wordings": {0.5: "a"}}, "the last is 1"),
        ({"wordings": {0: "a", 1: "b"}}, "they lie above 0"),
        ({"degree_exact": True}, "heeds degree_field: name that field"),
        ({"wordings": {}, "degree_field": "strength"}, "the last is 1"),
        ({"image_size": 0}, "each side has 1 to 8192 pixels"),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        random(OpenAIImages(**settings_for("http://127.0.0.1:9", **settings)))


def test_it_is_made_from_python_by_name() -> None:
    spec = pe.api("openai_images", **settings_for("http://127.0.0.1:9"))
    assert dataclasses.is_dataclass(OpenAIImages(**spec.settings).capabilities)
