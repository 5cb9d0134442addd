"""The routes to foreign servers that are tried, and what each is known to heed."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.data.images import Images
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.peers.servers import KEY

KEY_NAME = "PEERS_KEY"
GIVEN: dict[str, Any] = {"prompts": "{label}", "tries": 1, "timeout": 120, "key_env": None}
SD: dict[str, Any] = {"steps": 2, "cfg_scale": 1, "batch": 4}


@dataclass(frozen=True)
class Route:
    """An adapter's way to a server, which the fixture `server` starts, with these settings beside
    the address.
    """

    name: str
    server: str
    kind: Literal["openai_images", "sdapi"]
    settings: dict[str, Any]
    side: int  # of images, pixels
    channels: int = 3
    degree: bool = True  # variations of a lower degree lie nearer to their parents
    seed: bool = True  # equal seeds give equal new images, and equal variations
    wrong: dict[str, tuple[dict[str, Any], str]] = field(
        default_factory=dict
    )  # rejected settings, words of the answer

    def recipe(self, url: str, **more: Any) -> dict[str, Any]:
        """The `api` of a recipe."""
        address = f"{url}/v1" if self.kind == "openai_images" else url
        shape = {"image_size": self.side, "channels": self.channels}
        return GIVEN | shape | self.settings | more | {"kind": self.kind, "base_url": address}

    def open(self, url: str, **more: Any) -> OpenAIImages | SDAPI:
        """The adapter, with `more` settings."""
        settings = self.recipe(url, **more)
        adapter = {"openai_images": OpenAIImages, "sdapi": SDAPI}[settings.pop("kind")]
        return adapter(**settings)

    def parents(self, *shades: int) -> np.ndarray:
        """Flat images, uint8."""
        flat = np.array(shades, dtype=np.uint8)[:, None, None, None]
        return np.broadcast_to(flat, (len(shades), self.side, self.side, self.channels)).copy()


LITELLM = {"model": "digits", "key_env": KEY_NAME, "n": 2}
EXACT = {"degree_field": "strength", "degree_exact": True, "seed_field": "seed"}

ROUTES = (
    Route(
        "LiteLLM, over `pe serve small`",
        "litellm",
        "openai_images",
        LITELLM | EXACT | {"extra": {"num_inference_steps": 10}},
        side=28,
        channels=1,
        wrong={
            "another size": ({"size": "32x32"}, "alone: leave size out"),
            "an unknown model": ({"model": "other"}, "Invalid model name"),
            "response_format": (
                {"response_format": "b64_json"},
                "Setting `response_format` is not supported",
            ),
            "a wording to a model without words": (
                {"degree_field": None, "degree_exact": False},
                "takes no words",
            ),
            "a wrong key": ({"key_env": "PEERS_WRONG"}, "No connected db"),
        },
    ),
    Route(
        "Xinference, images API",
        "xinference",
        "openai_images",
        {"model": "tiny", "size": "32x32", "n": 2} | EXACT,
        side=32,
        degree=False,
        seed=False,
        wrong={
            "an unknown model": ({"model": "other"}, "Model not found"),
            "no response_format": ({"response_format": None}, "http"),
        },
    ),
    Route(
        "Xinference, sdapi",
        "xinference",
        "sdapi",
        SD | {"batch": 1, "extra": {"model": "tiny"}},
        side=32,
        wrong={"no model": ({"extra": None}, "Model not found")},
    ),
    Route(
        "stable-diffusion.cpp, sdapi",
        "stable_diffusion_cpp",
        "sdapi",
        SD | {"steps": 4, "sampler": "Euler"},
        side=64,
        wrong={"another size": ({"image_size": 32}, "is 64×64 pixels")},
    ),
    Route(
        "stable-diffusion.cpp, images API",
        "stable_diffusion_cpp",
        "openai_images",
        {"model": "any", "size": "64x64", "n": 2} | EXACT,
        side=64,
        degree=False,
    ),
)


def draw(api: OpenAIImages | SDAPI, count: int = 1, seed: int = 7) -> Answer:
    seeds, labels = np.arange(seed, seed + count, dtype=np.uint64), ("7",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def vary(api: OpenAIImages | SDAPI, parents: np.ndarray, degree: float, seed: int = 7) -> Answer:
    seeds, labels = np.arange(seed, seed + len(parents), dtype=np.uint64), ("7",) * len(parents)
    conditions = api.draw_conditions(labels, seeds)
    return api.variation_api(VariationRequest(Images(parents), labels, conditions, seeds, degree))


def pixels(answer: Answer) -> np.ndarray:
    """The images of an answer that lacks none."""
    assert isinstance(answer.samples, Images)
    assert not answer.missing, answer.missing
    return answer.samples.pixels.astype(float)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


KEYS = {KEY_NAME: KEY, "PEERS_WRONG": "sk-another-key"}
