"""What a text-to-image model's settings say of single iterations and labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

LABELS = tuple("abcabc")
SEEDS = np.random.default_rng(3).integers(0, 2**64, len(LABELS), dtype=np.uint64)
Maker = Callable[..., TextToImage]


@pytest.fixture(scope="module")
def api_of(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """The adapter over a tiny Stable Diffusion XL."""
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("models") / "xl"
    tiny.stable_diffusion_xl().save_pretrained(folder)
    common: dict[str, Any] = {"prompts": "a {label}", "steps": 4, "guidance": 3.0, "size": tiny.SIDE, "device": "cpu"}
    return lambda **settings: TextToImage(model=str(folder), batch_size=4, offline=True, **(common | settings))


def drawn(api: TextToImage) -> Answer:
    return api.random_api(RandomRequest(LABELS, SEEDS))


def varied(api: TextToImage, parents: Answer, iteration: int = 1) -> np.ndarray:
    request = VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS, 0.5, iteration)
    return api.variation_api(request).samples.array


def test_each_iteration_takes_its_own_steps_and_guidance_and_new_samples_take_the_first(api_of: Maker) -> None:
    api, one, two = api_of(steps=[4, 6], guidance=[3.0, 5.0]), api_of(), api_of(steps=6, guidance=5.0)
    parents = drawn(one)
    np.testing.assert_array_equal(drawn(api).samples.array, parents.samples.array)
    for iteration, plain in enumerate((one, two), start=1):
        np.testing.assert_array_equal(varied(api, parents, iteration), varied(plain, parents))
    assert api.describe_degree(0.5, 2) == "noised and denoised, the last 3 of 6 steps"
