"""Gemini's generateContent, against its scripted server on loopback."""

from __future__ import annotations

import base64
import io
import sys

import numpy as np
import pytest
from PIL import Image

from adapters.http.faults import Fault
from pe.plugins.protocols import Failed, Refused
from tests.adapters.hosts.asking import random, varied
from tests.endpoints.faults import Script
from tests.endpoints.hosts import Make


def test_a_new_image_is_asked_for_and_its_tokens_are_counted(make: Make) -> None:
    api, script = make("gemini", aspect_ratio="3:2", resolution="1K")
    billed = random(api).usage
    assert (billed.tokens, billed.text_in, billed.image_out) == (1300, 3, 1296)
    assert script.requests == [
        {
            "call": "gemini-3.1-flash-image:generateContent",
            "contents": [{"role": "user", "parts": [{"text": "a cat"}]}],
            "generationConfig": {
                "responseModalities": ["TEXT", "IMAGE"],
                "seed": 40,
                "imageConfig": {"aspectRatio": "3:2", "imageSize": "1K"},
            },
        }
    ]


def test_a_variation_holds_its_parent_and_words_its_degree(make: Make) -> None:
    api, script = make("gemini")
    varied(api, 0.3, shade=77)
    words, image = script.requests[0]["contents"][0]["parts"]
    assert words["text"].startswith("Make a close variation")
    assert image["inlineData"]["mimeType"] == "image/png"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(image["inlineData"]["data"])))) == 77).all()
    assert api.capabilities.degree == "wording"


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("blocked", Refused, "PROHIBITED_CONTENT: the prompt is blocked"),
        ("refusal", Refused, "IMAGE_PROHIBITED_CONTENT: The model output could not be generated."),
        ("no image", Failed, "NO_IMAGE: the answer holds no image"),
        ("prose", Failed, "STOP: I cannot draw that."),
    ],
)
def test_what_is_withheld_is_told_in_its_words_and_its_tokens_are_counted(
    make: Make, fault: str, kind: type, words: str
) -> None:
    api, _ = make("gemini", Script(first=(fault,)))
    answer = random(api)
    assert isinstance(answer.missing[0], kind)
    assert answer.missing[0].reason.startswith(words)
    assert answer.usage.tokens > 0


def test_a_quota_says_in_its_body_how_long_to_wait(make: Make) -> None:
    body = '{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22.5s"}]}}'
    assert Fault.of_response(429, {}, body).wait == 22.5
    assert Fault.of_response(429, {"Retry-After": "3"}, body).wait == 3
    api, _ = make("gemini", Script(first=("quota",)))
    assert random(api).usage.calls == 2


def test_a_token_that_expires_is_sent_as_a_bearer_s(make: Make) -> None:
    api, script = make("gemini", key_env=None, key_command=[sys.executable, "-c", "print('token')"])
    random(api)
    assert script.keys == {""}  # of x-goog-api-key
    assert script.bearers == {"Bearer token"}
