"""Diffusion models in pixel space: sampling is RANDOM_API, SDEdit is VARIATION_API, the API's class
is carried on.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMScheduler, UNet2DModel
from safetensors.torch import load_file, save_file

from adapters.diffusion.items import normals, torch_rng
from adapters.diffusion.pixel import PixelSpace
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.plugins.specs import construct
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.asking import (
    BACKWARDS,
    LABELS,
    SEEDS,
    apart,
    assert_same,
    drawn,
    levels,
    moved,
    varied,
)

WEIGHTS = "diffusion_pytorch_model.safetensors"


def api_of(model, **settings):
    return PixelSpace(
        model=model, **({"steps": 5, "device": "cpu", "batch_size": 2, "offline": True} | settings)
    )


@pytest.mark.parametrize(("sampler", "eta", "classes"), [("ddim", 1.0, None), ("ddpm", 0.0, 7)])
def test_it_draws_and_varies_by_seeds_alone_whatever_the_batch(sampler, eta, classes, tmp_path):
    model = tiny.pixel_folder(tmp_path / "model", classes, channels=3)
    api, alone = (api_of(model, sampler=sampler, eta=eta, batch_size=size) for size in (2, 1))
    parents = drawn(api)
    children = varied(api, parents, 0.6)
    assert levels(parents).shape == (3, 8, 8, 3)
    assert moved(children, varied(api, parents, 0.6, salt=1)) > 1
    assert list(parents.conditions) == ([] if classes is None else ["api_class"])
    for name, values in parents.conditions.items():
        np.testing.assert_array_equal(children.conditions[name], values)
    assert apart(drawn(alone), parents) <= 1
    assert apart(varied(alone, parents, 0.6), children) <= 1
    assert np.abs(levels(varied(api, parents, 0.6, BACKWARDS))[::-1] - levels(children)).max() <= 1


def test_classes_are_drawn_by_the_seed_from_those_of_the_label(tmp_path):
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    names = [f"kind {i}" for i in range(7)]
    (tmp_path / "model" / "classes.json").write_text(json.dumps({"classes": names}))
    seeds = np.random.default_rng(0).integers(0, 2**64, 300, dtype=np.uint64)
    request = RandomRequest(("a",) * 300, seeds)
    free = api_of(model, steps=1, batch_size=300).random_api(request).conditions["api_class"]
    assert np.bincount(free, minlength=7).min() > 20
    two = api_of(model, steps=1, batch_size=300, classes={"a": [1, "kind 5"]}).random_api(request)
    assert set(two.conditions["api_class"]) == {1, 5}
    fixed = drawn(api_of(model, classes={"a": "kind 3", "b": 4, "c": 0}))
    assert fixed.conditions["api_class"].tolist() == [3, 4, 0]
    assert (
        moved(fixed, drawn(api_of(model, classes=dict.fromkeys("abc", 6)))) > 0
    )  # a class decides what is drawn
    for chosen, said in (
        ({"a": "kind 33"}, r"the model has no class named 'kind 33'; did you mean 'kind 3'\?"),
        ({"a": 7}, "classes are numbered 0 to 6, so there is no class 7"),
        ({"b": 1}, "there is none for the label 'a'"),
        ({"a": []}, "classes.a is empty"),
    ):
        with pytest.raises(RecipeError, match=said):
            drawn(api_of(model, classes=chosen), slice(1))
    with pytest.raises(RecipeError, match=r"The model .* has no classes"):
        drawn(api_of(tiny.pixel_folder(tmp_path / "plain"), classes={"a": 0}))


def test_parents_from_elsewhere_get_a_class(tmp_path):
    api = api_of(tiny.pixel_folder(tmp_path / "model", classes=7))
    images = Images(np.zeros((3, 8, 8, 1), dtype=np.uint8))
    answer = api.variation_api(VariationRequest(images, LABELS, Conditions(), SEEDS, 0.4))
    np.testing.assert_array_equal(
        answer.conditions["api_class"], drawn(api).conditions["api_class"]
    )


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_a_network_that_learned_its_variance(sampler, tmp_path):
    """The first half of its channels is ε; DDPM takes its variance from the other, DDIM
    needs none.
    """
    torch.manual_seed(0)
    blocks = {
        "down_block_types": ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",),
        "block_out_channels": (8,),
    }
    unet = UNet2DModel(
        8, 1, 2, **blocks, norm_num_groups=4, layers_per_block=1, add_attention=False
    )
    unet.save_pretrained(tmp_path / "unet")
    DDPMScheduler(variance_type="learned_range").save_pretrained(tmp_path / "scheduler")
    api = api_of(str(tmp_path), sampler=sampler)
    parents = drawn(api)
    assert levels(parents).shape == levels(varied(api, parents, 0.6)).shape == (3, 8, 8, 1)


@pytest.mark.parametrize("degree", [None, 0.58])
def test_sampling_and_sdedit_are_ddim_with_classifier_free_guidance_written_out(degree, tmp_path):
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    unet = UNet2DModel.from_pretrained(model + "/unet").eval()
    scheduler = DDIMScheduler.from_pretrained(model + "/scheduler")
    scheduler.set_timesteps(5)
    api = api_of(model, batch_size=1, guidance=3.0)
    parents = drawn(api)
    answer = parents if degree is None else varied(api, parents, degree, salt=0)
    classes = answer.conditions["api_class"].tolist()
    assert max(classes) < 6  # the last stands for none
    for i, seed in enumerate(SEEDS.tolist()):
        x, timesteps = normals((1, 8, 8), [torch_rng(seed)]), scheduler.timesteps
        if degree is not None:
            timesteps = timesteps[3:]  # ⌊0.58·5⌋ = 2 steps remain
            parent = torch.from_numpy(parents.samples.array[i]).permute(2, 0, 1).float() / 127.5 - 1
            kept = scheduler.alphas_cumprod[timesteps[0]]
            x = kept.sqrt() * parent + (1 - kept).sqrt() * x
        with torch.no_grad():
            for t in timesteps:
                given, none = (
                    unet(x, t, class_labels=torch.tensor([each])).sample for each in (classes[i], 6)
                )
                x = scheduler.step(none + 3.0 * (given - none), t, x).prev_sample
        expected = ((x[0].permute(1, 2, 0) + 1) * 127.5).clamp(0, 255).numpy()
        assert np.abs(answer.samples.array[i] - expected).max() < 0.51


def test_a_safetensors_file_with_its_settings_beside_it(tmp_path):
    model = tiny.pixel_folder(tmp_path / "model", classes=3)
    file, settings = tmp_path / "one.safetensors", {}
    save_file(load_file(f"{model}/unet/{WEIGHTS}"), file)
    with pytest.raises(RecipeError, match=r"one.json is missing. It belongs to the model"):
        drawn(api_of(str(file)))
    for name, place in (
        ("unet", "unet/config.json"),
        ("scheduler", "scheduler/scheduler_config.json"),
    ):
        file.with_suffix(".json").write_text(json.dumps(settings))
        with pytest.raises(RecipeError, match=f"one.json lacks '{name}'"):
            drawn(api_of(str(file)))
        settings[name] = json.loads((tmp_path / "model" / place).read_text())
    file.with_suffix(".json").write_text(json.dumps(settings | {"classes": ["x", "y", "z"]}))
    by_file = drawn(api_of(str(file), classes={"a": "x", "b": "y", "c": "z"}))
    assert_same(by_file, drawn(api_of(model, classes={"a": 0, "b": 1, "c": 2})))


def test_files_that_are_missing_or_damaged_end_in_a_sentence(tmp_path):
    model = tiny.pixel_folder(tmp_path / "model")
    weights, config = (Path(model) / "unet" / name for name in (WEIGHTS, "config.json"))
    foreign = Path(tiny.pixel_folder(tmp_path / "other", classes=3)) / "unet" / WEIGHTS
    text = config.read_text()
    for file, content, said in (
        (
            weights,
            weights.read_bytes()[:200],
            f"{WEIGHTS} is cut or damaged: download the file itself",
        ),
        (weights, foreign.read_bytes(), "has 'class_embedding.weight', unlike this network"),
        (weights, None, f"{WEIGHTS} is missing. Put the model's weights there"),
        (
            config,
            text.replace("UNet2DModel", "UNet2DConditionModel").encode(),
            "is a UNet2DConditionModel. This",
        ),
        (config, b"{", "config.json is not JSON"),
        (config, b"[]", "config.json has no JSON object"),
    ):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(RecipeError, match=said):
            drawn(api_of(model))


def test_an_image_of_no_numbers_has_failed_and_its_neighbours_have_not(tmp_path):
    unet = tiny.unet(classes=2)
    with torch.no_grad():
        unet.class_embedding.weight[1] = torch.nan
    DDIMPipeline(unet, DDIMScheduler()).save_pretrained(tmp_path)
    answer = drawn(api_of(str(tmp_path), batch_size=3, classes={"a": 0, "b": 1, "c": 0}))
    assert set(answer.missing) == {1}
    assert "values that are not numbers" in answer.missing[1].reason
    assert answer.conditions["api_class"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"guidance": [2, 0.5]}, "guidance.1 must be at least 1, not 0.5"),
        ({"eta": 1.5}, "eta must be at most 1, not 1.5"),
        ({"sampler": "euler"}, "sampler must be 'ddim' or 'ddpm', not 'euler'"),
        ({"precision": "fp8"}, "precision must be 'auto', 'fp32', 'bf16' or 'fp16', not 'fp8'"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(settings, said):
    with pytest.raises(RecipeError, match=said):
        construct("pe.adapters", "pixel_diffusion", {"model": "nobody/nothing", **settings})
