"""The adapter for OpenAI's images API over a real server on loopback: what it asks, what it makes
of answers, runs.
"""

from urllib.parse import quote

import numpy as np
import pytest

from adapters.http.answers import data_uri
from adapters.openai_images import OpenAIImages, OpenAISettings, tokens_of_images
from adapters.sdapi import SDAPI
from pe.data.decoding import decode_image
from pe.data.population import Members
from pe.data.samples import DRAWN
from pe.dispatch.dispatcher import Dispatcher
from pe.engine.execution import RunContext, run_recipe
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, Refused, Usage, as_generator
from pe.recipe.schema import Recipe
from pe.store.writer import RunWriter, read_journal
from tests.durability.driver import make_private
from tests.endpoints.asking import CANARY, openai, random, shades, varied
from tests.endpoints.faults import CONTENT, TRANSPORT, Script
from tests.endpoints.guard import Guarded
from tests.endpoints.hosted import Answering, pixels_of, png
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.generators import Mean

SIZED = {"size": f"{SIDE}x{SIDE}"}


@pytest.fixture
def make(serve):
    """An adapter, and the script of the server that it talks to."""

    def made(*faults, default="b64_json", **settings):
        script = Script(first=faults)
        return OpenAIImages(**openai(serve(OpenAIServer(script, default)), **settings)), script

    return made


def test_one_request_brings_n_images_of_one_prompt(make):
    api, script = make(quality="low", extra={"guidance_scale": 3.5}, **SIZED)
    answer = random(api, 4)
    assert answer.samples.array.shape == (4, SIDE, SIDE, 3)
    assert answer.usage == Usage(
        1, 4, 40, text_in=12, image_out=28, megapixels=4 * SIDE * SIDE / 1e6
    )
    (body,) = script.requests
    wanted = {
        "prompt": "a cat",
        "model": "gpt-image-x",
        "n": 4,
        "quality": "low",
        "guidance_scale": 3.5,
    }
    assert {name: body[name] for name in wanted} == wanted
    assert script.keys == {f"Bearer {CANARY}"}


def test_a_variation_is_an_edit_of_its_parent_in_words_for_its_degree(make):
    api, script = make(
        wordings={0.5: "like {prompt}, a little changed", 1: "another"}, input_fidelity="high"
    )
    assert len(varied(api, 0.5, [77, 77]).samples) == len(varied(api, 0.51, [77]).samples) + 1 == 2
    first, second = script.requests
    assert (first["prompt"], second["prompt"]) == ("like a cat, a little changed", "another")
    assert (first["input_fidelity"], first["n"]) == ("high", "2")
    (parent,) = first["parents"]
    assert (pixels_of(parent) == 77).all()
    assert "a little changed" in api.describe_degree(0.2)
    assert (varied(api, 0.0).samples.array == 77).all()
    assert len(script.requests) == 2  # degree 0 makes no call


WORDED = (
    "Make a close variation of this image: same subject and composition, small differences in "
    "detail."
)
FIELD = {"degree_field": "strength"}
EXACT, VARIED = FIELD | {"degree_exact": True}, {"variation": "variations"}
DOUBT = "sent as strength = 0.25, which the server may ignore"


@pytest.mark.parametrize(
    ("settings", "prompt", "strength", "degree", "described"),
    [
        ({}, WORDED, None, "wording", "worded as"),
        (FIELD, WORDED, "0.25", "wording", DOUBT),
        (EXACT, "a cat", "0.25", "exact", "sent as strength = 0.25"),
        (EXACT | {"wordings": {1: "other {prompt}"}}, "other a cat", "0.25", "exact", "worded as"),
        (VARIED, None, None, "none", "not told to the endpoint"),
        (VARIED | FIELD, None, "0.25", "none", DOUBT),
    ],
)
def test_a_degree_is_told_in_words_unless_its_field_is_known_to_be_heeded(
    make, settings, prompt, strength, degree, described
):
    api, script = make(seed_field="seed", **settings)
    assert len(varied(api, 0.25).samples) == 1
    (body,) = script.requests
    assert (body.get("prompt"), body.get("strength"), body["seed"]) == (prompt, strength, "0")
    assert api.capabilities.degree == degree
    assert described in api.describe_degree(0.25)


def test_servers_that_name_a_path_unless_told_otherwise_send_the_images_themselves(make):
    for settings in ({}, {"variation": "variations"}):
        api, script = make(default="url", **settings)
        assert len(random(api).samples) == len(varied(api).samples) == 1
        assert {body["response_format"] for body in script.requests} == {"b64_json"}
    api, _ = make(default="url", response_format=None)
    assert (
        "have it send the image itself (`response_format: b64_json`)"
        in random(api).missing[0].reason
    )


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"base_url": "https://eu.api.openai.com/v1"}, None),
        ({"base_url": "https://gateway.example", "azure_api_version": "2025-04-01-preview"}, None),
        ({"base_url": "https://gateway.example/openai.com/v1"}, "b64_json"),
    ],
)
def test_who_is_sent_response_format(given, sent):
    settings = OpenAISettings(model="m", prompts="a", image_size=8, **given)
    assert settings.response_format == sent


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (None, Usage(0)),
        ("many", Usage(0)),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(0, tokens=7, image_out=4)),
        (
            {
                "input_tokens_details": {"text_tokens": 10, "image_tokens": 20, "more": {}},
                "total_tokens": 100,
            }
            | {
                "output_tokens": 70,
                "output_tokens_details": {"text_tokens": 6, "image_tokens": 64},
            },
            Usage(0, tokens=100, text_in=10, image_in=20, text_out=6, image_out=64),
        ),
        ({"input_tokens_details": [3], "output_tokens": -4, "total_tokens": "7"}, Usage(0)),
    ],
)
def test_tokens_are_counted_by_kind_as_far_as_the_server_tells_them_apart(told, counted):
    assert (tokens_of_images(told) or Usage(0)) == counted


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompts": {"dog": "a dog"}}, "there is none for the label 'cat'"),
        ({"wordings": {0.5: "a"}}, "the last must be 1"),
        ({"degree_exact": True}, "heeds `degree_field`. Name that field"),
        ({"image_size": 0}, "image_size.0 must be at least 1"),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings, sentence):
    with pytest.raises(RecipeError, match=sentence):
        random(OpenAIImages(**openai("http://127.0.0.1:9", **settings)))


@pytest.mark.parametrize("fault", TRANSPORT)
def test_transport_faults_are_retried_and_counted(make, fault):
    api, script = make(fault)
    answer = random(api, 4)
    assert (len(answer.samples), answer.missing, answer.usage.calls) == (4, {}, 2)
    assert script.seen[fault] == 1


@pytest.mark.parametrize("fault", CONTENT)
def test_what_is_wrong_with_one_image_costs_no_other(make, fault):
    api, script = make(fault, **SIZED)
    answer = random(api, 4)
    expected = {
        "truncated base64": 3,
        "wrong size": 0,
        "fewer": 3,
        "more": 4,
        "duplicated": 4,
        "refusal": 0,
    }[fault]
    assert (len(answer.samples), len(answer.missing)) == (expected, 4 - expected)
    outcome = Refused if fault == "refusal" else Failed
    assert all(isinstance(miss, outcome) for miss in answer.missing.values())
    assert answer.usage.images == (0 if fault == "refusal" else script.delivered)


HOSTILE = {
    "a list in place of the object": [{"b64_json": "AAAA"}],
    "entries that are no objects": {"data": [None, 3, "x", ["y"]]},
    "neither image nor address": {
        "data": [{}, {"b64_json": None}, {"b64_json": 7}, {"b64_json": ""}]
    },
    "no address": {
        "data": [{"url": "file:///etc/passwd"}, {"url": "http://127.0.0.1:1/x.png"}, {"url": 5}]
    },
    "an address that is none": {
        "data": [{"url": "https://[::"}, {"url": "https://"}, {"url": ["https"]}]
    },
    "nesting without end": b"[" * 1_000_000,
}


def test_an_address_that_holds_the_image_is_decoded(serve):
    files = [png(shade, 16) for shade in (10, 200)]
    entries = [
        {"url": data_uri(files[0])},
        {"url": f"data:image/png,{quote(files[1])}", "b64_json": None},
    ]
    answer = random(OpenAIImages(**openai(serve(Answering({"data": entries})), server=None)), 2)
    assert shades(answer) == [10, 200]


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_server_answers_each_item_fails_with_a_sentence(name, serve):
    answer = random(OpenAIImages(**openai(serve(Answering(HOSTILE[name])), server=None)), 4)
    assert len(answer.samples) == 0
    assert sorted(answer.missing) == [0, 1, 2, 3]
    assert all(
        isinstance(miss, Failed) and miss.retryable and miss.reason
        for miss in answer.missing.values()
    )


def recipe(folder, url, population, **settings):
    make_private(folder / "private.npz")
    private = {
        "kind": "npz",
        "path": folder / "private.npz",
        "size": 4,
        "channels": 1,
        "classes": ["a", "b"],
    }
    given = openai(url, concurrency=8, tries=8, **SIZED)
    content = {
        "private": private,
        "api": {"kind": "openai_images"} | given | settings,
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": population, "lookahead": 2, "attempts": 8},
    }
    return Recipe.parse(content, "the test")


def test_a_run_over_a_server_with_every_fault_whose_key_expires_accounts_for_each_image(
    serve, tmp_path, capsys
):
    faults, key = ("429 milliseconds", "500", "other json", "dropped", *CONTENT), tmp_path / "key"
    script = Script(first=faults, share=0.05, faults=faults)
    guard = Guarded(OpenAIServer(script), "Bearer key-canary-1", "Bearer key-canary-2", expires=30)
    key.write_text("key-canary-1")

    async def app(scope, receive, send):
        if len(guard.came) == 30:  # one who renews keys does it before they expire
            (tmp_path / "new").write_text("key-canary-2")
            (tmp_path / "new").rename(key)
        await guard(scope, receive, send)

    settings = {"key_env": None, "key_file": key, "server": None, "timeout": 20.0}
    run = run_recipe(
        recipe(tmp_path, serve(app), 60, **settings), tmp_path / "run", RunContext(embedding=Mean())
    )
    with read_journal(run) as journal:
        totals = journal.totals()
    assert len(run.synthetic) == 60
    assert all(script.seen[fault] for fault in faults)
    assert totals.usage.images == script.delivered
    assert totals.usage.calls == sum(script.seen.values())
    assert totals.usage.tokens == 10 * script.delivered
    # refused variations keep their parent or leave the mean; all others are there
    assert 240 - totals.refusals <= totals.answers <= 240
    assert "adapters.http.retries: " in (run.confidential / "log.txt").read_text()
    assert script.keys == {"Bearer key-canary-1", "Bearer key-canary-2"}
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(
        b"key-canary" in content for content in [*files, "".join(capsys.readouterr()).encode()]
    )


def test_a_password_in_the_address_is_refused_before_anything_is_stored(tmp_path):
    given = recipe(tmp_path, "http://me:canary-pw@127.0.0.1:1", 20)
    with pytest.raises(RecipeError, match="basic_auth_env"):
        run_recipe(given, tmp_path / "run", RunContext(embedding=Mean()))
    assert not any(
        b"canary-pw" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


SMALL, LARGE = 4, 72


def kept_settings(url, **others):
    kept = {
        "image_size": SMALL,
        "channels": 1,
        "size": f"{LARGE}x{LARGE}",
        "keep_size": True,
        "n": 2,
    }
    return openai(url, **kept | others)


@pytest.mark.parametrize(("changed", "side"), [({}, LARGE), ({"size": None, "keep_size": 36}, 36)])
def test_a_parent_goes_out_at_the_size_at_which_it_is_kept_and_the_sample_has_the_other(
    changed, side, serve, tmp_path
):
    server = OpenAIServer(Script(), side=LARGE)
    api, labels = OpenAIImages(**kept_settings(serve(server), **changed)), np.zeros(6, np.int32)
    assert api.info.kept == (side, side)
    for t in range(2):  # the second time a run that goes on
        with (
            RunWriter.reopen(tmp_path / "run")
            if t
            else RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run
        ):
            dispatcher = Dispatcher(as_generator(api), run, ("cat",), seed=3)
            made = dispatcher.random(labels)
            children = dispatcher.variations(1, made, Members.offspring(np.arange(6)), 0.5)
    sent = [pixels_of(asked["parents"][0]) for asked in server.script.requests if asked["parents"]]
    assert {one.tobytes() for one in sent} == {one.tobytes() for one in made.conditions[DRAWN]}
    assert {one.shape for one in sent} == {(side, side, 3)}
    form = {"size": (SMALL, SMALL), "resize": "crop", "channels": 1, "name": "it"}
    if side == LARGE:
        for sample, kept in zip(children.samples.array, children.conditions[DRAWN], strict=True):
            np.testing.assert_array_equal(sample, decode_image(kept, **form))
    assert children.samples.array.shape == (6, SMALL, SMALL, 1)


def test_it_wants_one_size_that_is_known():
    for size in (None, "auto"):
        with pytest.raises(RecipeError, match="`keep_size: true` needs one known size"):
            OpenAIImages(**kept_settings("http://127.0.0.1:1", size=size))
    sd = {"base_url": "http://127.0.0.1:1", "prompts": "a", "image_size": 8, "keep_size": True}
    assert SDAPI(**sd).info.kept is None  # it draws at image_size
    assert SDAPI(**sd, size=16).info.kept == (16, 16)
