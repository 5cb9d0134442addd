"""Stability's v2beta, against its scripted server on loopback."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from pe.errors import APIError, RecipeError
from tests.adapters.hosts.asking import random, varied
from tests.endpoints.faults import Script
from tests.endpoints.hosts import Make


def test_a_new_image_is_asked_for_by_a_form(make: Make) -> None:
    api, script = make("stability", aspect_ratio="3:2", negative_prompt="text", extra={"style_preset": "photographic"})
    random(api, seed=0)
    wanted = {
        "service": "sd3",
        "mode": "text-to-image",
        "model": "sd3.5-large",
        "prompt": "a cat",
        "negative_prompt": "text",
        "style_preset": "photographic",
        "aspect_ratio": "3:2",
        "output_format": "png",
        "seed": "1",  # 0 would draw one
        "parents": None,
    }
    assert script.requests == [wanted]


@pytest.mark.parametrize(("model", "service"), [("sd3.5-medium", "sd3"), ("ultra", "ultra")])
def test_the_degree_is_the_strength_of_the_parent_s_variation(make: Make, model: str, service: str) -> None:
    api, script = make("stability", model=model)
    varied(api, 0.25, shade=77)
    (body,) = script.requests
    assert (np.asarray(Image.open(io.BytesIO(body.pop("parents")))) == 77).all()
    only = {"aspect_ratio": "1:1"} if model == "ultra" else {"model": model, "mode": "image-to-image"}
    assert (
        body == {"service": service, "prompt": "a cat", "seed": "3", "output_format": "png", "strength": "0.25"} | only
    )
    assert api.capabilities.degree == "exact"
    assert api.describe_degree(0.25) == "sent as strength = 0.25"


def test_a_blurred_image_is_refused_and_billed_and_a_denied_one_is_not(make: Make) -> None:
    api, _ = make("stability", Script(first=("blurred", "refusal")))
    blurred, denied = random(api), random(api)
    assert (blurred.usage.images, denied.usage.images) == (1, 0)
    assert "blurred" in blurred.missing[0].reason
    assert "Your request was flagged." in denied.missing[0].reason


def test_an_account_without_credits_stops_the_run(make: Make) -> None:
    api, _ = make("stability", Script(first=("no credits",)))
    with pytest.raises(APIError, match=r"HTTP 402: .*You lack sufficient credits"):
        random(api)


def test_images_too_small_to_be_varied_are_refused_before_a_call(make: Make) -> None:
    with pytest.raises(RecipeError, match=r"image_size is \[64, 32\]: .* ask for 64 or more"):
        make("stability", image_size=[64, 32])
