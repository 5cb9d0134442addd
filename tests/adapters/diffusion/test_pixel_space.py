"""Diffusion models in pixel space: sampling is RANDOM_API, SDEdit is VARIATION_API, the API's class is carried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMScheduler, UNet2DModel
from safetensors.torch import load_file, save_file

import pe
from adapters.diffusion.pixel import PixelSpace
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny
from tests.durability.driver import make_private
from tests.generators import Mean

LABELS = tuple("abcabc")
SEEDS = np.random.default_rng(5).integers(0, 2**64, len(LABELS), dtype=np.uint64)
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(params=[None, 7], ids=["unconditional", "conditional"])
def classes(request: pytest.FixtureRequest) -> int | None:
    return request.param  # type: ignore[no-any-return]


def api_of(model: str, **settings: Any) -> PixelSpace:
    return PixelSpace(model=model, **({"steps": 5, "device": "cpu", "batch_size": 4, "offline": True} | settings))


def drawn(api: PixelSpace, which: slice = slice(None)) -> Answer:
    return api.random_api(RandomRequest(LABELS[which], SEEDS[which]))


def varied(api: PixelSpace, parents: Answer, degree: float, which: slice = slice(None), salt: int = 9) -> Answer:
    seeds = (SEEDS ^ np.uint64(salt))[which]
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    return api.variation_api(VariationRequest(samples, LABELS[which], conditions, seeds, degree))


def levels(answer: Answer) -> npt.NDArray[np.float64]:
    return answer.samples.array.astype(np.float64)


@pytest.mark.parametrize(("sampler", "eta"), [("ddim", 0.0), ("ddim", 1.0), ("ddpm", 0.0)])
def test_a_model_draws_and_varies(sampler: str, eta: float, classes: int | None, tmp_path: Path) -> None:
    channels = 1 if classes is None else 3
    model = tiny.pixel_folder(tmp_path / "model", classes, channels)
    api = api_of(model, sampler=sampler, eta=eta)
    parents = drawn(api)
    assert parents.samples.array.shape == (6, 8, 8, channels)
    assert not parents.missing
    assert list(parents.conditions) == ([] if classes is None else ["api_class"])
    np.testing.assert_array_equal(varied(api, parents, 0.0).samples.array, parents.samples.array)
    half, again, other = varied(api, parents, 0.6), varied(api, parents, 0.6), varied(api, parents, 0.6, salt=1)
    np.testing.assert_array_equal(half.samples.array, again.samples.array)
    assert np.abs(levels(half) - levels(other)).mean() > 1
    if classes is not None:
        np.testing.assert_array_equal(half.conditions["api_class"], parents.conditions["api_class"])

    one = api_of(model, sampler=sampler, eta=eta, batch_size=1)
    backwards = slice(None, None, -1)
    assert np.abs(levels(drawn(one)) - levels(parents)).max() <= 1
    assert np.abs(levels(varied(one, parents, 0.6)) - levels(half)).max() <= 1
    assert np.abs(levels(varied(api, parents, 0.6, backwards)) - levels(half)[::-1]).max() <= 1


def test_a_larger_degree_moves_further(classes: int | None, tmp_path: Path) -> None:
    """In pixels. A random network takes no noise away, so only small degrees can be told apart from one another."""
    api = api_of(tiny.pixel_folder(tmp_path / "model", classes), steps=20)
    parents = drawn(api)

    def moved(degree: float) -> float:
        children = [levels(varied(api, parents, degree, salt=salt)) for salt in (20, 21)]
        return float(np.mean([np.abs(child - levels(parents)).mean() for child in children]))

    distances = [moved(degree) for degree in (0.0, 0.1, 0.2, 1.0)]
    assert distances[0] == 0
    assert distances == sorted(distances)
    fresh = np.abs(levels(drawn(api)) - np.roll(levels(parents), 1, axis=0)).mean()
    assert distances[-1] == pytest.approx(fresh, rel=0.15)


def test_classes_are_drawn_by_the_seed_from_those_of_the_label(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    names = [f"kind {i}" for i in range(7)]
    (tmp_path / "model" / "classes.json").write_text(json.dumps({"classes": names}))
    seeds = np.random.default_rng(0).integers(0, 2**64, 300, dtype=np.uint64)
    free = api_of(model, steps=1, batch_size=300).random_api(RandomRequest(("a",) * 300, seeds))
    assert set(free.conditions["api_class"]) == set(range(7))
    counts = np.bincount(free.conditions["api_class"], minlength=7)
    assert counts.min() > 20
    fixed = api_of(model, classes={"a": "kind 3", "b": [1, "kind 5"], "c": 0})
    allowed = {"a": {3}, "b": {1, 5}, "c": {0}}
    for label, number in zip(LABELS, drawn(fixed).conditions["api_class"].tolist(), strict=True):
        assert number in allowed[label]
    for chosen, said in (
        ({"a": "kind 33"}, "the model has no class named 'kind 33'; did you mean 'kind 3'?"),
        ({"a": 7}, "the model has 7 classes, from 0 on, and none is 7"),
        ({"b": 1}, "there is none for the label 'a'"),
        ({"a": []}, "classes.a is empty"),
    ):
        with pytest.raises(RecipeError, match=said.replace("?", r"\?")):
            drawn(api_of(model, classes=chosen), slice(1))
    with pytest.raises(RecipeError, match=r"classes is given, but the model .* has none"):
        drawn(api_of(tiny.pixel_folder(tmp_path / "plain"), classes={"a": 0}))


def test_the_class_decides_what_is_drawn(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=2)
    zero, one = (drawn(api_of(model, classes=dict.fromkeys("abc", number))) for number in (0, 1))
    assert np.abs(levels(zero) - levels(one)).mean() > 0


def test_parents_from_elsewhere_get_a_class(tmp_path: Path) -> None:
    api = api_of(tiny.pixel_folder(tmp_path / "model", classes=7))
    images = Images(np.zeros((6, 8, 8, 1), dtype=np.uint8))
    answer = api.variation_api(VariationRequest(images, LABELS, Conditions(), SEEDS, 0.4))
    assert len(set(answer.conditions["api_class"].tolist())) > 1
    larger = Images(np.zeros((6, 9, 9, 1), dtype=np.uint8))
    missing = api.variation_api(VariationRequest(larger, LABELS, Conditions(), SEEDS, 0.4)).missing
    assert missing[5].reason == "The model varies images of 8×8×1, not of 9×9×1."


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_a_network_that_learned_its_variance(sampler: str, tmp_path: Path) -> None:
    """The first half of its channels is ε; DDPM takes its variance from the other, DDIM needs none."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        8,
        1,
        2,
        block_out_channels=(8,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        norm_num_groups=4,
        layers_per_block=1,
        add_attention=False,
    )
    scheduler = DDPMScheduler(variance_type="learned_range")
    unet.save_pretrained(tmp_path / "unet")
    scheduler.save_pretrained(tmp_path / "scheduler")
    api = api_of(str(tmp_path), sampler=sampler)
    parents = drawn(api)
    assert parents.samples.array.shape == (6, 8, 8, 1)
    assert len(varied(api, parents, 0.6).samples) == 6


def test_sampling_is_what_diffusers_own_pipeline_does(tmp_path: Path) -> None:
    """DDIMPipeline with the same first noise; at batch size 1 it is the same arithmetic."""
    from adapters.diffusion.items import normals, seeded

    model = tiny.pixel_folder(tmp_path / "model")
    unet = UNet2DModel.from_pretrained(model + "/unet").eval()
    scheduler = DDIMScheduler.from_pretrained(model + "/scheduler")
    scheduler.set_timesteps(5)
    answer = drawn(api_of(model, batch_size=1))
    for seed, image in zip(SEEDS.tolist(), answer.samples.array, strict=True):
        x = normals((1, 8, 8), [seeded(seed)])
        with torch.no_grad():
            for t in scheduler.timesteps:
                x = scheduler.step(unet(x, t).sample, t, x).prev_sample
        np.testing.assert_array_equal(((x[0].permute(1, 2, 0) + 1) * 127.5).round().clamp(0, 255).byte(), image)


def test_a_safetensors_file_with_its_settings_beside_it(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=3)
    unet, scheduler = (
        json.loads((tmp_path / "model" / part).read_text())
        for part in ("unet/config.json", "scheduler/scheduler_config.json")
    )
    file = tmp_path / "one.safetensors"
    save_file(load_file(f"{model}/unet/{WEIGHTS}"), file)
    with pytest.raises(RecipeError, match=r"one.json is missing: it belongs to the model"):
        drawn(api_of(str(file)))
    (tmp_path / "one.json").write_text(json.dumps({"unet": unet}))
    with pytest.raises(RecipeError, match=r"one.json lacks 'scheduler'"):
        drawn(api_of(str(file)))
    (tmp_path / "one.json").write_text(json.dumps({"unet": unet, "scheduler": scheduler, "classes": ["x", "y", "z"]}))
    by_file = drawn(api_of(str(file), classes={"a": "x", "b": "y", "c": "z"}))
    by_folder = drawn(api_of(model, classes={"a": 0, "b": 1, "c": 2}))
    np.testing.assert_array_equal(by_file.samples.array, by_folder.samples.array)


def test_files_that_are_missing_or_damaged_end_in_a_sentence(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model")
    weights = Path(model) / "unet" / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:200])
    with pytest.raises(RecipeError, match=r"diffusion_pytorch_model.safetensors is no whole .safetensors file: fetch"):
        drawn(api_of(model))
    weights.write_bytes((Path(tiny.pixel_folder(tmp_path / "other", classes=3)) / "unet" / WEIGHTS).read_bytes())
    with pytest.raises(RecipeError, match=r"holds weights of another network: .*class_embedding"):
        drawn(api_of(model))
    weights.unlink()
    with pytest.raises(RecipeError, match=r"diffusion_pytorch_model.safetensors is missing: put the model's weights"):
        drawn(api_of(model))
    config = Path(model) / "unet" / "config.json"
    config.write_text(config.read_text().replace("UNet2DModel", "UNet2DConditionModel"))
    with pytest.raises(RecipeError, match="is a UNet2DConditionModel; this adapter runs UNet2DModel"):
        drawn(api_of(model))
    config.write_text("{")
    with pytest.raises(RecipeError, match=r"config.json is no JSON"):
        drawn(api_of(model))


def test_an_image_of_no_numbers_has_failed_and_its_neighbours_have_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    unet = tiny.unet(classes=2)
    with torch.no_grad():
        unet.class_embedding.weight[1] = torch.nan
    DDIMPipeline(unet, DDIMScheduler()).save_pretrained(tmp_path)
    answer = drawn(api_of(str(tmp_path), classes={"a": 0, "b": 1, "c": 0}))
    assert set(answer.missing) == {1, 4}
    assert "values that are no numbers" in answer.missing[1].reason
    assert answer.conditions["api_class"].tolist() == [0, 0, 0, 0]


def test_each_iteration_takes_its_own_steps_and_guidance_and_new_samples_take_the_first(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    api = api_of(model, steps=[4, 8], guidance=[3, 1])
    guided, plain = api_of(model, steps=4, guidance=3), api_of(model, steps=8)
    parents = drawn(guided)
    assert parents.conditions["api_class"].max() < 6  # the last class stands for none, in every iteration
    np.testing.assert_array_equal(drawn(api).samples.array, parents.samples.array)
    for iteration, one in ((1, guided), (2, plain)):
        request = VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS, 0.5, iteration)
        expected = varied(one, parents, 0.5, salt=0).samples.array
        np.testing.assert_array_equal(api.variation_api(request).samples.array, expected)
    assert api.describe_degree(0.5, 2) == "noised and denoised, the last 4 of 8 steps"


def test_private_evolution_runs_over_it_and_carries_the_class(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=5)
    make_private(tmp_path / "private.npz")
    run = pe.evolve(
        pe.ImageNpz(tmp_path / "private.npz", size=8, channels=1, resize="stretch", classes=["a", "b"]),
        pe.api("pixel_diffusion", model=model, steps=4, classes={"a": [0, 1], "b": [2, 3, 4]}, device="cpu"),
        embedding=Mean(),
        out=tmp_path / "run",
        population=12,
        iterations=2,
        lookahead=2,
        degree=[1.0, 0.5],
        noise_multiplier=1,
        delta=1e-5,
    )
    assert run.synthetic.samples.array.shape == (12, 8, 8, 1)
    drawn_from = {0: {0, 1}, 1: {2, 3, 4}}
    labels, classes = run.synthetic.labels.tolist(), run.synthetic.conditions["api_class"].tolist()
    assert all(one in drawn_from[label] for label, one in zip(labels, classes, strict=True))


def test_settings_are_checked_before_anything_is_loaded() -> None:
    for settings, said in (
        ({"steps": 0}, "steps is 0: it must be at least 1"),
        ({"steps": [5, 0]}, "steps is 0: it must be at least 1"),
        ({"guidance": [2, 0.5]}, "guidance is 0.5: it must be at least 1, which is none"),
        ({"eta": 1.5}, r"eta is 1.5: it must lie in \[0, 1\]"),
        ({"sampler": "euler"}, "sampler is 'euler': it must be one of ddim, ddpm"),
        ({"batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(RecipeError, match=said):
            api_of("nobody/nothing", **settings)
