"""What is prepared on the device between two batches is what diffusers prepares on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from transformers import CLIPImageProcessor

from adapters.diffusion.device import prepare_on_device
from adapters.diffusion.text_to_image import TextToImage
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import VariationRequest
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.kinds import saved
from tests.fake_cards import Cards, claim, fake_cards

SIDE = tiny.SIDE


def parents(count: int, height: int = SIDE, width: int = SIDE) -> list[Image.Image]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return [Image.fromarray(each) for each in pixels]


@pytest.mark.parametrize(("sides", "asked"), [((SIDE, SIDE), ()), ((SIDE + 3, SIDE), ()), ((SIDE, SIDE), (16, 24))])
def test_parents_become_the_same_numbers(sides: tuple[int, int], asked: tuple[int, ...]) -> None:
    """Those that are resized, too, since pictures and tensors are resized otherwise."""
    pipeline = tiny.stable_diffusion()
    given = parents(3, *sides)
    expected = pipeline.image_processor.preprocess(given, *asked)
    prepare_on_device(pipeline)
    torch.testing.assert_close(pipeline.image_processor.preprocess(given, *asked), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_safety_checker_is_shown_and_answers_the_same(dtype: torch.dtype) -> None:
    pipeline = tiny.stable_diffusion(tiny.safety_checker()).to(dtype)
    shown: list[torch.Tensor] = []
    pipeline.safety_checker.vision_model.register_forward_pre_hook(lambda _, given: shown.append(*given))
    images = torch.randn(3, 3, 48, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, found = pipeline.run_safety_checker(images.clone(), "cpu", dtype)
    prepare_on_device(pipeline)
    refused, again = pipeline.run_safety_checker(images.clone(), "cpu", dtype)
    assert again == found == [True] * 3
    for one, other in ((refused, expected), shown):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where that lies which diffusers and transformers make numbers of."""
    found: list[str] = []

    def note(kind: Any, method: str) -> None:
        usual = getattr(kind, method)

        def noting(self: Any, images: Any, *rest: Any, **more: Any) -> Any:
            found.append(str(claim(images)) if isinstance(images, torch.Tensor) else "pictures")
            return usual(self, images, *rest, **more)

        monkeypatch.setattr(kind, method, noting)

    note(VaeImageProcessor, "resize")
    note(CLIPImageProcessor, "preprocess")
    return found


@pytest.fixture
def cards() -> Iterator[Cards]:
    with fake_cards() as found:
        yield found


@pytest.mark.usefixtures("cards")
def test_a_card_makes_numbers_of_parents_and_of_what_the_checker_is_shown(tmp_path: Path, seen: list[str]) -> None:
    torch.manual_seed(0)
    model = saved(tiny.stable_diffusion(tiny.safety_checker(threshold=2.0)), tmp_path)
    api = TextToImage(model=model, prompts="a", steps=2, size=SIDE, device="cuda:0", batch_size=2)
    pixels = np.stack([np.asarray(each) for each in parents(2)])
    prompts = Conditions({"prompt": np.array(["a", "a"])})
    request = VariationRequest(Images(pixels), ("a", "a"), prompts, np.arange(2, dtype=np.uint64), 0.5)
    assert not api.variation_api(request).missing
    assert seen == ["cuda:0", "cuda:0"]
