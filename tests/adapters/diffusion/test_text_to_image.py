"""Settings of text-to-image models, tiny and random: what each does to what is drawn, and what
cannot be.
"""

import shutil
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import ImageOps
from safetensors.torch import save_file

from adapters.diffusion.items import Item, Job
from adapters.diffusion.text_to_image import TextToImage
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Refused, VariationRequest
from tests.adapters.diffusion import tiny, tiny_more
from tests.adapters.diffusion.asking import LABELS, SEEDS, assert_same, drawn, levels, moved, varied
from tests.adapters.diffusion.kinds import COMMON, QUIET, SIDE, saved

pytestmark = QUIET
SD, XL, FLUX = "Stable Diffusion 1.5", "Stable Diffusion XL", "Flux"


def loaded(api):
    return api._loader.load(torch.device("cpu"))


@pytest.mark.parametrize("name", [SD, FLUX])
def test_a_degree_runs_the_steps_that_it_says(name, api_of):
    model, calls = loaded(api_of(name)), []
    pipeline = model._vary.pipeline
    (getattr(pipeline, "unet", None) or pipeline.transformer).register_forward_hook(
        lambda *_: calls.append(1)
    )
    parent = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    for steps, degree, run in ((50, 0.58, 29), (10, 0.19, 1), (3, 0.99, 2)):
        job = Job(steps, degree, 1.0, (SIDE, SIDE))
        calls.clear()
        with torch.no_grad():
            model.vary(job, [Item(job, 7, parent, "a")])
        assert len(calls) in (
            (run, run + 1) if name == SD else (run,)
        )  # PNDM starts with a double step


def test_a_degree_that_leaves_no_step_is_refused_before_the_pipeline_is_called(api_of):
    api = api_of(SD)
    answer = varied(api, drawn(api), 0.2)
    assert set(answer.missing) == {0, 1, 2}
    assert not answer.missing[0].retryable
    assert answer.missing[0].reason == (
        "Degree 0.2 of 4 steps leaves no denoising step to run. Take a degree of at least 0.25, or "
        "more steps."
    )
    with pytest.raises(
        RecipeError, match=r"evolution\.degree`: Degree 0\.2 of 4 .* Take .* at least 0\.25"
    ):
        api.describe_degree(0.2)
    assert api.describe_degree(0.5) == "noised and denoised, the last 2 of 4 steps"


def test_a_latent_consistency_model_runs_all_its_steps_on_a_part_of_its_schedule(api_of):
    api = api_of("Latent Consistency")
    parents = drawn(api)
    assert moved(varied(api, parents, 0.2), parents) > 0  # 10 of the 50 steps it was distilled on
    reason = varied(api, parents, 0.05).missing[0].reason
    assert reason.startswith(
        "Degree 0.05 leaves 2 of the 50 steps that this latent consistency model"
    )


def test_what_the_safety_checker_finds_is_refused_and_its_neighbours_stand(tmp_path):
    torch.manual_seed(0)
    model = saved(tiny.stable_diffusion(tiny.safety_checker()), tmp_path)
    api, unchecked = (
        TextToImage(**COMMON | {"model": model, "safety_checker": each}) for each in (True, False)
    )
    unsafe = Refused("the model's safety checker found the image unsafe")
    assert drawn(api).missing == dict.fromkeys(range(3), unsafe)
    levels(drawn(unchecked))
    checker = api._engine._workers[0].model._text.safety_checker
    checker.register_forward_hook(lambda _, __, out: (out[0], [False, True]))
    assert drawn(api, slice(2)).missing == {1: unsafe}


def test_samples_have_the_size_and_channels_asked_for_and_a_prompt_by_label_which_is_carried_on(
    api_of,
):
    api = api_of(SD, image_size=20, channels=1, prompts={"a": "xx", "b": ["yy"], "c": "zz"})
    parents = drawn(api)
    for answer in (parents, varied(api, parents, 0.5)):
        assert answer.samples.array.shape == (3, 20, 20, 1)
        assert list(answer.conditions["prompt"]) == ["xx", "yy", "zz"]
    assert drawn(api_of(SD, size=(32, 48))).samples.array.shape == (3, 32, 48, 3)
    assert moved(parents, drawn(api_of(SD, image_size=20, channels=1))) > 0


def test_parents_from_elsewhere_are_varied_under_a_drawn_prompt(api_of):
    images = Images(np.random.default_rng(0).integers(0, 256, (3, 25, 40, 1)).astype(np.uint8))
    answer = api_of(SD).variation_api(VariationRequest(images, LABELS, Conditions(), SEEDS, 0.5))
    assert answer.samples.array.shape == (3, SIDE, SIDE, 3)
    assert list(answer.conditions["prompt"]) == ["a a", "a b", "a c"]


def test_each_label_has_its_own_negative_prompt_or_none(api_of):
    """To Stable Diffusion XL no negative prompt is another thing than an empty one."""
    each, plain, negative = (
        api_of(XL, guidance=3.0, batch_size=3, negative_prompt=given)
        for given in ({"a": "qq", "b": "", "c": "qq"}, "", "qq")
    )
    parents = drawn(plain)
    for ask in (drawn, lambda api: varied(api, parents, 0.5)):
        found, none, some = (levels(ask(api)) for api in (each, plain, negative))
        assert np.abs(some - none)[[0, 2]].mean() > 0.1
        assert np.abs(found[1] - none[1]).max() <= 1  # though others of its request have one
        assert np.abs(found - some)[[0, 2]].max() <= 1
    each.check_labels(LABELS)
    with pytest.raises(RecipeError, match="negative_prompt: there is none for the label 'd'"):
        each.check_labels(("a", "d"))
    for guidance in (1, [3, 0.5]):
        with pytest.raises(
            RecipeError, match=r"negative_prompt` has no effect at guidance (1|0\.5)"
        ):
            api_of(XL, negative_prompt={"a": "", "b": "qq"}, guidance=guidance)
    assert api_of(XL, negative_prompt={"a": "", "b": ""}, guidance=1)


def test_each_iteration_takes_its_own_steps_and_guidance_and_new_samples_take_the_first(api_of):
    settings = (([4, 6], [3.0, 5.0]), (4, 3.0), (6, 5.0))
    api, one, two = (api_of(SD, steps=steps, guidance=guidance) for steps, guidance in settings)
    parents = drawn(one)
    assert_same(drawn(api), parents)
    for iteration, plain in ((1, one), (2, two)):
        assert_same(varied(api, parents, 0.5, iteration=iteration), varied(plain, parents, 0.5))
    assert api.describe_degree(0.5, 2) == "noised and denoised, the last 3 of 6 steps"
    with pytest.raises(
        RecipeError,
        match=r"steps` has 2 entries, but iteration 3 needs one more. Give `steps` one number, or",
    ):
        api.describe_degree(0.5, 3)


def test_a_lora_is_effective_by_its_weight(api_of, tmp_path):
    plain = api_of(SD)
    file = str(tiny_more.lora(tmp_path, loaded(plain)._text.unet))
    whole, none = (api_of(SD, lora={file: weight}) for weight in (1.0, 0.0))
    parents = drawn(whole)
    assert moved(parents, drawn(plain)) > 0.5
    assert_same(drawn(none), drawn(plain))
    assert moved(varied(whole, parents, 0.5), varied(none, parents, 0.5)) > 0.1


LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"


@pytest.mark.parametrize(
    "key", ["transformer.blocks.0.attn.to_q", f"unet.no.such.{LAYER}", f"unet.{LAYER}"]
)
def test_a_lora_that_is_not_there_or_does_not_fit_is_named_and_so_is_the_model(
    key, api_of, tmp_path
):
    file, api = tmp_path / "style.safetensors", api_of(SD, lora=str(tmp_path / "style.safetensors"))
    with pytest.raises(RecipeError, match=f"^`lora`: {file} cannot be read"):
        loaded(api)
    save_file(
        {f"{key}.lora_A.weight": torch.zeros(4, 999), f"{key}.lora_B.weight": torch.zeros(999, 4)},
        file,
    )
    with pytest.raises(RecipeError, match=f"^`lora`: {file} does not fit .*{api.model}"):
        loaded(api)


def peft(part, layers):
    """A LoRA for these layers of a part, by their names, each of rank 2."""
    found = {}
    for name, layer in layers.items():
        found[f"{part}.{name}.lora_A.weight"] = torch.randn(2, layer.in_features)
        found[f"{part}.{name}.lora_B.weight"] = torch.randn(layer.out_features, 2)
    return found


def kohya(part, layers):
    """The same in the format of kohya-ss, with its alphas."""
    found = {}
    for key, tensor in peft(part, layers).items():
        name = key.removesuffix(".weight").rpartition(".")[0].replace(".", "_")
        found[f"{name}.{'lora_down' if '.lora_A.' in key else 'lora_up'}.weight"] = tensor
        found[f"{name}.alpha"] = torch.tensor(1.0)
    return found


def layers_of(part, *endings):
    return {name: layer for name, layer in part.named_modules() if name.endswith(endings)}


FOREIGN = {f"no.such.block{i}.to_q": torch.nn.Linear(16, 16) for i in range(20)}


@pytest.mark.parametrize("name", [SD, FLUX])
def test_a_lora_whose_modules_do_not_all_fit_is_refused_with_their_number(name, api_of, tmp_path):
    part = "transformer" if name == FLUX else "unet"
    own = layers_of(getattr(loaded(api_of(name))._text, part), ".to_q")
    one = dict([*own.items()][:1])
    for layers, says in (
        (
            one | FOREIGN,
            rf"only 1 of its 21 modules fit; '{part}\.no\.such\.block0\.to_q' does not",
        ),
        (
            own | dict([*FOREIGN.items()][:1]),
            rf"only {len(own)} of its {len(own) + 1} modules fit; '{part}\.no",
        ),
        (FOREIGN, "Target modules"),
    ):
        save_file(peft(part, layers), tmp_path / "style.safetensors")
        with pytest.raises(
            RecipeError, match=rf"^`lora`: .*style\.safetensors does not fit the model .*{says}"
        ):
            loaded(api_of(name, lora=str(tmp_path / "style.safetensors")))
    save_file(peft(part, own) | peft("prior", one), tmp_path / "style.safetensors")
    with pytest.raises(
        RecipeError, match=rf"only {len(own)} of its {len(own) + 1} modules fit; 'prior\."
    ):
        loaded(api_of(name, lora=str(tmp_path / "style.safetensors")))


@pytest.mark.parametrize("form", [peft, kohya])
def test_a_lora_for_one_part_or_for_several_is_taken_in_each_format(form, api_of, tmp_path):
    text, pipeline = ("self_attn.q_proj", "k_proj", "v_proj", "out_proj"), loaded(api_of(XL))._text
    names = {"unet": "unet", "text_encoder": "te1", "text_encoder_2": "te2"}
    parts = {
        "unet": layers_of(pipeline.unet, ".to_q", ".to_v"),
        **{
            part: {
                name
                if name.startswith("text_model.")
                else f"text_model.{name}": layer  # as files have it
                for name, layer in layers_of(getattr(pipeline, part), *text).items()
            }
            for part in ("text_encoder", "text_encoder_2")
        },
    }
    whole = {}
    for part, layers in parts.items():
        tensors = form(part if form is peft else f"lora_{names[part]}", layers)
        save_file(tensors, tmp_path / "style.safetensors")
        loaded(api_of(XL, lora=str(tmp_path / "style.safetensors")))
        whole |= tensors
    save_file(whole, tmp_path / "style.safetensors")
    loaded(api_of(XL, lora=str(tmp_path / "style.safetensors")))


def test_a_checkpoint_in_one_file_takes_configurations_and_what_it_lacks_from_elsewhere(
    api_of, tmp_path
):
    plain = api_of(SD)
    model = Path(plain.model)
    shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    settings = {"model": str(tmp_path / "model")}
    settings |= {"single_file": str(model / "unet" / "diffusion_pytorch_model.safetensors")}
    parts = {name: str(model / name) for name in ("vae", "text_encoder")}
    assert_same(drawn(api_of(SD, components=parts, **settings)), drawn(plain))
    for wrong, says in (
        ({}, "lacks a part of the model. Name a place for that part in `components`"),
        ({"single_file": "sd.ckpt"}, "are read"),
    ):
        with pytest.raises(RecipeError, match=f"^`single_file.*{says}"):
            loaded(api_of(SD, **settings | wrong))


class Brighter(StableDiffusionPipeline):
    """A pipeline of one's own."""

    @wraps(StableDiffusionPipeline.__call__)
    def __call__(self, *args, **settings):
        found = super().__call__(*args, **settings)
        found.images = found.images / 2 + 0.5
        return found


def test_a_pipeline_of_one_s_own_by_its_import_path(api_of):
    api = api_of(SD, pipeline=f"{__name__}:Brighter")
    parents = drawn(api)
    assert levels(parents).min() >= 127
    assert levels(varied(api, parents, 0.5)).min() < 127  # by the img2img of what it inherits from
    assert "pipeline" in TextToImage.info.code_settings


def inverted(parent):
    return ImageOps.invert(parent)


def test_a_control_net_is_shown_what_the_recipe_says(api_of):
    api = api_of("ControlNet")
    parents = drawn(api)
    for control in ("canny", f"{__name__}:inverted"):
        other = api_of("ControlNet", control=control)
        assert moved(varied(other, parents, 0.25), varied(api, parents, 0.25)) > 0.01


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (
            "PixArtSigma",
            {},
            r"cannot answer VARIATION_API. In diffusers it can only draw",
        ),
        (
            "StableDiffusion",
            {"vary": "instruction"},
            r"cannot vary by instruction. In .* vary by .*noise or str",
        ),
        (
            "StableDiffusion",
            {"vary": "meaning"},
            r"vary: meaning` .* needs an IP-Adapter. Set `ip_adapter`",
        ),
        (
            "StableDiffusion",
            {"vary": "noise", "wordings": {1.0: "new"}},
            "wordings` is for `vary: instruction",
        ),
        (
            "StableDiffusion",
            {"arguments": {"true_cfg_scale": 2}},
            "StableDiff.* takes no true_cfg_scale",
        ),
        ("StableDiffusion", {"ip_adapter": {"weight_name": "ip.bin"}}, r"Only \.safetensors files"),
        (
            "StableDiffusion",
            {"pipeline": "nowhere:Class"},
            "pipeline`: 'nowhere:Class' cannot be imported",
        ),
        (
            "StableDiffusionImageVariation",
            {},
            "cannot generate images from text. Use a text-to-image model",
        ),
        ("Newest", {}, r"needs the pipeline NewestPipeline, which diffusers [\d.]+ does not have"),
    ],
)
def test_what_a_pipeline_cannot_do_is_one_sentence_before_anything_loads(
    kind, settings, said, tmp_path
):
    (tmp_path / "model_index.json").write_text(
        f'{{"_class_name": "{kind}Pipeline"}}'
    )  # there are no weights
    with pytest.raises(RecipeError, match=said):
        drawn(TextToImage(**COMMON | {"model": str(tmp_path)} | settings))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (SD, {"size": 30}, r"size` is \(30, 30\), but a model draws multiples of 8 pixels"),
        (SD, {"size": None, "image_size": 20}, "`image_size` needs `size`"),
        (SD, {"offload": "model"}, "offload` is 'model', but the model runs on the CPU"),
        (FLUX, {"sampler": "euler"}, "sampler` is 'euler', but the model has a flow"),
    ],
)
def test_what_cannot_be_set_is_one_sentence(name, settings, said, api_of):
    with pytest.raises(RecipeError, match=said):
        loaded(api_of(name, **settings))
