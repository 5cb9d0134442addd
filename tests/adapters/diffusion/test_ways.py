"""Every kind of pipeline, tiny and random, draws and varies through the adapter, by each of the four ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image, ImageOps
from safetensors.torch import save_file

from adapters.diffusion.text_to_image import TextToImage
from pe.data.images import Images
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.adapters.diffusion import one_file, tiny, tiny_more
from tests.adapters.diffusion.kinds import COMMON, EACH, KINDS, SIDE, maker, saved

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:.callback_steps. is deprecated:FutureWarning"),  # Kandinsky's own call
]

LABELS = tuple("abc")
SEEDS = np.random.default_rng(3).integers(0, 2**64, len(LABELS), dtype=np.uint64)
DEGREES = (0.25, 0.5, 0.75)
Pixels = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def api_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TextToImage]:
    """The adapter over a kind, saved and loaded once."""
    return cache(maker(lambda: tmp_path_factory.mktemp("kind")))


def drawn(api: TextToImage, which: slice = slice(None)) -> Answer:
    return api.random_api(RandomRequest(LABELS[which], SEEDS[which]))


def varied(api: TextToImage, parents: Answer, degree: float, which: slice = slice(None)) -> Answer:
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    seeds = (SEEDS ^ np.uint64(9))[which]
    return api.variation_api(VariationRequest(samples, LABELS[which], conditions, seeds, degree))


def levels(answer: Answer) -> Pixels:
    assert not answer.missing, answer.missing
    return answer.samples.array.astype(np.float64)


@pytest.mark.parametrize("name", EACH)
def test_it_draws_and_varies_by_seeds_alone_whatever_the_batch(name: str, api_of: Callable[..., TextToImage]) -> None:
    api, alone = api_of(name), api_of(name, batch_size=1)
    parents = drawn(api)
    new = levels(parents)
    assert new.shape == (3, SIDE, SIDE, 3)
    assert new.std(axis=0).mean() > 1  # three different images
    assert np.abs(levels(drawn(alone)) - new).max() <= 1
    backwards = slice(None, None, -1)
    children = levels(varied(api, parents, 0.5))
    np.testing.assert_array_equal(levels(varied(api, parents, 0.5)), children)
    assert np.abs(levels(varied(alone, parents, 0.5)) - children).max() <= 1
    assert np.abs(levels(varied(api, parents, 0.5, backwards))[::-1] - children).max() <= 1
    np.testing.assert_array_equal(levels(varied(api, parents, 0.0)), new)
    seeds = SEEDS ^ np.uint64(9)
    np.testing.assert_array_equal(
        levels(varied(api, parents, 1.0)), levels(api.random_api(RandomRequest(LABELS, seeds)))
    )


@pytest.mark.parametrize("name", EACH)
def test_the_parent_is_heeded_and_less_so_at_a_larger_degree(name: str, api_of: Callable[..., TextToImage]) -> None:
    """How much a variation differs between two parents, all else being equal."""
    api = api_of(name)
    dark, bright = (Answer(Images(_ramps(grey)), drawn(api).conditions) for grey in (0, 150))
    heeded = [float(np.abs(levels(varied(api, dark, v)) - levels(varied(api, bright, v))).mean()) for v in DEGREES]
    assert heeded[0] > 0.1
    if KINDS[name].grows:
        assert heeded == sorted(heeded, reverse=True), heeded


@pytest.mark.parametrize("name", KINDS)
def test_the_plan_says_how_a_degree_is_obeyed(name: str, api_of: Callable[..., TextToImage]) -> None:
    api = api_of(name)
    way = KINDS[name].way
    assert api.capabilities.degree == ("wording" if way == "instruction" else "exact")
    said = {"noise": "noised", "instruction": "worded as", "meaning": "what the parent shows", "structure": "structure"}
    assert said[way] in api.describe_degree(0.5)


def test_what_a_pipeline_cannot_do_is_one_sentence_before_anything_loads(tmp_path: Path) -> None:
    def refused(kind: str, words: str, **settings: object) -> None:
        (tmp_path / "model_index.json").write_text(f'{{"_class_name": "{kind}"}}')  # there are no weights
        with pytest.raises(RecipeError, match=words):
            drawn(TextToImage(model=str(tmp_path), prompts="a", offline=True, device="cpu", **settings))  # type: ignore[arg-type]

    refused("PixArtSigmaPipeline", r"cannot answer VARIATION_API: in diffusers it can only draw, so name another model")
    refused("StableDiffusionPipeline", r"cannot vary by instruction: in .* vary by .*noise or str", vary="instruction")
    refused("StableDiffusionPipeline", r"vary: meaning .* needs an IP-Adapter: name one", vary="meaning")
    refused("StableDiffusionPipeline", r"vary: structure .* needs a ControlNet: name one under", vary="structure")
    refused("StableDiffusionPipeline", r"wordings is for vary: instruction", vary="noise", wordings={1.0: "new"})
    refused("StableDiffusionPipeline", r"StableDiff.* takes no true_cfg_scale", arguments={"true_cfg_scale": 2})
    refused("StableDiffusionPipeline", r"arguments: prompt is set by the adapter", arguments={"prompt": "b"})
    refused("StableDiffusionPipeline", r"only \.safetensors files", ip_adapter={"weight_name": "ip.bin"})
    refused("QwenImagePipeline", r"cannot vary by meaning: in .* vary by noise or structure", vary="meaning")
    refused("StableDiffusionImageVariationPipeline", r"makes no images from text: name one that does")
    refused("NewestPipeline", r"is made for NewestPipeline, which diffusers [\d.]+ has not")


def test_a_model_that_can_only_draw_is_varied_by_another(tmp_path: Path) -> None:
    torch.manual_seed(0)
    api = TextToImage(
        model=saved(tiny_more.pixart_sigma(), tmp_path / "draws"),
        variation_model=saved(tiny.stable_diffusion(), tmp_path / "varies"),
        arguments={"use_resolution_binning": False, "max_sequence_length": 16, "clean_caption": False},
        **COMMON,
    )
    parents = drawn(api)
    assert levels(parents).std(axis=0).mean() > 1
    assert levels(varied(api, parents, 0.5)).shape == (3, SIDE, SIDE, 3)


def test_a_lora_is_loaded_and_effective_by_its_weight(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    model, file = saved(pipeline, tmp_path / "model"), str(tiny_more.lora(tmp_path, pipeline.unet))
    plain, parents = levels(drawn(TextToImage(model=model, **COMMON))), None
    whole, none = (TextToImage(model=model, lora={file: weight}, **COMMON) for weight in (1.0, 0.0))
    parents = drawn(whole)
    assert np.abs(levels(parents) - plain).mean() > 0.5
    np.testing.assert_array_equal(levels(drawn(none)), plain)
    changed = levels(varied(whole, parents, 0.5)) - levels(varied(none, parents, 0.5))
    assert np.abs(changed).mean() > 0.1


LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
MISFITS = {
    "a transformer's": ("transformer.blocks.0.attn.to_q.lora_{}.weight", 4, "does not fit"),
    "a layer that the model lacks": (f"unet.no.such.{LAYER}.lora_{{}}.weight", 4, "does not fit"),
    "another width": (f"unet.{LAYER}.lora_{{}}.weight", 999, "does not fit"),
    "none at all": ("unet.conv_in.weight{}", 4, "does not fit"),
    "no such file": ("", 0, "cannot be read"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_lora_that_does_not_fit_is_named_and_so_is_the_model(name: str, tmp_path: Path) -> None:
    key, width, says = MISFITS[name]
    model, file = saved(tiny.stable_diffusion(), tmp_path / "model"), tmp_path / "style.safetensors"
    if key:
        weights = {"A": torch.zeros(4, width), "B": torch.zeros(width, 4)}
        save_file({key.format(side): weight for side, weight in weights.items()}, file)
    with pytest.raises(RecipeError, match=f"^lora: {file} {says}") as told:
        drawn(TextToImage(model=model, lora=str(file), **COMMON))
    assert (str(model) in str(told.value)) == (says == "does not fit")


def test_one_file_draws_as_the_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    model = saved(pipeline, tmp_path / "model")
    file = one_file.checkpoint(pipeline, tmp_path / "sd.safetensors")
    whole = levels(drawn(TextToImage(model=model, **COMMON)))
    for weights in (tmp_path / "model").rglob("*.safetensors"):
        weights.unlink()  # the folder need hold the configurations alone
    np.testing.assert_array_equal(levels(drawn(TextToImage(model=model, single_file=str(file), **COMMON))), whole)
    with pytest.raises(RecipeError, match=r"single_file is 'sd.ckpt': .safetensors is read, since other files may"):
        drawn(TextToImage(model=model, single_file="sd.ckpt", **COMMON))


def test_a_quantised_part_draws_nearly_as_the_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pipeline = tiny.flux()
    model = saved(pipeline, tmp_path / "model")
    file = tiny_more.gguf_file(tmp_path / "flux.gguf", pipeline.transformer)
    whole = levels(drawn(TextToImage(model=model, **COMMON)))
    quantised = levels(drawn(TextToImage(model=model, components={"transformer": str(file)}, **COMMON)))
    assert 0 < np.abs(quantised - whole).mean() < 8
    with pytest.raises(RecipeError, match=r"components.transformer: there is no file"):
        drawn(TextToImage(model=model, components={"transformer": "no.gguf"}, **COMMON))
    with pytest.raises(RecipeError, match=r"has no part unet that could be replaced"):
        drawn(TextToImage(model=model, components={"unet": str(file)}, **COMMON))


class Brighter(StableDiffusionPipeline):
    """A pipeline of one's own."""

    @wraps(StableDiffusionPipeline.__call__)
    def __call__(self, *args: object, **settings: object) -> object:
        found = super().__call__(*args, **settings)
        found.images = found.images / 2 + 0.5
        return found


def test_a_pipeline_of_one_s_own_by_its_import_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = saved(tiny.stable_diffusion(), tmp_path / "model")
    own = f"{__name__}:Brighter"
    api = TextToImage(model=model, pipeline=own, **COMMON)
    parents = drawn(api)
    assert levels(parents).min() >= 127
    assert levels(varied(api, parents, 0.5)).min() < 127  # by the img2img of what it inherits from
    with pytest.raises(RecipeError, match=r"pipeline: nowhere cannot be imported"):
        drawn(TextToImage(model=model, pipeline="nowhere:Class", **COMMON))
    assert "pipeline" in TextToImage.info.code_settings


def _ramps(grey: int) -> npt.NDArray[np.uint8]:
    ramp = np.linspace(0, 100, SIDE, dtype=np.uint8)[:, None, None] + grey
    return np.broadcast_to(ramp, (len(LABELS), SIDE, SIDE, 3)).astype(np.uint8)


def test_a_control_net_is_shown_what_the_recipe_says(api_of: Callable[..., TextToImage]) -> None:
    parents = drawn(api_of("ControlNet"))
    itself = levels(varied(api_of("ControlNet"), parents, 0.25))
    for control in ("canny", f"{__name__}:inverted"):
        assert np.abs(levels(varied(api_of("ControlNet", control=control), parents, 0.25)) - itself).mean() > 0.01
    with pytest.raises(RecipeError, match=r"control is 'lines': it must be image, canny or module:function"):
        drawn(api_of("ControlNet", control="lines"))


def inverted(parent: Image.Image) -> Image.Image:
    return ImageOps.invert(parent)
