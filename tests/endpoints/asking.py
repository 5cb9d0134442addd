"""New images of an adapter, and variations, as the dispatcher asks for them; servers that end with
the test.
"""

from contextlib import ExitStack

import numpy as np
import pytest

from adapters.http import jobs, retries
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import JobNote, RandomRequest, VariationRequest
from tests.endpoints.serving import serving

CANARY = "sk-canary-7f3a9e"
"""The key, which THE_KEY holds and no message."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No long waits between tries; and a key."""
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(retries, "FIRST", 0.01)
    monkeypatch.setattr(retries, "MOST", 0.03)
    monkeypatch.setattr(retries, "EVERY", 0.05)
    monkeypatch.setattr(jobs, "GRACE", 0.05)


@pytest.fixture
def serve():
    """Serve an app until the test ends; see `serving`."""
    with ExitStack() as stack:
        yield lambda app, **tls: stack.enter_context(serving(app, **tls))


def random(api, count=1, seed=40, job=None):
    """New samples of one prompt."""
    seeds, labels = np.arange(seed, seed + count, dtype=np.uint64), ("cat",) * count
    return api.random_api(
        RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote())
    )


def varied(api, degree=0.5, shades=(77,), side=16, prompt="a cat"):
    """Variations of flat images of these shades."""
    pixels = np.broadcast_to(
        np.array(shades, np.uint8)[:, None, None, None], (len(shades), side, side, 3)
    ).copy()
    conditions = Conditions({"prompt": np.array([prompt] * len(shades))})
    seeds, labels = np.arange(len(shades), dtype=np.uint64), ("cat",) * len(shades)
    return api.variation_api(VariationRequest(Images(pixels), labels, conditions, seeds, degree))


def shades(answer):
    """Of an answer's flat images."""
    return answer.samples.array[:, 0, 0, 0].tolist()


def given(url, **settings):
    """Settings that every adapter of images takes."""
    return {
        "base_url": url,
        "prompts": "a {label}",
        "image_size": 16,
        "key_env": "THE_KEY",
        "timeout": 1.0,
    } | settings


def openai(url, **settings):
    """Settings of `openai_images`."""
    return given(f"{url}/v1", model="gpt-image-x", n=4, server=None) | settings
