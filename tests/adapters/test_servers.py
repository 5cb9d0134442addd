"""What each known server heeds, and that it is recognised: rows 1 to 3 of what foreign servers were found to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from adapters.http import policy as policy_module
from adapters.http.settings import PROFILES, OpenAIServer, SDServer, markdown, profile
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.data.images import Images
from pe.data.population import Members
from pe.data.samples import Conditions
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.store.writer import RunWriter
from tests.endpoints.foreign import OPENAI, OPTIONS, SIDE, ForeignOpenAI, ForeignSD
from tests.endpoints.serving import serving

Serve = Callable[[Any], str]
PARENTS = [10, 90, 170, 250]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


def openai(url: str, **settings: object) -> OpenAIImages:
    given = {"base_url": f"{url}/v1", "model": "m", "prompts": "a {label}", "image_size": SIDE, "key_env": None}
    return OpenAIImages(**given | settings)


def sdapi(url: str, **settings: object) -> SDAPI:
    return SDAPI(**{"base_url": url, "prompts": "a {label}", "image_size": SIDE} | settings)


def new(api: OpenAIImages | SDAPI, count: int = 1) -> Answer:
    seeds, labels = np.arange(count, dtype=np.uint64) + np.uint64(40), ("cat",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api: OpenAIImages | SDAPI, degree: float, shade: int = 55) -> Answer:
    pixels = np.full((1, SIDE, SIDE, 3), shade, np.uint8)
    conditions = Conditions({"prompt": np.array(["a cat"])})
    return api.variation_api(VariationRequest(Images(pixels), ("cat",), conditions, np.zeros(1, np.uint64), degree))


def shades(answer: Answer) -> list[int]:
    return answer.samples.array[:, 0, 0, 0].tolist()


def test_the_setting_names_the_servers_of_the_table_and_no_others() -> None:
    for api, names in (("openai_images", OpenAIServer), ("sdapi", SDServer)):
        assert sorted(get_args(names)) == sorted({"auto", *(each.server for each in PROFILES if each.api == api)})
    assert all(("exact" in each.degree) == each.sets.get("degree_exact", each.api == "sdapi") for each in PROFILES)


def test_the_page_shows_the_table() -> None:
    assert markdown() in (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text()


@pytest.mark.parametrize("server", OPENAI)
def test_a_server_of_openai_s_api_is_recognised_and_its_fields_are_used(serve: Serve, server: str) -> None:
    app, known = ForeignOpenAI(server), profile("openai_images", server)
    api = openai(serve(app))
    if not known.varies:
        with pytest.raises(RecipeError, match=r"LocalAI \(server: localai\) cannot vary a sample by 'edit'"):
            new(api)
        assert not app.requests
        return
    assert len(new(api).samples) == len(new(api).samples) == len(varied(api, 0.5).samples) == 1
    asked_for = known.sets.get("response_format", "b64_json")
    assert {body.get("response_format") for body in app.requests} == {asked_for}
    seed = known.sets.get("seed_field")
    assert ("seed" in app.requests[0] or "rng_seed" in app.requests[0]) == (seed is not None)
    assert shades(new(api)) == [40 if seed else 7]
    assert len(app.asked) == len(set(app.asked)) <= 3  # once, before the first request
    assert api.capabilities.degree == ("exact" if server == "ovms" else "wording")


def test_a_degree_counts_as_exact_where_the_server_heeds_it_and_is_put_in_words_elsewhere(serve: Serve) -> None:
    for server, field, low, high in (
        ("ovms", "0.2", 95, 235),
        ("vllm-omni", "0.2", 205, 205),
        ("sglang", None, 205, 205),
        ("xinference", None, 205, 205),
    ):
        app = ForeignOpenAI(server)
        api = openai(serve(app), server=server)
        assert [shades(varied(api, degree))[0] for degree in (0.2, 0.9)] == [low, high]
        assert app.requests[0].get("strength") == field
        assert (app.requests[0]["prompt"] == "a cat") == (api.capabilities.degree == "exact") == (low != high)
        assert not app.asked


def test_what_a_recipe_states_goes_before_what_is_known_of_the_server(serve: Serve) -> None:
    app = ForeignOpenAI("ovms")
    url = serve(app)
    api = openai(url, server="ovms", degree_exact=False, seed_field=None, response_format=None)
    varied(api, 0.2)
    assert app.requests[0].keys() == {"prompt", "model", "n", "strength", "parent"}
    assert api.capabilities.degree == "wording"
    assert openai(url, server="ovms", degree_field="guidance_scale").capabilities.degree == "wording"
    assert openai(url, server="ovms", degree_field="strength").capabilities.degree == "exact"
    assert sdapi(url, server="forge", several_parents=False).capabilities.shares == "parent"


def test_an_unknown_server_is_asked_once_and_served_with_care(serve: Serve) -> None:
    app = ForeignOpenAI("litellm")
    app.kind = type(app.kind)(gets={}, default="url")
    api = openai(serve(app))
    assert len(new(api).samples) == len(varied(api, 0.2).samples) == 1
    assert app.asked == ["/v1/models", "/.well-known/localai.json", "/health/liveliness"]
    assert app.requests[1]["prompt"].startswith("Make an almost identical image")
    unasked = openai(serve(other := ForeignOpenAI("ovms")), server=None)
    assert unasked.capabilities.degree == "wording"
    assert len(new(unasked).samples) == 1
    assert not other.asked


def test_a_server_that_still_loads_is_asked_again(serve: Serve) -> None:
    app = ForeignOpenAI("ovms", loads=1)
    api = openai(serve(app))
    assert shades(varied(api, 0.2)) == [95]
    assert app.asked == ["/v1/models"] * 2


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("server", [*OPTIONS, "xinference"])
def test_each_variation_is_of_its_parent_behind_every_server_of_sdapi(
    serve: Serve, tmp_path: Path, server: str, named: bool
) -> None:
    app = ForeignSD(server)
    batch = 1 if server == "xinference" else 4
    api = sdapi(serve(app), batch=batch, extra={"model": "m"}, server=server if named else "auto")
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        dispatcher = Dispatcher(api, run, ("cat",), seed=3)
        first = dispatcher.random(np.zeros(6, np.int32))
        second = dispatcher.variations(1, first, Members.offspring(np.arange(6)), 0.2)
    origin, offspring = (each.samples.array[:, 0, 0, 0].astype(int) for each in (first, second))
    assert offspring.tolist() == [round(shade + 0.2 * (255 - shade)) for shade in origin.tolist()]
    each_varied = named and server in ("a1111", "forge")
    assert api.capabilities.shares == ("condition" if each_varied else "parent")
    variations = [body for body in app.requests if "init_images" in body]
    assert max(len(body["init_images"]) for body in variations) == (4 if each_varied else 1)
    assert all(body["init_images"][0].startswith("data:") == (server == "xinference") for body in variations)


def test_several_parents_behind_stable_diffusion_cpp_would_all_be_the_first(serve: Serve) -> None:
    api = sdapi(serve(ForeignSD("stable-diffusion.cpp")), batch=4, several_parents=True)
    pixels = np.broadcast_to(np.array(PARENTS, np.uint8)[:, None, None, None], (4, SIDE, SIDE, 3)).copy()
    conditions = Conditions({"prompt": np.array(["a cat"] * 4)})
    seeds = np.arange(4, dtype=np.uint64)
    answer = api.variation_api(VariationRequest(Images(pixels), ("cat",) * 4, conditions, seeds, 0.05))
    assert shades(answer) == [22] * 4  # which is why nobody is asked for it unless known to vary each


def test_a_way_of_varying_that_the_server_lacks_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(RecipeError, match=r"OpenVINO .* cannot vary a sample by 'variations'; it has variation: edit"):
        openai("http://127.0.0.1:9", server="ovms", variation="variations")
