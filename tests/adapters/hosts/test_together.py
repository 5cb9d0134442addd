"""Together's images/generations, against its scripted server on loopback."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from pe.errors import RecipeError
from pe.plugins.protocols import Failed
from tests.adapters.hosts.asking import SIDE, random, varied
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS, Make


def test_one_request_brings_several_images_of_one_prompt(make: Make) -> None:
    api, script = make("together", size=[SIDE, SIDE], n=4, extra={"steps": 8})
    answer = random(api, count=3)
    assert answer.samples.array.shape == (3, SIDE, SIDE, 3)
    assert (answer.usage.calls, answer.usage.images) == (1, 3)
    assert script.requests == [
        {
            "model": "black-forest-labs/FLUX.2-dev",
            "prompt": "a cat",
            "height": SIDE,
            "width": SIDE,
            "steps": 8,
            "n": 3,
            "seed": 40,
            "response_format": "base64",
            "output_format": "png",
        }
    ]
    assert (api.capabilities.max_chunk, api.capabilities.shares) == (4, "parent")


@pytest.mark.parametrize("field", ["image_url", "reference_images"])
def test_a_variation_names_its_parent_as_the_model_takes_it_and_words_its_degree(make: Make, field: str) -> None:
    api, script = make("together", parent_field=field)
    varied(api, 0.3, shade=77)
    (body,) = script.requests
    parent = body[field] if field == "image_url" else body[field][0]
    head, _, data = parent.partition(",")
    assert head == "data:image/png;base64"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) == 77).all()
    assert body["prompt"].startswith("Make a close variation")
    assert api.capabilities.degree == "wording"


def test_a_lacking_image_and_one_of_another_size_fail_alone(make: Make) -> None:
    api, _ = make("together", Script(first=("fewer", "wrong size")), size=SIDE, n=2)
    for missing in ([1], [0, 1]):
        answer = random(api, count=2)
        assert list(answer.missing) == missing
        assert all(isinstance(miss, Failed) for miss in answer.missing.values())


def test_the_field_of_the_parent_must_be_named() -> None:
    with pytest.raises(RecipeError, match="parent_field"):
        HOSTS["together"].kind(model="m", prompts="a", image_size=8)
