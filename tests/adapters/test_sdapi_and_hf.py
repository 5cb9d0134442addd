"""The adapters for /sdapi/v1 and Hugging Face's client against real servers on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from adapters.hf_inference import HFInference
from adapters.http import policy as policy_module
from adapters.sdapi import SDAPI
from pe.data.images import Images
from pe.data.population import Members
from pe.data.samples import Conditions
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, Refused, VariationRequest
from pe.store.writer import RunWriter
from tests.endpoints.faults import TRANSPORT, Script
from tests.endpoints.sd_server import SDServer
from tests.endpoints.serving import serving

CANARY = "canary-51b2"
Make = Callable[..., tuple[SDAPI | HFInference, Script]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def sdapi(stack: ExitStack) -> Make:
    def made(
        script: Script | None = None, path: str = "", takes: str = "list", **settings: object
    ) -> tuple[SDAPI, Script]:
        script = script or Script()
        url = stack.enter_context(serving(SDServer(script, takes=takes)))
        given = {"base_url": url + path, "prompts": "a {label}", "image_size": 16, "batch": 4, "timeout": 1.0}
        return SDAPI(**given | {"key_env": "THE_KEY"} | settings), script

    return made


@pytest.fixture
def hugging(stack: ExitStack) -> Make:
    def made(script: Script | None = None, **settings: object) -> tuple[HFInference, Script]:
        script = script or Script()
        url = stack.enter_context(serving(SDServer(script)))
        given = {"base_url": f"{url}/hf", "prompts": "a {label}", "image_size": 16, "timeout": 1.0}
        return HFInference(**given | {"key_env": "THE_KEY"} | settings), script

    return made


def random(api: SDAPI | HFInference, count: int) -> Answer:
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(40)
    labels = ("cat",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api: SDAPI | HFInference, degree: float, shades: list[int]) -> Answer:
    pixels = np.broadcast_to(np.array(shades, np.uint8)[:, None, None, None], (len(shades), 16, 16, 3)).copy()
    conditions = Conditions({"prompt": np.array(["a cat"] * len(shades))})
    seeds = np.arange(len(shades), dtype=np.uint64)
    return api.variation_api(VariationRequest(Images(pixels), ("cat",) * len(shades), conditions, seeds, degree))


def test_one_txt2img_brings_a_whole_batch(sdapi: Make) -> None:
    api, script = sdapi(sampler="DDIM", negative_prompt="text", extra={"clip_skip": 2})
    answer = random(api, 4)
    assert answer.samples.array[:, 0, 0, 0].tolist() == [40, 41, 42, 43]
    (body,) = script.requests
    wanted = {"prompt": "a cat", "negative_prompt": "text", "sampler_name": "DDIM", "clip_skip": 2, "batch_size": 4}
    assert wanted.items() <= body.items()
    assert (body["width"], body["height"], body["steps"]) == (16, 16, 20)
    assert script.keys == {f"Bearer {CANARY}"}


@pytest.mark.parametrize("data_uri", [False, True])
def test_one_img2img_varies_several_parents_by_the_degree(sdapi: Make, data_uri: bool) -> None:
    api, script = sdapi(data_uri=data_uri, several_parents=True)
    answer = varied(api, 0.5, [10, 100, 200])
    assert api.capabilities.shares == "condition"
    assert answer.samples.array[:, 0, 0, 0].tolist() == [132, 178, 228]
    (body,) = script.requests
    assert body["denoising_strength"] == 0.5
    assert all(image.startswith("data:") == data_uri for image in body["init_images"])
    assert api.capabilities.degree == "exact"
    assert "about 10 of 20 steps" in api.describe_degree(0.5)


@pytest.mark.parametrize("takes", ["list", "first"])
def test_every_variation_is_of_the_parent_that_it_is_entered_under(sdapi: Make, tmp_path: Path, takes: str) -> None:
    api, script = sdapi(takes=takes)
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        dispatcher = Dispatcher(api, run, ("cat",), seed=3)
        first = dispatcher.random(np.zeros(6, np.int32))
        second = dispatcher.variations(1, first, Members.offspring(np.array([0, 0, 1, 1, 1, 1, 1, 5])), 0.5)
    shades = first.samples.array[:, 0, 0, 0].astype(int)
    offspring = second.samples.array[:, 0, 0, 0].astype(int)
    assert offspring.tolist() == [round(shade + (255 - shade) / 2) for shade in shades[second.parents].tolist()]
    made = [(len(body.get("init_images", ())), body["batch_size"]) for body in script.requests]
    assert sorted(made) == [(0, 2), (0, 4), (1, 1), (1, 1), (1, 2), (1, 4)]
    assert api.capabilities.shares == "parent"


@pytest.mark.parametrize("fault", TRANSPORT)
def test_transport_faults_are_retried(sdapi: Make, hugging: Make, fault: str) -> None:
    for make, count in ((sdapi, 4), (hugging, 1)):
        api, _ = make(Script(first=(fault,)))
        answer = random(api, count)
        assert len(answer.samples) == count
        assert answer.usage.calls == 2


def test_a_broken_or_lacking_image_fails_alone(sdapi: Make) -> None:
    api, _ = sdapi(Script(first=("truncated base64", "fewer")))
    for missing in (0, 3):
        answer = random(api, 4)
        assert list(answer.missing) == [missing]
        assert isinstance(answer.missing[missing], Failed)


def test_the_server_must_draw_at_the_size_it_was_asked_for(sdapi: Make) -> None:
    api, _ = sdapi(size=32)
    answer = random(api, 2)
    assert all("16×16" in miss.reason or "32" in miss.reason for miss in answer.missing.values())
    assert len(answer.missing) == 2


def test_hugging_face_s_client_brings_one_image_a_call(hugging: Make) -> None:
    api, script = hugging(steps=4, guidance_scale=1.5, size=16)
    answer = random(api, 1)
    assert answer.samples.array[0, 0, 0].tolist() == [40, 40, 40]
    (body,) = script.requests
    assert body["inputs"] == "a cat"
    assert body["parameters"]["num_inference_steps"] == 4
    assert body["parameters"]["seed"] == 40
    assert script.keys == {f"Bearer {CANARY}"}


@pytest.mark.parametrize(
    ("settings", "degree"),
    [
        ({"degree_field": "strength", "degree_exact": True}, "exact"),
        ({"degree_field": "strength"}, "wording"),
        ({}, "wording"),
    ],
)
def test_hugging_face_s_degree_is_a_number_or_a_wording(hugging: Make, settings: dict[str, str], degree: str) -> None:
    api, script = hugging(**settings)
    assert len(varied(api, 0.3, [50]).samples) == 1
    parameters = script.requests[0]["parameters"]
    assert api.capabilities.degree == degree
    assert parameters.get("strength") == (0.3 if settings else None)
    assert ("close variation" in parameters["prompt"]) == (degree == "wording")
    assert api.describe_degree(0.3)


def test_a_refusal_and_a_torn_image_are_outcomes(hugging: Make) -> None:
    api, _ = hugging(Script(first=("refusal", "truncated base64")))
    assert isinstance(random(api, 1).missing[0], Refused)
    assert isinstance(random(api, 1).missing[0], Failed)


def test_what_cannot_heal_stops_the_run_without_the_key(sdapi: Make) -> None:
    api, _ = sdapi(path="/nowhere")
    with pytest.raises(APIError, match="HTTP 404: Not Found") as error:
        random(api, 1)
    assert CANARY not in str(error.value)


@pytest.mark.parametrize("which", ["sdapi", "hugging"])
def test_degree_0_costs_nothing(request: pytest.FixtureRequest, which: str) -> None:
    api, script = request.getfixturevalue(which)()
    assert varied(api, 0.0, [7]).samples.array[0, 0, 0, 0] == 7
    assert not script.requests


def test_hugging_face_needs_a_model_or_an_address() -> None:
    with pytest.raises(RecipeError, match="either model or base_url"):
        HFInference(prompts="a", image_size=8)
