"""Stability's models on Bedrock, against a scripted server on loopback that checks the signatures."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from adapters.hosts import Bedrock
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed
from tests.adapters.hosts.asking import random, varied
from tests.endpoints.bedrock_server import ACCESS
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS, Make

SIGNED = {"key_env": None}


def test_a_request_without_a_key_is_signed_by_the_account_s_credentials(make: Make) -> None:
    api, script = make("bedrock", **SIGNED, extra={"cfg_scale": 4}, negative_prompt="text")
    assert len(random(api).samples) == 1
    (body,) = script.requests
    assert body == {
        "model": "stability.sd3-5-large-v1:0",
        "prompt": "a cat",
        "negative_prompt": "text",
        "cfg_scale": 4,
        "seed": 40,
        "output_format": "png",
        "mode": "text-to-image",
        "aspect_ratio": "1:1",
    }
    (header,) = script.bearers
    assert header.startswith("AWS4-HMAC-SHA256 Credential=AKIACANARY/")


def test_the_degree_is_the_strength_of_the_parent_s_variation(make: Make) -> None:
    api, script = make("bedrock", **SIGNED)
    varied(api, 0.25, shade=77)
    (body,) = script.requests
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(body["image"])))) == 77).all()
    assert (body["mode"], body["strength"]) == ("image-to-image", 0.25)
    assert api.capabilities.degree == "exact"


@pytest.mark.parametrize(("fault", "calls"), [("inference", 1), ("model", 2)])
def test_an_error_of_the_model_is_no_refusal_and_is_tried_again(make: Make, fault: str, calls: int) -> None:
    api, _ = make("bedrock", Script(first=(fault,)), **SIGNED)
    answer = random(api)
    assert answer.usage.calls == calls
    if calls == 1:  # a whole answer: the run asks again, with another seed
        assert isinstance(answer.missing[0], Failed)
        answer = random(api)
    assert len(answer.samples) == 1


def test_a_wrong_secret_stops_the_run_and_stands_in_no_message(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    api, _ = make("bedrock", **SIGNED)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"wrong-{ACCESS[name]}")
    with pytest.raises(APIError, match=r"HTTP 403: The signature does not match; the token was \[key\]\."):
        random(api)


def test_an_account_without_credentials_is_told_before_a_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    api, script = make("bedrock", **SIGNED)
    for name in ACCESS:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RecipeError, match="there are no AWS credentials: log in to AWS, or name a key in key_env"):
        random(api)
    assert not script.requests


def test_bedrock_s_own_address_follows_from_the_region() -> None:
    given = HOSTS["bedrock"].given | {"model": "stability.sd3-5-large-v1:0", "region": "us-west-2"}
    assert Bedrock(**given).info.hosts == ("bedrock-runtime.us-west-2.amazonaws.com",)
    with pytest.raises(RecipeError, match="region"):
        Bedrock(**given | {"region": "evil.example/"})
