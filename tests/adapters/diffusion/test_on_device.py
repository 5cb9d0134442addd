"""What is prepared on the device between two batches is what diffusers prepares on the processor."""

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from transformers import CLIPImageProcessor

from adapters.diffusion.device import prepare_on_device
from adapters.diffusion.text_to_image import TextToImage
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.asking import drawn, levels, varied
from tests.adapters.diffusion.kinds import COMMON, QUIET, SIDE, saved
from tests.fake_cards import claim

pytestmark = QUIET


@pytest.mark.parametrize(("sides", "asked"), [((SIDE, SIDE), ()), ((SIDE + 3, SIDE), ()), ((SIDE, SIDE), (16, 24))])
def test_parents_become_the_same_numbers(sides, asked):
    """Those that are resized, too, since pictures and tensors are resized otherwise."""
    pipeline = tiny.stable_diffusion()
    pixels = np.random.default_rng(0).integers(0, 256, (3, *sides, 3), dtype=np.uint8)
    given = [Image.fromarray(each) for each in pixels]
    expected = pipeline.image_processor.preprocess(given, *asked)
    prepare_on_device(pipeline)
    torch.testing.assert_close(pipeline.image_processor.preprocess(given, *asked), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_safety_checker_is_shown_and_answers_the_same(dtype):
    pipeline = tiny.stable_diffusion(tiny.safety_checker()).to(dtype)
    shown = []
    pipeline.safety_checker.vision_model.register_forward_pre_hook(lambda _, given: shown.append(*given))
    images = torch.randn(3, 3, 48, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, found = pipeline.run_safety_checker(images.clone(), "cpu", dtype)
    prepare_on_device(pipeline)
    refused, again = pipeline.run_safety_checker(images.clone(), "cpu", dtype)
    assert again == found == [True] * 3
    for one, other in ((refused, expected), shown):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.usefixtures("cards")
def test_a_card_makes_numbers_of_parents_and_of_what_the_checker_is_shown(tmp_path, monkeypatch):
    seen = []

    def note(kind, method):
        """Where that lies of which diffusers and transformers make numbers."""
        usual = getattr(kind, method)

        def noting(self, images, *rest, **more):
            seen.append(str(claim(images)) if isinstance(images, torch.Tensor) else "pictures")
            return usual(self, images, *rest, **more)

        monkeypatch.setattr(kind, method, noting)

    torch.manual_seed(0)
    model = saved(tiny.stable_diffusion(tiny.safety_checker(threshold=2.0)), tmp_path)
    api = TextToImage(**COMMON | {"model": model, "device": "cuda:0"})
    parents = drawn(api, slice(2))
    note(VaeImageProcessor, "resize")
    note(CLIPImageProcessor, "preprocess")
    levels(varied(api, parents, 0.5, slice(2)))
    assert seen == ["cuda:0", "cuda:0"]
