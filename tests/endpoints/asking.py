"""New images of an adapter, and variations, as the dispatcher asks for them; servers that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from adapters.http import jobs
from adapters.http import policy as policy_module
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import Answer, JobNote, RandomRequest, VariationRequest
from tests.endpoints.serving import serving

CANARY = "sk-canary-7f3a9e"
"""The key, which THE_KEY holds and no message."""

Serve = Callable[..., str]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long waits between tries; and a key."""
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.01)
    monkeypatch.setattr(policy_module, "MOST", 0.03)
    monkeypatch.setattr(policy_module, "EVERY", 0.05)
    monkeypatch.setattr(jobs, "GRACE", 0.05)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve an app until the test ends; see `serving`."""
    with ExitStack() as stack:
        yield lambda app, **tls: stack.enter_context(serving(app, **tls))


def random(api: Any, count: int = 1, seed: int = 40, job: JobNote | None = None) -> Answer:
    """New samples of one prompt."""
    seeds, labels = np.arange(seed, seed + count, dtype=np.uint64), ("cat",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote()))


def varied(
    api: Any, degree: float = 0.5, shades: Sequence[int] = (77,), side: int = 16, prompt: str = "a cat"
) -> Answer:
    """Variations of flat images of these shades."""
    pixels = np.broadcast_to(np.array(shades, np.uint8)[:, None, None, None], (len(shades), side, side, 3)).copy()
    conditions = Conditions({"prompt": np.array([prompt] * len(shades))})
    seeds, labels = np.arange(len(shades), dtype=np.uint64), ("cat",) * len(shades)
    return api.variation_api(VariationRequest(Images(pixels), labels, conditions, seeds, degree))


def shades(answer: Answer) -> list[int]:
    """Of an answer's flat images."""
    return answer.samples.array[:, 0, 0, 0].tolist()


def given(url: str, **settings: object) -> dict[str, Any]:
    """Settings that every adapter of images takes."""
    return {"base_url": url, "prompts": "a {label}", "image_size": 16, "key_env": "THE_KEY", "timeout": 1.0} | settings


def openai(url: str, **settings: object) -> dict[str, Any]:
    """Settings of `openai_images`."""
    return given(f"{url}/v1", model="gpt-image-x", n=4) | settings
