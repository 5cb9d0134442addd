"""Black Forest Labs, Replicate and fal: what is sent under which name, whom the key goes to, and what is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import adapters.job_hosts as replicate_module
from adapters.http import jobs as waiting
from adapters.http.jobs import JobHost
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed, Refused
from tests.adapters.test_job_hosts import random, varied
from tests.endpoints.hosted_servers import Hosted
from tests.endpoints.job_hosts import hosted

CANARY = "canary-77aa"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(waiting, "GRACE", 0.05)


@contextmanager
def host(kind: str, **settings: Any) -> Iterator[tuple[JobHost[Any], Any]]:
    with hosted(kind, Path(), key_env="THE_KEY", **settings) as (api, server):
        yield api, server


def bodies(server: Hosted) -> list[dict[str, Any]]:
    return [job.body for job in server.jobs.values()]


@pytest.mark.parametrize(("kind", "key"), [("bfl", ""), ("replicate", "Bearer "), ("fal", "Key ")])
def test_the_key_goes_to_the_host_alone(kind: str, key: str) -> None:
    with host(kind) as (api, server):
        random(api)
        assert server.script.keys == {key + CANARY, ""}
        assert server.fetched
        assert not any(CANARY in str(headers) for headers in server.fetched)


@pytest.mark.parametrize("kind", ["bfl", "replicate", "fal"])
def test_an_image_at_an_unknown_host_is_not_fetched(kind: str) -> None:
    with host(kind) as (api, server):
        server.outcomes = ["elsewhere"]
        reason = random(api).missing[0].reason
    assert "https://elsewhere.example" in reason
    assert "only" in reason
    assert "result_hosts" in reason


def test_a_polling_address_elsewhere_is_not_asked_with_the_key() -> None:
    with host("bfl") as (api, server):
        server.poll_at = "https://bfl.ai.elsewhere.example"
        with pytest.raises(APIError, match="the key would go there") as error:
            random(api)
    assert CANARY not in str(error.value)


def test_black_forest_labs_takes_a_prompt_a_size_and_a_parent() -> None:
    with host("bfl", variation_model="flux-kontext-pro", extra={"safety_tolerance": 5}) as (api, server):
        random(api)
        varied(api, 0.4, 9)
        assert api.capabilities.degree == "wording"
        new, edited = bodies(server)
    assert new == {
        "output_format": "png",
        "safety_tolerance": 5,
        "prompt": "a cat",
        "seed": 40,
        "height": 16,
        "width": 16,
    }
    assert "close variation" in edited["prompt"]
    assert edited["input_image"].startswith("iVBOR")


def test_a_moderated_image_is_refused() -> None:
    with host("bfl") as (api, server):
        server.outcomes = ["refusal"]
        assert random(api).missing == {0: Refused("Content Moderated")}


def test_replicate_runs_a_version_or_an_official_model() -> None:
    with host("replicate") as (api, server):
        random(api)
        assert bodies(server) == [{"input": {"prompt": "a cat", "seed": 40, "num_outputs": 1}}]
    with host("replicate", model="stability-ai/sdxl:5c7d", size=[32, 16], inputs={"prompt_strength": 0.5}) as (
        api,
        server,
    ):
        random(api)
        inputs = {"prompt_strength": 0.5, "prompt": "a cat", "seed": 40, "num_outputs": 1, "width": 16, "height": 32}
        assert bodies(server) == [{"version": "5c7d", "input": inputs}]


def test_a_model_s_own_number_tells_the_degree() -> None:
    for kind, field in (("replicate", "prompt_strength"), ("fal", "strength")):
        with host(kind) as (api, server):
            varied(api, 0.3, 9)
            (body,) = bodies(server)
            assert body.get("input", body)[field] == 0.3
            assert body.get("input", body)["prompt"] == "a cat"
            assert api.capabilities.degree == "exact"


def test_without_such_an_input_the_degree_is_put_in_words() -> None:
    with host("replicate", degree_field=None) as (api, server):
        varied(api, 0.3, 9)
        (body,) = bodies(server)
        assert api.capabilities.degree == "wording"
    assert "close variation" in body["input"]["prompt"]
    assert "prompt_strength" not in body["input"]


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("replicate", {"degree_field": "strength"}, "has no input 'strength'; did you mean 'prompt_strength'"),
        ("replicate", {"image_field": "picture"}, "has no input 'picture'"),
        ("replicate", {"inputs": {"steps": 4}}, "flux-dev has no input 'steps'"),
        ("fal", {"degree_field": "strenght"}, "image-to-image has no input 'strenght'; did you mean 'strength'"),
        ("fal", {"variation_model": "fal-ai/flux/dev"}, "fal-ai/flux/dev has no input 'strength'"),
    ],
)
def test_an_input_that_the_model_does_not_describe_stops_the_run_before_a_job(
    kind: str, settings: dict[str, Any], words: str
) -> None:
    with host(kind, **settings) as (api, server):
        with pytest.raises(APIError, match=words):
            varied(api, 0.3, 9)
        assert not server.jobs


def test_a_model_without_prompts_is_none() -> None:
    with host("replicate") as (api, server):
        server.inputs = {"image": {"type": "string"}}
        with pytest.raises(APIError, match="draws from prompts"):
            random(api)


def test_several_images_of_a_job() -> None:
    with host("fal", n=3, size=[16, 32]) as (api, server):
        server.outcomes = ["flagged", "fewer"]
        answer = random(api, 3)
        assert answer.missing == {0: Refused("has_nsfw_concepts")}
        assert (answer.usage.calls, answer.usage.images) == (1, 3)
        answer = random(api, 3, seed=5)
        assert [type(miss) for miss in answer.missing.values()] == [Failed]
        assert bodies(server)[0]["image_size"] == {"width": 32, "height": 16}
        assert api.capabilities.max_chunk == 3


def test_a_large_parent_is_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicate_module, "LARGEST", 10)
    with host("replicate") as (api, server):
        assert varied(api, 0.4, 100).samples.array[0, 0, 0, 0] == 60
        assert bodies(server)[0]["input"]["image"].endswith("/v1/files/0")


@pytest.mark.parametrize("kind", ["replicate", "fal"])
def test_a_job_that_is_given_up_is_cancelled(kind: str) -> None:
    with host(kind, job_timeout=0.05) as (api, server):
        server.finished = 0
        assert "job_timeout" in random(api).missing[0].reason
        assert not server.jobs


def test_a_result_host_is_a_public_name() -> None:
    with pytest.raises(RecipeError, match="result_hosts"), host("bfl", result_hosts=["127.0.0.1"]):
        pass
