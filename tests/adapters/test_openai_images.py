"""The OpenAI-style adapter against a real server on loopback, through the official SDK."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pe
from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages, OpenAISettings, billed
from pe.data.conditions import Conditions
from pe.data.images import Images
from pe.engine.execution import Surroundings
from pe.engine.start import run_recipe
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, Refused, Usage, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.durability.driver import make_private
from tests.endpoints.faults import CONTENT, TRANSPORT, Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

CANARY = "sk-canary-7f3a9e"
Make = Callable[..., tuple[OpenAIImages, Script]]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)


@pytest.fixture
def make() -> Iterator[Make]:
    """An adapter, and the script of the server that it talks to."""
    with ExitStack() as stack:

        def made(
            script: Script | None = None, default: str = "b64_json", **settings: object
        ) -> tuple[OpenAIImages, Script]:
            script = script or Script()
            url = stack.enter_context(serving(OpenAIServer(script, default)))
            return OpenAIImages(**settings_for(url, **settings)), script

        yield made


def settings_for(url: str, **settings: object) -> dict[str, object]:
    given = {"model": "gpt-image-x", "prompts": "a photo of a {label}", "image_size": SIDE, "n": 4, "timeout": 1.0}
    return given | {"base_url": f"{url}/v1", "key_env": "THE_KEY"} | settings


def bomb() -> str:
    """A PNG of some 4 kB that says it is 65,535 × 65,535 pixels, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(2**22), 9)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def random(api: OpenAIImages, count: int = 4, label: str = "cat") -> Answer:
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(1 << 40)
    labels = (label,) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api: OpenAIImages, degree: float = 0.5, count: int = 2, prompt: str = "a cat") -> Answer:
    parents = Images(np.full((count, SIDE, SIDE, 3), 77, dtype=np.uint8))
    conditions = Conditions({"prompt": np.array([prompt] * count)})
    seeds = np.arange(count, dtype=np.uint64)
    return api.variation_api(VariationRequest(parents, ("cat",) * count, conditions, seeds, degree))


def test_one_request_brings_n_images_of_one_prompt(make: Make) -> None:
    api, script = make(size=f"{SIDE}x{SIDE}", quality="low", extra={"guidance_scale": 3.5})
    answer = random(api)
    assert answer.samples.array.shape == (4, SIDE, SIDE, 3)
    assert answer.usage == Usage(1, 4, 40, text_in=12, image_out=28, megapixels=4 * SIDE * SIDE / 1e6)
    (body,) = script.requests
    wanted = {"prompt": "a photo of a cat", "model": "gpt-image-x", "n": 4, "quality": "low", "guidance_scale": 3.5}
    assert {name: body[name] for name in wanted} == wanted
    assert script.keys == {f"Bearer {CANARY}"}


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


@pytest.mark.parametrize("fault", TRANSPORT)
def test_transport_faults_are_retried_and_counted(make: Make, fault: str) -> None:
    api, script = make(Script(first=(fault, fault)))
    answer = random(api)
    assert len(answer.samples) == 4
    assert not answer.missing
    assert answer.usage.calls == 3
    assert script.seen[fault] == 2


@pytest.mark.parametrize("fault", CONTENT)
def test_what_is_wrong_with_one_image_costs_no_other(make: Make, fault: str) -> None:
    api, script = make(Script(first=(fault,)), size=f"{SIDE}x{SIDE}")
    answer = random(api)
    expected = {"truncated base64": 3, "wrong size": 0, "fewer": 3, "more": 4, "duplicated": 4, "refusal": 0}[fault]
    assert len(answer.samples) == expected
    assert len(answer.missing) == 4 - expected
    outcome = Refused if fault == "refusal" else Failed
    assert all(isinstance(miss, outcome) for miss in answer.missing.values())
    assert answer.usage.images == (0 if fault == "refusal" else script.delivered)


HOSTILE = {
    "no list": {"data": None},
    "an object in place of the list": {"data": {"b64_json": "AAAA"}},
    "a list in place of the object": [{"b64_json": "AAAA"}],
    "entries that are no objects": {"data": [None, 3, "x", ["y"]]},
    "neither image nor address": {"data": [{}, {"b64_json": None}, {"b64_json": 7}, {"b64_json": ""}]},
    "a file": {"data": [{"url": "file:///etc/passwd"}] * 4},
    "plain http": {"data": [{"url": "http://127.0.0.1:1/x.png"}] * 4},
    "an address that is none": {"data": [{"url": "https://[::"}, {"url": 5}, {"url": "https://"}, {"url": ["https"]}]},
    "text that is no base64": {"data": [{"b64_json": "\u00e9" * 50}, {"b64_json": "data:image/png"}] * 2},
    "a bomb": {"data": [{"b64_json": bomb()}] * 4},
    "nesting without end": "[" * 1_000_000,
    "odd usage": {"data": [], "usage": {"total_tokens": "many"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_server_answers_each_item_fails_with_a_sentence(name: str) -> None:
    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        while (await receive()).get("more_body"):
            pass
        body = HOSTILE[name] if isinstance(HOSTILE[name], str) else json.dumps(HOSTILE[name])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    with serving(app) as url:
        answer = random(OpenAIImages(**settings_for(url, tries=2)))
    assert len(answer.samples) == 0
    assert sorted(answer.missing) == [0, 1, 2, 3]
    assert all(isinstance(miss, Failed) and miss.retryable and miss.reason for miss in answer.missing.values())
    assert answer.usage.tokens == 0


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


def test_an_endpoint_that_is_down_fails_its_items_and_not_the_run_at_once(make: Make) -> None:
    api, _ = make(Script(first=("500",) * 9), tries=3)
    answer = random(api)
    assert len(answer.samples) == 0
    assert {str(miss.reason) for miss in answer.missing.values()} == {"HTTP 500: scripted"}
    assert answer.usage.calls == 3


def test_a_missing_key_is_one_sentence_and_only_when_it_is_needed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_KEY")
    api, _ = make()
    assert api.capabilities.max_chunk == 4
    with pytest.raises(RecipeError, match="the environment variable THE_KEY is not set"):
        random(api)


def test_without_a_server_the_items_fail_with_its_name() -> None:
    api = OpenAIImages(**settings_for("http://127.0.0.1:9", tries=2))
    answer = random(api)
    assert all("Connect" in miss.reason for miss in answer.missing.values())
    assert answer.usage.calls == 2


def test_the_key_goes_to_no_other_host_by_a_redirect() -> None:
    elsewhere = Script()

    async def redirecting(scope: dict, receive: object, send: Callable) -> None:
        location = f"{scope['state_url']}/v1/images/generations?signed=1".encode()
        await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
        await send({"type": "http.response.body", "body": b""})

    with serving(OpenAIServer(elsewhere)) as other:

        async def app(scope: dict, receive: object, send: Callable) -> None:
            await redirecting({**scope, "state_url": other}, receive, send)

        with serving(app) as url:
            api = OpenAIImages(**settings_for(url))
            with pytest.raises(APIError, match=r"redirects to 'http://127.0.0.1:\d+/v1/images/generations'"):
                random(api)
    assert not elsewhere.keys


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


def recipe(folder: Path, url: str, population: int, **changes: object) -> Recipe:
    make_private(folder / "private.npz")
    return Recipe.parse(
        {
            "private": {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]},
            "api": {"kind": "openai_images"}
            | settings_for(url, size=f"{SIDE}x{SIDE}", concurrency=8, tries=8, timeout=4.0),
            "embedding": {"kind": "object:tests.generators.Mean"},
            "privacy": {"noise_multiplier": 1, "delta": 1e-5},
            "evolution": {"iterations": 1, "population": population, "lookahead": 2, "attempts": 8},
        }
        | changes,
        "the test",
    )


def test_a_run_of_2000_images_over_a_server_with_every_fault_accounts_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(share=0.2, faults=(*TRANSPORT, *CONTENT))
    with serving(OpenAIServer(script)) as url:
        run = run_recipe(recipe(tmp_path, url, 500), tmp_path / "run", Surroundings(embedding=Mean()))
    with read_journal(run) as journal:
        totals = journal.totals()
    assert len(run.synthetic) == 500
    assert all(script.seen[fault] for fault in (*TRANSPORT, *CONTENT))
    assert totals.usage.images == script.delivered
    assert totals.usage.calls == sum(script.seen.values())
    assert totals.usage.tokens == 10 * script.delivered
    # refused variations keep their parent or leave the mean; all others are there
    assert 2000 - totals.refused <= totals.answered <= 2000
    assert "adapters.http.policy: " in (run.confidential / "log.txt").read_text()
    output = "".join(capsys.readouterr())
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in content for content in [*files, output.encode()])
    assert script.keys == {f"Bearer {CANARY}"}


def test_a_run_that_the_endpoint_rejects_stops_at_once_and_goes_on_when_that_is_mended(tmp_path: Path) -> None:
    async def closed(scope: dict, receive: object, send: Callable) -> None:
        body = b'{"error": {"message": "Incorrect API key provided: ' + CANARY.encode() + b'"}}'
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    with serving(closed) as url, pytest.raises(APIError, match=r"HTTP 401: Incorrect API key provided: \[key\]"):
        run_recipe(recipe(tmp_path, url, 20), tmp_path / "run", Surroundings(embedding=Mean()))
    assert CANARY not in (tmp_path / "run" / "confidential" / "log.txt").read_text()


def test_a_password_in_the_address_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    given = recipe(tmp_path, "http://me:canary-pw@127.0.0.1:1", 20)
    with pytest.raises(RecipeError, match="basic_auth_env"):
        run_recipe(given, tmp_path / "run", Surroundings(embedding=Mean()))
    assert not any(b"canary-pw" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_prompts_stay_with_the_samples(tmp_path: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script)) as url:
        changed = recipe(tmp_path, url, 20)
        spec = changed.api.model_copy(update={"prompts": {"a": ["an a", "one a"], "b": "a b"}})
        run = run_recipe(changed.model_copy(update={"api": spec}), tmp_path / "run", Surroundings(embedding=Mean()))
    assert {body["prompt"] for body in script.requests if not body["parents"]} == {"an a", "one a", "a b"}
    for t in (0, 1):
        population = run.population(t)
        assert population is not None
        for label, prompt in zip(population.labels, population.conditions["prompt"], strict=True):
            assert prompt in (("an a", "one a"), ("a b",))[label]


def test_it_is_made_from_python_by_name() -> None:
    spec = pe.api("openai_images", **settings_for("http://127.0.0.1:9"))
    assert dataclasses.is_dataclass(OpenAIImages(**spec.settings).capabilities)
