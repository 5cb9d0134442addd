"""Local diffusion on GPUs that this machine lacks: no tensor of one device meets one of another."""

import numpy as np
import pytest
import torch

from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.asking import assert_same, drawn, levels, varied
from tests.adapters.diffusion.kinds import EACH, QUIET
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.fake_cards import claim

pytestmark = [pytest.mark.usefixtures("cards"), *QUIET]

SOME = slice(2)


def images(api):
    """New images, and a variation of each."""
    parents = drawn(api, SOME)
    return np.stack([levels(parents), levels(varied(api, parents, 0.5, SOME))])


def places(api):
    """Where the weights lie after a call, for each model."""
    models = [worker.model for worker in api._engine._workers]
    parts = [model._text.components.values() for model in models]
    modules = [[part for part in each if isinstance(part, torch.nn.Module)] for each in parts]
    return [
        {str(claim(weight)) for module in each for weight in module.parameters()}
        for each in modules
    ]


@pytest.mark.parametrize("name", EACH)
def test_every_kind_draws_and_varies_on_a_card(name, api_of):
    api = api_of(name, device="cuda:0", steps=2)
    images(api)
    assert places(api) == [{"cuda:0"}]


@pytest.mark.parametrize("sampler", ["ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"])
def test_every_sampler_steps_on_a_card_and_draws_otherwise_than_the_model_s_own(sampler, api_of):
    api, own = (
        api_of("Stable Diffusion 1.5", device="cuda:0", steps=3, sampler=each)
        for each in (sampler, "own")
    )
    new, _variations = images(api)
    assert np.abs(new - levels(drawn(own, SOME))).mean() > 0.5


@pytest.mark.parametrize("offload", ["model", "group", "sequential"])
def test_offloaded_weights_are_on_the_card_only_while_they_work(offload, api_of):
    api = api_of("Stable Diffusion 1.5", device="cuda:0", steps=2, offload=offload)
    images(api)
    (found,) = places(api)
    assert found <= {"cpu", "meta"}


def test_two_cards_draw_what_the_processor_draws(api_of):
    both, processor = (
        api_of("Stable Diffusion XL", device=device, steps=2) for device in ("auto", "cpu")
    )
    parents = drawn(both)
    assert places(both) == [{"cuda:0"}, {"cuda:1"}]
    assert_same(parents, drawn(processor))
    assert_same(varied(both, parents, 0.5), varied(processor, parents, 0.5))


def test_models_in_pixel_space_draw_and_vary_on_a_card(tmp_path):
    torch.save(weights(SMALL), tmp_path / "small.pt")
    settings = {"device": "cuda:0", "batch_size": 2, "steps": 4}
    images(ImprovedDiffusion(model=str(tmp_path / "small.pt"), size=8, **settings))
    model = tiny.pixel_folder(tmp_path / "model", classes=3)
    for more in ({"guidance": 2.0, "eta": 1.0}, {"sampler": "ddpm"}):
        images(PixelSpace(model=model, **settings, **more))
