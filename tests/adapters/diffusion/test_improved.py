"""Improved-diffusion checkpoints: the network of the paper's CIFAR-10 and Camelyon17 results."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from adapters.diffusion.improved import TRAINED, CosineDDIM, ImprovedDiffusion, cosine, respace
from adapters.diffusion.improved_unet import ImprovedUNet, Shape, shape_of
from pe.data.images import Images
from pe.errors import RecipeError
from pe.plugins.protocols import Answer
from tests.adapters.diffusion.asking import apart, drawn, moved, varied

SMALL = Shape(32, (1, 2), 1, (1,), 7)
ONE = slice(1)


def weights(shape):
    """A random state dict, as `torch.save` would keep a trained one."""
    with torch.device("meta"):
        empty = ImprovedUNet(shape).state_dict()
    torch.manual_seed(0)
    return {
        name: torch.randn(each.shape)
        * (0.5 if each.ndim == 1 else 1 / math.sqrt(math.prod(each.shape[1:])))
        for name, each in empty.items()
    }


@pytest.fixture
def file(tmp_path):
    torch.save(weights(SMALL), tmp_path / "small.pt")
    return str(tmp_path / "small.pt")


def improved_of(model, **settings):
    common = {"size": 8, "steps": 5, "device": "cpu", "batch_size": 2, "offline": True}
    return ImprovedDiffusion(model=model, **(common | settings))


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (Shape(192, (1, 2, 3, 4), 3, (2, 3), 1000), 273_049_350),
        (Shape(128, (1, 2, 3, 4), 3, (2, 3), None), 121_063_942),
    ],
)
def test_the_published_networks_have_their_tensors_and_their_shape_is_read_from_these(
    shape, parameters
):
    """On torch's meta device, which keeps shapes and no numbers."""
    with torch.device("meta"):
        state = ImprovedUNet(shape).state_dict()
    assert shape_of(state) == shape
    assert sum(tensor.numel() for tensor in state.values()) == parameters


def test_weights_of_another_network_are_refused(tmp_path):
    with pytest.raises(
        RecipeError, match="The weights are not those of an improved-diffusion network"
    ):
        shape_of({"conv_in.weight": torch.zeros(8, 3, 3, 3)})
    state = weights(SMALL) | {"output_blocks.0.0.in_layers.2.weight": torch.zeros(1, 1, 3, 3)}
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(
        RecipeError, match=r"odd.pt does not fit .*in_layers.2.weight: .*\[1, 1, 3, 3\]"
    ):
        drawn(improved_of(str(tmp_path / "odd.pt")))
    with pytest.raises(
        RecipeError,
        match=r"there is no file 'nothing.pt'. Put the checkpoint there, or set `model` to one of",
    ):
        drawn(improved_of("nothing.pt"))
    torch.save(weights(SMALL), tmp_path / "small.pt")
    with pytest.raises(RecipeError, match=r"size` is 9. small.pt needs a multiple of 2 pixels"):
        drawn(improved_of(str(tmp_path / "small.pt"), size=9))


def test_the_network_is_the_published_one():
    """As recorded of one that was equal to the published equations, written out with diffusers'
    residual blocks.
    """
    network = ImprovedUNet(SMALL)
    network.load_state_dict(weights(SMALL))
    torch.manual_seed(1)
    with torch.no_grad():
        found = network(
            torch.randn(3, 3, 8, 8), torch.tensor([0.0, 7.0, 3999.0]), torch.tensor([0, 6, 3])
        )
    assert found.shape == (3, 6, 8, 8)
    recorded = torch.tensor([[0.09823, -0.06630], [0.17064, 0.29684], [-0.08550, 0.14229]])
    torch.testing.assert_close(found[:, ::5, 3, 6], recorded, rtol=1e-3, atol=1e-4)


def test_the_schedule_is_the_published_cosine():
    """ᾱ_t = f(t+1)/f(0) but for the last steps, where β is held at 0.999; images are noised to √ᾱ·x
    + √(1−ᾱ)·ε.
    """
    kept = cosine(TRAINED)
    times = np.arange(1, 4001) / 4000
    ideal = (
        np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    )
    np.testing.assert_allclose(kept[:3990], ideal[:3990], rtol=1e-9)
    assert (1 - kept / np.concatenate([[1], kept[:-1]])).max() == pytest.approx(0.999)
    noised = CosineDDIM().add_noise(
        torch.full((2, 1, 1, 1), 0.5), torch.ones(2, 1, 1, 1), torch.tensor([1000, 3600])
    )
    np.testing.assert_allclose(
        noised.flatten(), np.sqrt(ideal[[1000, 3600]]) / 2 + np.sqrt(1 - ideal[[1000, 3600]])
    )
    assert ideal[3600] == pytest.approx(
        0.02397, abs=1e-5
    )  # which is left of a parent at "timestep 10 of 10"


def test_steps_are_spaced_as_the_published_code_spaces_them():
    assert respace(4000, 10, "ends") == [0, 444, 889, 1333, 1777, 2222, 2666, 3110, 3555, 3999]
    assert respace(4000, 10, "stride") == list(range(0, 4000, 400))
    assert set(np.diff(respace(4000, 100, "ends"))) == {40, 41}
    assert respace(4000, 4000, "ends") == respace(4000, 4000, "stride") == list(range(4000))
    assert respace(4000, 30, "stride") == list(range(0, 4000, 134))


def test_a_step_is_ddim_on_the_cut_prediction():
    scheduler = CosineDDIM()
    scheduler.set_timesteps(3)
    assert scheduler.timesteps.tolist() == [3999, 2000, 0]
    x, output = torch.tensor([[[[0.4]]]]), torch.tensor([[[[0.1]]]])
    now, then = scheduler.alpha_bar[2000], scheduler.alpha_bar[0]
    image = (0.4 - math.sqrt(1 - now) * 0.1) / math.sqrt(now)
    assert abs(image) < 1
    expected = math.sqrt(then) * image + math.sqrt(1 - then) * 0.1
    assert scheduler.step(output, 2000, x).prev_sample.item() == pytest.approx(expected, abs=1e-6)
    wild = scheduler.step(-output * 50, 2000, x).prev_sample.item()  # predicts an image far above 1
    noise = (0.4 - math.sqrt(now)) / math.sqrt(1 - now)
    assert wild == pytest.approx(math.sqrt(then) + math.sqrt(1 - then) * noise, abs=1e-6)
    last = scheduler.step(output, 0, x).prev_sample.item()
    assert last == pytest.approx((0.4 - math.sqrt(1 - then) * 0.1) / math.sqrt(then), abs=1e-6)


class Told(ImprovedUNet):
    """Keeps the times that it is told, and says that there is no noise."""

    def __init__(self):
        super().__init__(SMALL)
        self.times = []

    def forward(self, x, times, classes):
        self.times.append(float(times[0]))
        return torch.cat(
            [torch.zeros_like(x), torch.full_like(x, 99.0)], 1
        )  # what was learned of the variance: unused


@pytest.mark.parametrize(("rescaled", "scale"), [(False, 1.0), (True, 0.25)])
def test_the_network_is_told_its_trained_timesteps_and_only_epsilon_is_used(
    rescaled, scale, file, monkeypatch
):
    told = Told()
    monkeypatch.setattr("adapters.diffusion.improved_unet.ImprovedUNet", lambda _: told)
    api = improved_of(file, rescaled=rescaled)
    answer = drawn(api, ONE)
    assert told.times == [3999 * scale, 2999 * scale, 2000 * scale, 1000 * scale, 0.0]
    assert set(np.unique(answer.samples.array)) <= {
        0,
        255,
    }  # an image predicted from pure noise alone is cut
    told.times.clear()
    varied(api, answer, 0.4, ONE)
    assert told.times == [1000 * scale, 0.0]
    name = "imagenet64_uncond_100M_1500K" if rescaled else "imagenet64_cond_270M_250K"
    assert improved_of(name).is_rescaled is rescaled


def test_a_checkpoint_without_classes_draws_and_varies(tmp_path):
    save_file(weights(Shape(32, (1, 2), 1, (1,), None)), tmp_path / "small.safetensors")
    api = improved_of(str(tmp_path / "small.safetensors"))
    parents = drawn(api)
    assert not list(parents.conditions)
    assert moved(varied(api, parents, 0.6), varied(api, parents, 0.6, salt=1)) > 1
    half = improved_of(str(tmp_path / "small.safetensors"), precision="bf16")
    assert 0 < moved(drawn(half), parents) < 25


def test_degree_one_forgets_the_parent_with_both_ends_and_keeps_a_trace_of_it_with_a_stride(file):
    """The first four iterations of the paper's Camelyon17 run vary from "timestep 10 of 10" and yet
    are led.
    """
    images = [Images(np.full((1, 8, 8, 3), level, dtype=np.uint8)) for level in (0, 255)]
    for spacing, led in (("ends", False), ("stride", True)):
        api = improved_of(file, spacing=spacing, steps=10)
        fresh = drawn(api, ONE)
        black, white = (
            varied(api, Answer(each, fresh.conditions), 1.0, ONE, salt=0) for each in images
        )
        assert (apart(black, white) > 1) == led
        assert (apart(black, fresh) <= 1) == (not led)
    assert api.describe_degree(1.0) == "noised and denoised, all 10 steps"
    assert api.describe_degree(0.95) == "noised and denoised, the last 9 of 10 steps"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 1}, "`steps` is 1. It must be from 2 to 4000"),
        (
            {"steps": [10, 300], "spacing": "stride"},
            "No whole stride cuts 4,000 timesteps into 300 steps. Take `steps: 286`, or",
        ),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(settings, said):
    with pytest.raises(RecipeError, match=said):
        improved_of("imagenet64_cond_270M_250K", **settings)
