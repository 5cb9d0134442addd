"""Servers that people run themselves: /sdapi/v1, Hugging Face's format, and what each known server
heeds.
"""

import io
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from adapters.hf_inference import HFInference
from adapters.http.settings import PROFILES, OpenAIServer, SDServer
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.data.population import Members
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, Refused, as_generator
from pe.store.writer import RunWriter
from tests.endpoints import sd_server
from tests.endpoints.asking import CANARY, given, openai, random, shades, varied
from tests.endpoints.faults import Script
from tests.endpoints.foreign import OPTIONS, ForeignOpenAI, ForeignSD


@pytest.fixture
def sdapi(serve):
    """An adapter, and the script of its server."""

    def made(*faults, path="", kind=SDAPI, **settings):
        script = Script(first=faults)
        more = {"batch": 4, "server": None} if kind is SDAPI else {}
        return kind(**given(serve(sd_server.SDServer(script)) + path, **more) | settings), script

    return made


@pytest.fixture
def hugging(sdapi):
    return partial(sdapi, path="/hf", kind=HFInference)


def test_one_txt2img_brings_a_whole_batch(sdapi):
    api, script = sdapi(
        "429 milliseconds", sampler="DDIM", negative_prompt="text", extra={"clip_skip": 2}
    )
    answer = random(api, 4)
    assert shades(answer) == [40, 41, 42, 43]
    assert answer.usage.calls == 2
    (body,) = script.requests
    wanted = {
        "prompt": "a cat",
        "negative_prompt": "text",
        "sampler_name": "DDIM",
        "clip_skip": 2,
        "batch_size": 4,
    }
    assert (wanted | {"width": 16, "height": 16, "steps": 20}).items() <= body.items()
    assert script.keys == {f"Bearer {CANARY}"}


@pytest.mark.parametrize("data_uri", [False, True])
def test_one_img2img_varies_several_parents_by_the_degree(sdapi, data_uri):
    api, script = sdapi(data_uri=data_uri, several_parents=True)
    assert shades(varied(api, 0.5, [10, 100, 200])) == [132, 178, 228]
    (body,) = script.requests
    assert body["denoising_strength"] == 0.5
    assert all(image.startswith("data:") == data_uri for image in body["init_images"])
    assert (api.capabilities.shares, api.capabilities.degree) == ("condition", "exact")
    assert "about 10 of 20 steps" in api.describe_degree(0.5)
    assert shades(varied(api, 0.0, [7])) == [7]
    assert len(script.requests) == 1  # degree 0 makes no call


def test_a_lacking_image_fails_alone_and_one_of_another_size_too(sdapi):
    assert random(sdapi("fewer")[0], 4).missing.keys() == {3}
    answer = random(sdapi(size=32)[0], 2)
    assert len(answer.missing) == 2
    assert all("32" in miss.reason for miss in answer.missing.values())


def test_hugging_face_s_format_brings_one_image_a_call(hugging):
    api, script = hugging("429 milliseconds", steps=4, guidance_scale=1.5, size=16)
    answer = random(api)
    assert (shades(answer), answer.usage.calls) == ([40], 2)
    (body,) = script.requests
    parameters = {
        "num_inference_steps": 4,
        "guidance_scale": 1.5,
        "seed": 40,
        "height": 16,
        "width": 16,
    }
    assert body == {"inputs": "a cat", "parameters": parameters}
    assert script.keys == {f"Bearer {CANARY}"}


@pytest.mark.parametrize("exact", [True, False])
def test_hugging_face_s_degree_is_a_number_or_a_wording(hugging, exact):
    api, script = hugging(degree_field="strength", degree_exact=exact)
    assert len(varied(api, 0.3, [50]).samples) == 1
    parameters = script.requests[0]["parameters"]
    assert api.capabilities.degree == ("exact" if exact else "wording")
    assert parameters["strength"] == 0.3
    assert ("close variation" in parameters["prompt"]) == (not exact)


DEEP = np.array([[0, 256, 32768, 65535]], np.uint16)
TURNED = Image.Exif()
TURNED[0x0112] = 6


def png(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


OPENED = {
    "16 bits": (png(Image.fromarray(DEEP)), [[[0] * 3, [1] * 3, [128] * 3, [255] * 3]]),
    "transparent": (png(Image.new("RGBA", (1, 1), (9, 9, 9, 0))), [[[255] * 3]]),
    "turned": (
        png(Image.fromarray(np.array([[1, 2]], np.uint8)), exif=TURNED),
        [[[1] * 3], [[2] * 3]],
    ),
    "a bomb": (png(Image.new("L", (8200, 8200))), "announces more than"),
    "cut": (png(Image.effect_noise((64, 64), 50))[:-200], "truncated or damaged"),
}


@pytest.mark.parametrize("name", OPENED)
def test_what_the_hub_s_client_has_opened_is_read_by_the_rules_for_all_images(name):
    data, expected = OPENED[name]
    api = HFInference(model="owner/name", prompts="a", image_size=8)
    ((found,), _) = api.response(None, Image.open(io.BytesIO(data)))
    if isinstance(expected, str):
        assert expected in found.reason
    else:
        np.testing.assert_array_equal(found, expected)


def test_a_refusal_and_a_torn_image_of_hugging_face_are_outcomes(hugging):
    api, _ = hugging("refusal", "truncated base64")
    assert isinstance(random(api).missing[0], Refused)
    assert isinstance(random(api).missing[0], Failed)


def test_the_setting_names_the_servers_of_the_table_and_the_page_shows_it():
    page = (Path(__file__).parents[3] / "benchmarks" / "results" / "peers.md").read_text()
    for api, names in (("openai_images", OpenAIServer), ("sdapi", SDServer)):
        assert sorted(get_args(names)) == sorted(
            each.server for each in PROFILES if each.api == api
        )
    for each in PROFILES:
        assert ("exact" in each.degree) == each.sets.get("degree_exact", each.api == "sdapi")
        ways = ", ".join(
            way if way == "img2img" else f"images/{way.replace('edit', 'edits')}"
            for way in each.varies
        )
        drawn = "txt2img" if each.api == "sdapi" else "images/generations"
        cells = (
            f"{each.title} (`{each.server}`)",
            drawn,
            ways or "none: it cannot be used",
            each.degree,
            each.seed,
        )
        assert f"| {' | '.join(cells)} | {each.several} |" in page


SENT = {
    "sglang": {"seed": "0", "response_format": "b64_json"},
    "vllm-omni": {"seed": "0", "strength": "0.2", "response_format": "b64_json"},
    "xinference": {"response_format": "b64_json"},
    "localai": None,
    "ovms": {"rng_seed": "0", "strength": "0.2", "response_format": "b64_json"},
    "stable-diffusion.cpp": {"response_format": "b64_json"},
    "litellm": {},
    "unknown": {"response_format": "b64_json"},
}
"""Server → what it is sent of a variation, beside the prompt, the model and the number."""


def remedies(kind, settings):
    """What `pe doctor` says to do."""
    return [finding.remedy for finding in kind.look(settings)]


@pytest.mark.parametrize("server", SENT)
def test_a_server_of_openai_s_api_is_recognised_by_a_look_and_by_its_name_its_fields_are_used(
    serve, server
):
    app = ForeignOpenAI(server)
    settings = openai(serve(app), model="m")
    del settings["server"]
    name = None if server == "unknown" else server
    if name is not None:
        assert f"write `server: {name}` in the recipe" in remedies(OpenAIImages, settings)
        assert "write `server" not in str(remedies(OpenAIImages, settings | {"server": name}))
    app.asked.clear()
    if SENT[server] is None:
        with pytest.raises(
            RecipeError, match=r"LocalAI \(`server: localai`\) cannot vary a sample by `edit`"
        ):
            OpenAIImages(**settings, server=name)
        return
    api = OpenAIImages(**settings, server=name)
    varied(api, 0.2)
    body = app.requests[0]
    assert {name: body[name] for name in body.keys() - {"prompt", "model", "n", "parents"}} == SENT[
        server
    ]
    assert api.capabilities.degree == ("exact" if server == "ovms" else "wording")
    assert (
        body["prompt"] == "a cat"
        if server == "ovms"
        else body["prompt"].startswith("Make an almost identical")
    )
    assert not app.asked  # a run asks no server who it is


@pytest.mark.parametrize("stated", [{}, {"server": "auto"}])
def test_a_run_that_asked_who_answers_is_refused_until_it_is_told(stated):
    settings = openai("http://127.0.0.1:9")
    del settings["server"]
    api = OpenAIImages(**settings, **stated)
    for start in (api.check_machine, lambda: random(api)):
        with pytest.raises(
            RecipeError, match=r"`server` is missing. .* Since version \d.* --set api\.server=NAME"
        ):
            start()
    for server in ("sglang", None):
        OpenAIImages(**openai("http://127.0.0.1:9", server=server)).check_machine()
    OpenAIImages(**openai("http://127.0.0.1:9", base_url=None)).check_machine()
    assert {"server"} <= {*OpenAIImages.info.machine_settings} & {*SDAPI.info.machine_settings}


def test_what_a_recipe_states_goes_before_what_is_known_of_the_server(serve):
    app = ForeignOpenAI("ovms")
    url = serve(app)
    stated = openai(url, server="ovms", degree_exact=False, seed_field=None, response_format=None)
    varied(api := OpenAIImages(**stated), 0.2)
    assert app.requests[0].keys() == {"prompt", "model", "n", "strength", "parents"}
    assert api.capabilities.degree == "wording"
    for field, degree in (("guidance_scale", "wording"), ("strength", "exact")):
        assert (
            OpenAIImages(**openai(url, server="ovms", degree_field=field)).capabilities.degree
            == degree
        )
    assert (
        SDAPI(**given(url, server="forge", several_parents=False)).capabilities.shares == "parent"
    )


@pytest.mark.parametrize("server", [*OPTIONS, "xinference"])
def test_each_variation_is_of_its_parent_behind_every_server_of_sdapi(serve, tmp_path, server):
    app, batch = ForeignSD(server), 1 if server == "xinference" else 4
    settings = given(serve(app), batch=batch, extra={"model": "m"})
    assert f"write `server: {server}` in the recipe" in remedies(SDAPI, settings)
    api = SDAPI(**settings, server=server)
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        dispatcher = Dispatcher(as_generator(api), run, ("cat",), seed=3)
        first = dispatcher.random(np.zeros(6, np.int32))
        second = dispatcher.variations(
            1, first, Members.offspring(np.array([0, 1, 1, 1, 1, 1, 2, 5])), 0.2
        )
    origin = np.array(shades(first))[second.parents]
    assert shades(second) == [round(shade + 0.2 * (255 - shade)) for shade in origin.tolist()]
    each_varied = server in ("a1111", "forge")
    assert api.capabilities.shares == ("condition" if each_varied else "parent")
    variations = [body for body in app.requests if "init_images" in body]
    assert max(len(body["init_images"]) for body in variations) == (4 if each_varied else 1)
    assert max(body["batch_size"] for body in variations) == batch
    assert all(
        body["init_images"][0].startswith("data:") == (server == "xinference")
        for body in variations
    )
