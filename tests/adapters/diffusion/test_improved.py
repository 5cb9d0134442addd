"""Improved-diffusion checkpoints: the network of the paper's CIFAR-10 and Camelyon17 results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers.models.resnet import ResnetBlock2D
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from adapters.diffusion.improved import TRAINED, CosineDDIM, ImprovedDiffusion, cosine, respaced
from adapters.diffusion.improved_unet import HEADS, ImprovedUNet, Shape, shape_of, waves
from pe.data.images import Images
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.plugins.weights import read_weights
from tests.adapters.diffusion import published

PUBLISHED = {
    "imagenet64_cond_270M_250K": (Shape(192, (1, 2, 3, 4), 3, (2, 3), 1000), 273_049_350),
    "imagenet64_uncond_100M_1500K": (Shape(128, (1, 2, 3, 4), 3, (2, 3), None), 121_063_942),
}
SMALL = Shape(32, (1, 2), 1, (1,), 7)
LABELS = tuple("abcabc")
SEEDS = np.random.default_rng(8).integers(0, 2**64, len(LABELS), dtype=np.uint64)


def shapes(shape: Shape) -> published.Shapes:
    return published.shapes(shape.channels, shape.multipliers, shape.blocks, shape.attention, shape.classes)


def weights(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    """A random state dict, as `torch.save` would keep a trained one."""
    torch.manual_seed(seed)
    return {
        name: torch.randn(sides) * (0.5 if len(sides) == 1 else 1 / math.sqrt(math.prod(sides[1:])))
        for name, sides in shapes(shape).items()
    }


@pytest.fixture
def file(tmp_path: Path) -> str:
    torch.save(weights(SMALL), tmp_path / "small.pt")
    return str(tmp_path / "small.pt")


def api_of(model: str, **settings: Any) -> ImprovedDiffusion:
    common: dict[str, Any] = {"size": 8, "steps": 5, "device": "cpu", "batch_size": 4, "offline": True}
    return ImprovedDiffusion(model=model, **(common | settings))


def drawn(api: ImprovedDiffusion, which: slice = slice(None)) -> Answer:
    return api.random_api(RandomRequest(LABELS[which], SEEDS[which]))


def varied(api: ImprovedDiffusion, parents: Answer, degree: float, which: slice = slice(None), salt: int = 9) -> Answer:
    seeds = (SEEDS ^ np.uint64(salt))[which]
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    return api.variation_api(VariationRequest(samples, LABELS[which], conditions, seeds, degree))


def levels(answer: Answer) -> npt.NDArray[np.float64]:
    return answer.samples.array.astype(np.float64)


@pytest.mark.parametrize("name", PUBLISHED)
def test_state_dicts_of_the_published_shapes_are_loaded_whole(name: str) -> None:
    """On torch's meta device, which keeps shapes and no numbers: the networks have 273 and 121 million."""
    expected, parameters = PUBLISHED[name]
    found = shapes(expected)
    assert sum(math.prod(sides) for sides in found.values()) == parameters
    with torch.device("meta"):
        state = {key: torch.empty(sides) for key, sides in found.items()}
        assert shape_of(state) == expected
        network = ImprovedUNet(expected)
        network.load_state_dict(state, assign=True)
        classes = None if expected.classes is None else torch.zeros(2, dtype=torch.long)
        out = network(torch.empty(2, 3, 64, 64), torch.zeros(2), classes)
    assert out.shape == (2, 6, 64, 64)


@pytest.mark.parametrize("shape", [SMALL, Shape(32, (1, 2, 3), 2, (0, 2), None), Shape(64, (2,), 1, (), 3)])
def test_the_shape_of_any_such_network_is_read_from_its_weights(shape: Shape) -> None:
    state = weights(shape)
    assert shape_of(state) == shape
    ImprovedUNet(shape).load_state_dict(state)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="The weights are not of an improved-diffusion network: give imagenet64"):
        shape_of({"conv_in.weight": torch.zeros(8, 3, 3, 3)})
    state = weights(SMALL)
    state["output_blocks.0.0.in_layers.2.weight"] = torch.zeros(1, 1, 3, 3)
    torch.save(state, tmp_path / "odd.pt")
    with pytest.raises(RecipeError, match=r"odd.pt holds weights of another network: size mismatch for output_blocks"):
        drawn(api_of(str(tmp_path / "odd.pt")))
    torch.save({"model": state}, tmp_path / "nested.pt")
    with pytest.raises(RecipeError, match=r"nested.pt holds no table of tensors: give the network's state_dict"):
        drawn(api_of(str(tmp_path / "nested.pt")))
    with pytest.raises(RecipeError, match=r"there is no file 'nothing.pt'; put the checkpoint there, or name one of"):
        drawn(api_of("nothing.pt"))


def attended(x: Tensor, state: Mapping[str, Tensor], name: str) -> Tensor:
    """softmax(qᵀk/√d) v, head by head: the rows of qkv hold q, k and v of the first head, then of the second, …"""
    n, channels = x.shape[:2]
    flat = x.reshape(n, channels, -1)
    normed = functional.group_norm(flat, 32, state[f"{name}.norm.weight"], state[f"{name}.norm.bias"])
    rows = state[f"{name}.qkv.weight"][:, :, 0] @ normed + state[f"{name}.qkv.bias"][:, None]
    each = channels // HEADS
    heads = []
    for head in range(HEADS):
        first = 3 * head * each
        q, k, v = (rows[:, first + part * each : first + (part + 1) * each] for part in range(3))
        looks = torch.softmax(q.transpose(1, 2) @ k / math.sqrt(each), dim=2)
        heads.append(v @ looks.transpose(1, 2))
    out = state[f"{name}.proj_out.weight"][:, :, 0] @ torch.cat(heads, 1) + state[f"{name}.proj_out.bias"][:, None]
    return x + out.reshape(x.shape)


def test_attention_has_its_heads_in_the_published_order() -> None:
    state = weights(SMALL)
    network = ImprovedUNet(SMALL)
    network.load_state_dict(state)
    x = torch.randn(2, 64, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(network.middle_block[1](x), attended(x, state, "middle_block.1"))


def residual(state: Mapping[str, Tensor], name: str) -> ResnetBlock2D:
    """diffusers' block with time as scale and shift, over the same weights."""
    outputs, inputs = state[f"{name}.in_layers.2.weight"].shape[:2]
    time = state[f"{name}.emb_layers.1.weight"].shape[1]
    block = ResnetBlock2D(
        in_channels=inputs, out_channels=outputs, temb_channels=time, eps=1e-5, time_embedding_norm="scale_shift"
    )
    theirs = {
        "norm1": "in_layers.0",
        "conv1": "in_layers.2",
        "time_emb_proj": "emb_layers.1",
        "norm2": "out_layers.0",
        "conv2": "out_layers.3",
    } | ({} if inputs == outputs else {"conv_shortcut": "skip_connection"})
    block.load_state_dict(
        {
            f"{key}.{part}": state[f"{name}.{place}.{part}"]
            for key, place in theirs.items()
            for part in ("weight", "bias")
        }
    )
    return block.eval()


def test_the_network_is_the_published_equations() -> None:
    """The whole forward pass of a small one, put together from diffusers' residual blocks and the attention above."""
    state = weights(SMALL)
    network = ImprovedUNet(SMALL)
    network.load_state_dict(state)
    torch.manual_seed(1)
    x, times, classes = torch.randn(3, 3, 8, 8), torch.tensor([0.0, 7.0, 3999.0]), torch.tensor([0, 6, 3])
    with torch.no_grad():
        found = network(x, times, classes)

        def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
            return functional.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride, padding=1)

        def linear(x: Tensor, name: str) -> Tensor:
            return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

        frequencies = 10_000.0 ** (-torch.arange(16) / 16)
        angles = times[:, None] * frequencies
        known = functional.silu(linear(torch.cat([angles.cos(), angles.sin()], 1), "time_embed.0"))
        known = linear(known, "time_embed.2") + state["label_emb.weight"][classes]

        first = conv(x, "input_blocks.0.0")
        second = residual(state, "input_blocks.1.0")(first, known)
        third = conv(second, "input_blocks.2.0.op", stride=2)
        fourth = attended(residual(state, "input_blocks.3.0")(third, known), state, "input_blocks.3.1")
        x = residual(state, "middle_block.0")(fourth, known)
        x = residual(state, "middle_block.2")(attended(x, state, "middle_block.1"), known)
        x = residual(state, "output_blocks.0.0")(torch.cat([x, fourth], 1), known)
        x = attended(x, state, "output_blocks.0.1")
        x = residual(state, "output_blocks.1.0")(torch.cat([x, third], 1), known)
        x = attended(x, state, "output_blocks.1.1").repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = conv(x, "output_blocks.1.2.conv")
        x = residual(state, "output_blocks.2.0")(torch.cat([x, second], 1), known)
        x = residual(state, "output_blocks.3.0")(torch.cat([x, first], 1), known)
        x = functional.group_norm(x, 32, state["out.0.weight"], state["out.0.bias"])
        expected = conv(functional.silu(x), "out.2")
    assert found.shape == (3, 6, 8, 8)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_times_are_told_as_cosines_then_sines() -> None:
    found = waves(torch.tensor([0.0, 2.0]), 4).numpy()
    expected = [[1, 1, 0, 0], [math.cos(2), math.cos(0.02), math.sin(2), math.sin(0.02)]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_cosine_schedule_has_4000_steps() -> None:
    """ᾱ_t = f(t+1)/f(0) but for the last steps, where β is held at 0.999."""
    kept = cosine(TRAINED)
    times = np.arange(1, 4001) / 4000
    ideal = np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(kept[:3990], ideal[:3990], rtol=1e-9)
    assert 0 < kept[-1] < 1e-9
    betas = 1 - kept / np.concatenate([[1], kept[:-1]])
    assert betas.max() == pytest.approx(0.999)


def test_steps_are_spaced_as_the_published_code_spaces_them() -> None:
    assert respaced(4000, 10, "ends") == [0, 444, 889, 1333, 1777, 2222, 2666, 3110, 3555, 3999]
    assert respaced(4000, 10, "stride") == list(range(0, 4000, 400))
    hundred = respaced(4000, 100, "ends")
    assert len(set(hundred)) == 100
    assert set(np.diff(hundred)) == {40, 41}
    assert respaced(4000, 4000, "ends") == respaced(4000, 4000, "stride") == list(range(4000))
    assert respaced(4000, 30, "stride") == list(range(0, 4000, 134))
    with pytest.raises(RecipeError, match=r"no whole stride cuts 4,000 timesteps into 300: take 286 steps, or"):
        api_of("imagenet64_cond_270M_250K", steps=300, spacing="stride")


def test_a_step_is_ddim_on_the_cut_prediction() -> None:
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


class Told(torch.nn.Module):
    """In place of a network: keeps the times and classes it is told, and says that there is no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def forward(self, x: Tensor, times: Tensor, classes: Tensor | None) -> Tensor:
        assert times.shape == (len(x),)
        self.times.append(float(times[0]))
        return torch.cat([torch.zeros_like(x), torch.full_like(x, 99.0)], 1)  # what was learned of the variance: unused


@pytest.mark.parametrize(("rescaled", "scale"), [(False, 1.0), (True, 0.25)])
def test_the_network_is_told_its_trained_timesteps_and_only_epsilon_is_used(
    rescaled: bool, scale: float, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    monkeypatch.setattr("adapters.diffusion.improved_unet.ImprovedUNet", lambda _: told)
    monkeypatch.setattr(Told, "load_state_dict", lambda self, state: None)
    api = api_of(file, rescaled=rescaled)
    answer = drawn(api, slice(1))
    assert told.times == [3999 * scale, 2999 * scale, 2000 * scale, 1000 * scale, 0.0]
    assert set(np.unique(answer.samples.array)) <= {0, 255}  # an image predicted from pure noise alone is cut
    told.times.clear()
    varied(api, answer, 0.4, slice(1))
    assert told.times == [1000 * scale, 0.0]
    assert api_of("imagenet64_cond_270M_250K")._files.is_rescaled is False
    assert api_of("imagenet64_uncond_100M_1500K")._files.is_rescaled is True


@pytest.mark.parametrize("spacing", ["ends", "stride"])
@pytest.mark.parametrize("classes", [None, 7])
def test_a_checkpoint_draws_and_varies(classes: int | None, spacing: str, tmp_path: Path) -> None:
    shape = Shape(32, (1, 2), 1, (1,), classes)
    torch.save(weights(shape), tmp_path / "small.pt")
    api = api_of(str(tmp_path / "small.pt"), spacing=spacing)
    parents = drawn(api)
    assert parents.samples.array.shape == (6, 8, 8, 3)
    assert list(parents.conditions) == ([] if classes is None else ["api_class"])
    np.testing.assert_array_equal(varied(api, parents, 0.0).samples.array, parents.samples.array)
    half, other = varied(api, parents, 0.6), varied(api, parents, 0.6, salt=1)
    assert np.abs(levels(half) - levels(other)).mean() > 1
    if classes is not None:
        assert set(parents.conditions["api_class"].tolist()) <= set(range(7))
        np.testing.assert_array_equal(half.conditions["api_class"], parents.conditions["api_class"])
    one = api_of(str(tmp_path / "small.pt"), spacing=spacing, batch_size=1)
    assert np.abs(levels(varied(one, parents, 0.6)) - levels(half)).max() <= 1
    assert np.abs(levels(drawn(one, slice(None, None, -1))) - levels(parents)[::-1]).max() <= 1


def test_degree_one_forgets_the_parent_with_both_ends_and_keeps_a_trace_of_it_with_a_stride(file: str) -> None:
    """The first four iterations of the paper's Camelyon17 run vary from "timestep 10 of 10" and yet are led."""
    black, white = (Images(np.full((1, 8, 8, 3), level, dtype=np.uint8)) for level in (0, 255))
    for spacing, led in (("ends", False), ("stride", True)):
        api = api_of(file, spacing=spacing, steps=10)
        parents = drawn(api, slice(1))
        of_black, of_white = (
            levels(api.variation_api(VariationRequest(image, LABELS[:1], parents.conditions, SEEDS[:1], 1.0)))
            for image in (black, white)
        )
        assert (np.abs(of_white - of_black).max() > 1) == led
        fresh = levels(drawn(api, slice(1)))
        assert (np.abs(of_black - fresh).max() <= 1) == (not led)
    assert api.describe_degree(1.0) == "noised and denoised, all 10 steps"
    assert api.describe_degree(0.95) == "noised and denoised, the last 9 of 10 steps"


def test_each_iteration_takes_its_own_steps_and_new_samples_take_the_first(file: str) -> None:
    api, four, ten = (api_of(file, steps=steps) for steps in ([4, 10], 4, 10))
    parents = drawn(four)
    np.testing.assert_array_equal(drawn(api).samples.array, parents.samples.array)
    for iteration, plain in ((1, four), (2, ten)):
        request = VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS, 0.5, iteration)
        expected = varied(plain, parents, 0.5, salt=0).samples.array
        np.testing.assert_array_equal(api.variation_api(request).samples.array, expected)
    assert api.describe_degree(0.1, 2) == "noised and denoised, the last 1 of 10 steps"
    assert api.describe_degree(1.0, 2) == "noised and denoised, all 10 steps"
    with pytest.raises(RecipeError, match=r"evolution\.degree is 0\.1, and of 4 steps that leaves none"):
        api.describe_degree(0.1, 1)
    with pytest.raises(RecipeError, match="steps has 2 entries, and none for iteration 3: give steps one number, or"):
        api.describe_degree(0.5, 3)


def test_safetensors_and_half_precision(file: str, tmp_path: Path) -> None:
    save_file(weights(SMALL), tmp_path / "small.safetensors")
    plain, same = drawn(api_of(file)), drawn(api_of(str(tmp_path / "small.safetensors")))
    np.testing.assert_array_equal(plain.samples.array, same.samples.array)
    half = drawn(api_of(file, precision="bf16"))
    assert 0 < np.abs(levels(half) - levels(plain)).mean() < 25
    assert read_weights(Path(file)).keys() == shapes(SMALL).keys()


def test_a_published_checkpoint_is_found_where_torch_hub_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one under the published name: the number of its classes is known without reading it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(weights(Shape(32, (1, 2), 1, (1,), 1000)), folder / "imagenet64_cond_270M_250K.pt")
    answer = drawn(api_of("imagenet64_cond_270M_250K"))
    assert answer.samples.array.shape == (6, 8, 8, 3)
    assert len(set(answer.conditions["api_class"].tolist())) == 6


def test_settings_are_checked_before_anything_is_loaded(file: str) -> None:
    for settings, said in (
        ({"steps": 1}, "steps is 1: it must lie from 2 to 4000"),
        ({"steps": 4001}, "steps is 4001"),
        ({"steps": [10, 1]}, "steps is 1: it must lie from 2 to 4000"),
        ({"steps": [10, 300], "spacing": "stride"}, "no whole stride cuts 4,000 timesteps into 300"),
        ({"spacing": "even"}, "spacing is 'even': it must be one of ends, stride"),
        ({"chunk": 0}, "chunk is 0"),
    ):
        with pytest.raises(RecipeError, match=said):
            api_of("imagenet64_cond_270M_250K", **settings)
    with pytest.raises(RecipeError, match=r"size is 9: small.pt works on images of a multiple of 2 pixels"):
        drawn(api_of(file, size=9))
