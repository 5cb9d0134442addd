"""Asking the OpenAI-style adapter over a real server on loopback, through the official SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving

CANARY = "sk-canary-7f3a9e"


Make = Callable[..., tuple[OpenAIImages, Script]]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


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


def random(api: OpenAIImages, count: int = 4, label: str = "cat") -> Answer:
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(1 << 40)
    labels = (label,) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api: OpenAIImages, degree: float = 0.5, count: int = 2, prompt: str = "a cat") -> Answer:
    parents = Images(np.full((count, SIDE, SIDE, 3), 77, dtype=np.uint8))
    conditions = Conditions({"prompt": np.array([prompt] * count)})
    seeds = np.arange(count, dtype=np.uint64)
    return api.variation_api(VariationRequest(parents, ("cat",) * count, conditions, seeds, degree))
