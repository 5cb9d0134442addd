"""What a text-to-image model's settings say of single iterations and labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.text_to_image import TextToImage
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

LABELS = tuple("abcabc")
SEEDS = np.random.default_rng(3).integers(0, 2**64, len(LABELS), dtype=np.uint64)
Maker = Callable[..., TextToImage]


@pytest.fixture(scope="module")
def api_of(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """The adapter over a tiny Stable Diffusion XL, to which no negative prompt is another thing than an empty one."""
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


def test_each_label_has_its_own_negative_prompt_or_none(api_of: Maker) -> None:
    api, plain, negative = (
        api_of(negative_prompt={"a": "qq", "b": "", "c": "qq"}),
        api_of(),
        api_of(negative_prompt="qq"),
    )
    parents = drawn(plain)
    found = (drawn(api).samples.array, varied(api, parents))
    nothing = (parents.samples.array, varied(plain, parents))
    something = (drawn(negative).samples.array, varied(negative, parents))
    of_b = np.array([label == "b" for label in LABELS])
    for some, none, each in zip(something, nothing, found, strict=True):
        assert np.abs(some[~of_b].astype(float) - none[~of_b]).mean() > 0.1
        assert np.abs(each[of_b].astype(float) - none[of_b]).max() <= 1  # though others of its request have one
        assert np.abs(each[~of_b].astype(float) - some[~of_b]).max() <= 1
    api.check_labels(LABELS)
    with pytest.raises(RecipeError, match="negative_prompt: there is none for the label 'd': give a text, or \"\""):
        api.check_labels(("a", "d"))
    with pytest.raises(RecipeError, match=r"negative_prompt has no effect at guidance 0\.5"):
        api_of(negative_prompt={"a": "", "b": "qq"}, guidance=[3, 0.5])
    assert api_of(negative_prompt={"a": "", "b": ""}, guidance=1)
