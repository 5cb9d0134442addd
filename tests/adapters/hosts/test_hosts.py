"""Bedrock, Gemini, Stability and Together, against their scripted servers on loopback."""

import sys

import pytest

from adapters.hosts import Bedrock
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed, Refused
from tests.endpoints.asking import CANARY, random, varied
from tests.endpoints.faults import Script
from tests.endpoints.hosted import pixels_of
from tests.endpoints.hosts import ACCESS, HOSTS

EACH = pytest.mark.parametrize("host", HOSTS)
SIDE = 64
SIGNED = {"key_env": None}


@pytest.fixture
def make(serve, monkeypatch):
    """A host's adapter, and the script of the server that it talks to."""
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)

    def made(host, *faults, path="", **settings):
        script = Script(first=faults)
        url = serve(HOSTS[host].serve(script))
        return HOSTS[host].make(
            url + path, **{"key_env": "THE_KEY", "timeout": 1.0} | settings
        ), script

    return made


@EACH
def test_one_image_comes_by_one_call_that_shows_the_key_and_a_fault_is_retried(make, host):
    api, script = make(host, "", "429 milliseconds")
    for calls in (1, 2):
        answer = random(api)
        assert answer.samples.array.shape == (1, SIDE, SIDE, 3)
        assert (answer.usage.calls, answer.usage.images) == (calls, 1)
    assert script.keys == {HOSTS[host].keyed.format(CANARY)}


@EACH
def test_a_refusal_is_told_apart_from_a_broken_image(make, host):
    refusals = HOSTS[host].refusals
    api, script = make(host, *refusals, "truncated")
    for kind in [*[Refused] * len(refusals), Failed]:
        answer = random(api)
        assert isinstance(answer.missing[0], kind)
        assert answer.usage.calls == 1
    assert len(script.requests) == len(refusals) + 1


IMAGE_CONFIG = {"aspectRatio": "3:2", "imageSize": "1K"}
NEW = {
    "bedrock": (
        {"extra": {"cfg_scale": 4}, "negative_prompt": "text"},
        {
            "model": "stability.sd3-5-large-v1:0",
            "prompt": "a cat",
            "negative_prompt": "text",
            "cfg_scale": 4,
        }
        | {
            "seed": 1,
            "output_format": "png",
            "mode": "text-to-image",
            "aspect_ratio": "1:1",
        },  # seed 0 would draw one
    ),
    "gemini": (
        {"aspect_ratio": "3:2", "resolution": "1K"},
        {
            "call": "gemini-3.1-flash-image:generateContent",
            "contents": [{"role": "user", "parts": [{"text": "a cat"}]}],
            "generationConfig": {
                "responseModalities": ["TEXT", "IMAGE"],
                "seed": 0,
                "imageConfig": IMAGE_CONFIG,
            },
        },
    ),
    "stability": (
        {
            "aspect_ratio": "3:2",
            "negative_prompt": "text",
            "extra": {"style_preset": "photographic"},
        },
        {
            "service": "sd3",
            "mode": "text-to-image",
            "model": "sd3.5-large",
            "prompt": "a cat",
            "seed": "1",
        }
        | {
            "negative_prompt": "text",
            "style_preset": "photographic",
            "aspect_ratio": "3:2",
            "output_format": "png",
        }
        | {"parents": None},
    ),
    "together": (
        {"size": [SIDE, SIDE], "n": 4, "extra": {"steps": 8}},
        {
            "model": "black-forest-labs/FLUX.2-dev",
            "prompt": "a cat",
            "height": SIDE,
            "width": SIDE,
            "steps": 8,
        }
        | {"n": 1, "seed": 0, "response_format": "base64", "output_format": "png"},
    ),
}


@pytest.mark.parametrize("host", NEW)
def test_a_new_image_is_asked_for_under_the_host_s_names(make, host):
    settings, wanted = NEW[host]
    api, script = make(host, **settings)
    billed = random(api, seed=0).usage
    assert script.requests == [wanted]
    assert (billed.tokens, billed.text_in, billed.image_out) == (
        (1300, 3, 1296) if host == "gemini" else (0, 0, 0)
    )


VARIED = [
    ("bedrock", {}, lambda body: body["image"], {"mode": "image-to-image", "strength": 0.25}),
    ("gemini", {}, lambda body: body["contents"][0]["parts"][1]["inlineData"]["data"], {}),
    (
        "stability",
        {},
        lambda body: body["parents"],
        {"mode": "image-to-image", "strength": "0.25", "seed": "1"},
    ),
    (
        "stability",
        {"model": "ultra"},
        lambda body: body["parents"],
        {"aspect_ratio": "1:1", "strength": "0.25"},
    ),
    ("together", {}, lambda body: body["image_url"], {}),
    (
        "together",
        {"parent_field": "reference_images"},
        lambda body: body["reference_images"][0],
        {},
    ),
]


@pytest.mark.parametrize(("host", "settings", "parent_of", "wanted"), VARIED)
def test_a_variation_holds_its_parent_and_tells_its_degree(make, host, settings, parent_of, wanted):
    api, script = make(host, **settings)
    assert len(varied(api, 0.25, side=SIDE).samples) == 1
    (body,) = script.requests
    assert (pixels_of(parent_of(body)) == 77).all()
    assert wanted.items() <= body.items()
    assert ("Make a close variation" in str(body)) == ("strength" not in wanted)
    assert api.capabilities.degree == ("exact" if wanted else "wording")
    assert api.describe_degree(0.25).startswith(
        "sent as strength = 0.25" if wanted else "worded as"
    )


def test_bedrock_signs_by_the_account_s_credentials_and_names_its_region_s_address(make):
    api, script = make("bedrock", **SIGNED)
    assert len(random(api).samples) == 1
    (header,) = script.bearers
    assert header.startswith("AWS4-HMAC-SHA256 Credential=AKIACANARY/")
    given = {"prompts": "a", "image_size": 64, "model": "stability.sd3-5-large-v1:0"}
    assert Bedrock(**given, region="us-west-2").info.hosts == (
        "bedrock-runtime.us-west-2.amazonaws.com",
    )
    with pytest.raises(RecipeError, match="region"):
        Bedrock(**given, region="evil.example/")


def test_an_error_of_bedrock_s_model_in_an_answer_is_no_refusal_and_one_beside_it_is_tried_again(
    make,
):
    api, _ = make("bedrock", "inference", "model")
    assert isinstance(random(api).missing[0], Failed)
    assert random(api).usage.calls == 2


def test_a_wrong_secret_of_aws_stops_the_run_and_stands_in_no_message(make, monkeypatch):
    api, _ = make("bedrock", **SIGNED)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"wrong-{ACCESS[name]}")
    with pytest.raises(
        APIError, match=r"HTTP 403: The signature does not match; the token was \[key\]\."
    ):
        random(api)


def test_an_account_without_credentials_is_told_before_a_call(make, monkeypatch):
    api, script = make("bedrock", **SIGNED)
    for name in ACCESS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RecipeError, match=r"there are no AWS credentials\. Log in to AWS"):
        random(api)
    assert not script.requests


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("blocked", Refused, "PROHIBITED_CONTENT: the prompt is blocked"),
        ("no image", Failed, "NO_IMAGE: the answer holds no image"),
        ("prose", Failed, "STOP: I cannot draw that."),
    ],
)
def test_what_gemini_withholds_is_told_in_its_words_and_its_tokens_are_counted(
    make, fault, kind, words
):
    answer = random(make("gemini", fault)[0])
    assert answer.missing == {0: kind(words)}
    assert answer.usage.tokens > 0


def test_a_token_of_google_that_expires_is_sent_as_a_bearer_s(make):
    api, script = make("gemini", key_env=None, key_command=[sys.executable, "-c", "print('token')"])
    random(api)
    assert (script.keys, script.bearers) == ({""}, {"Bearer token"})  # keys: of x-goog-api-key


def test_a_blurred_image_of_stability_is_refused_and_billed_and_a_denied_one_is_not(make):
    api, _ = make("stability", "blurred", "refusal", "no credits")
    blurred, denied = random(api), random(api)
    assert (blurred.usage.images, denied.usage.images) == (1, 0)
    assert "blurred" in blurred.missing[0].reason
    assert "Your request was flagged." in denied.missing[0].reason
    with pytest.raises(APIError, match=r"HTTP 402: .*You lack sufficient credits"):
        random(api)


def test_one_request_to_together_brings_several_images_and_each_fails_alone(make):
    api, _ = make("together", "", "fewer", "wrong size", size=SIDE, n=3)
    for missing in ([], [2], [0, 1, 2]):
        answer = random(api, 3)
        assert list(answer.missing) == missing
        assert (answer.usage.calls, answer.usage.images) == (1, 3 - (missing == [2]))
    assert (api.capabilities.max_chunk, api.capabilities.shares) == (3, "parent")
