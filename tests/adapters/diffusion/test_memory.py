"""Memory of pipelines: what a failed call leaves behind, and how decoding takes less."""

import pytest
import torch

from tests.adapters.diffusion.asking import assert_same, drawn, varied
from tests.adapters.diffusion.kinds import QUIET
from tests.fake_cards import REFUSALS

pytestmark = QUIET
XL = "Stable Diffusion XL"


def test_decoding_that_ran_out_of_memory_in_float32_spoils_no_later_batch(api_of, monkeypatch):
    """SDXL's pipeline casts its autoencoder from fp16 to float32 to decode, and back only after
    success.
    """
    settings = {"precision": "fp16", "size": 16, "steps": 2}
    expected = drawn(api_of(XL, batch_size=1, **settings))
    convolve, refused = torch.nn.functional.conv2d, []

    def limited(images, weight, *rest):
        if weight.dtype == torch.float32 and not refused:  # only the autoencoder's ever are
            refused.append(len(images))
            raise REFUSALS["cuda"]()
        return convolve(images, weight, *rest)

    monkeypatch.setattr(torch.nn.functional, "conv2d", limited)
    assert_same(drawn(api_of(XL, batch_size=3, **settings)), expected)
    assert refused == [3]


@pytest.mark.parametrize(
    ("slicing", "most", "passes"),
    [(None, 3, [3]), (None, 2, [1] * 3), (True, 3, [1] * 3), (False, 2, [3])],
    ids=["few together", "many alone", "always", "never"],
)
def test_a_large_batch_is_decoded_one_image_at_a_time(slicing, most, passes, api_of, monkeypatch):
    monkeypatch.setattr("adapters.diffusion.text_model._WHOLE", most)
    api, found = api_of(XL, batch_size=8, vae_slicing=slicing, size=16, steps=2), []
    api._engine.load()
    decoder = api._engine._workers[0].load()._text.vae.decoder
    decoder.register_forward_pre_hook(lambda _, inputs: found.append(len(inputs[0])))
    parents = drawn(api)
    assert found == passes
    varied(api, parents, 0.5, slice(2))
    assert found[len(passes) :] == ([1, 1] if slicing else [2])
