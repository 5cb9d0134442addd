"""Text-to-image models, tiny and random, answer RANDOM_API and VARIATION_API; `test_ways` has more of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import DDIMScheduler, DiffusionPipeline
from PIL import Image

from adapters.diffusion.items import Item, Job
from adapters.diffusion.text_files import TextFiles
from adapters.diffusion.text_model import TextLoader, TextModel, TextSettings
from adapters.diffusion.text_to_image import TextToImage
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, Refused, VariationRequest
from tests.adapters.diffusion import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

FAMILIES: dict[str, Callable[[], DiffusionPipeline]] = {
    "Stable Diffusion 1": tiny.stable_diffusion,
    "Stable Diffusion XL": tiny.stable_diffusion_xl,
    "Stable Diffusion 3": tiny.stable_diffusion_3,
    "Flux": tiny.flux,
    "Latent Consistency": tiny.latent_consistency,
}
LABELS = tuple("abcabc")
SEEDS = np.random.default_rng(3).integers(0, 2**64, len(LABELS), dtype=np.uint64)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("models")

    def save(family: str) -> str:
        place = folder / family.replace(" ", "-")
        if not place.exists():
            torch.manual_seed(0)
            FAMILIES[family]().save_pretrained(place)
        return str(place)

    return save


def api_of(model: str, **settings: object) -> TextToImage:
    common: dict[str, object] = {
        "prompts": "a photo of {label}",
        "steps": 5,
        "guidance": 3.0,
        "size": tiny.SIDE,
        "device": "cpu",
        "batch_size": 4,
        "offline": True,
    }
    return TextToImage(model=model, **(common | settings))  # type: ignore[arg-type]


def loaded(model: str) -> TextModel:
    return TextLoader(TextSettings(model=model), offline=True).load(torch.device("cpu"))


def drawn(api: TextToImage, which: slice = slice(None)) -> Answer:
    return api.random_api(RandomRequest(LABELS[which], SEEDS[which]))


def varied(api: TextToImage, parents: Answer, degree: float, which: slice = slice(None), salt: int = 9) -> Answer:
    seeds = (SEEDS ^ np.uint64(salt))[which]
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    return api.variation_api(VariationRequest(samples, LABELS[which], conditions, seeds, degree))


def levels(answer: Answer) -> npt.NDArray[np.float64]:
    return answer.samples.array.astype(np.float64)


def moved(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    return float(np.abs(one - other).mean())


def test_it_draws_and_varies_by_prompts_and_seeds(saved: Callable[[str], str]) -> None:
    api = api_of(saved("Stable Diffusion 1"))
    parents = drawn(api)
    assert parents.samples.array.shape == (6, tiny.SIDE, tiny.SIDE, 3)
    assert parents.samples.array.dtype == np.uint8
    assert not parents.missing
    assert levels(parents).std(axis=0).mean() > 5  # six different images
    assert list(parents.conditions["prompt"]) == [f"a photo of {label}" for label in LABELS]

    np.testing.assert_array_equal(varied(api, parents, 0.0).samples.array, parents.samples.array)
    half, again, other = varied(api, parents, 0.6), varied(api, parents, 0.6), varied(api, parents, 0.6, salt=10)
    np.testing.assert_array_equal(half.samples.array, again.samples.array)
    assert moved(levels(half), levels(other)) > 1
    assert list(half.conditions["prompt"]) == list(parents.conditions["prompt"])

    seeds = SEEDS ^ np.uint64(9)
    fresh = api.random_api(RandomRequest(LABELS, seeds))
    np.testing.assert_array_equal(varied(api, parents, 1.0).samples.array, fresh.samples.array)


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(saved: Callable[[str], str]) -> None:
    """To one grey level: a library may sum in another order in another batch."""
    one, four = (api_of(saved("Stable Diffusion 1"), batch_size=size) for size in (1, 4))
    parents = drawn(four)
    assert np.abs(levels(drawn(one)) - levels(parents)).max() <= 1
    children = levels(varied(four, parents, 0.6))
    assert np.abs(levels(varied(one, parents, 0.6)) - children).max() <= 1
    backwards = slice(None, None, -1)
    assert np.abs(levels(drawn(four, backwards)) - levels(parents)[::-1]).max() <= 1
    assert np.abs(levels(varied(four, parents, 0.6, backwards)) - children[::-1]).max() <= 1


@pytest.mark.parametrize("family", ["Stable Diffusion 1", "Flux", "Latent Consistency"])
def test_a_larger_degree_moves_further(family: str, saved: Callable[[str], str]) -> None:
    """From what the autoencoder alone makes of the parent: a random one is far from the identity."""
    model = saved(family)
    api = api_of(model, steps=10, batch_size=12)
    parents = drawn(api)
    vae = TextFiles(model, offline=True).load({"default": torch.float32}).vae.eval()
    with torch.no_grad():
        pixels = torch.from_numpy(levels(parents)).float().permute(0, 3, 1, 2) / 127.5 - 1
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
    home = ((decoded.permute(0, 2, 3, 1).numpy() + 1) * 127.5).clip(0, 255)
    # a latent consistency model takes its 10 steps from 50, and jumps to the end in each
    distances = [
        np.mean([moved(levels(varied(api, parents, degree, salt=salt)), home) for salt in range(20, 22)])
        for degree in (0.2, 0.5, 1.0)
    ]
    assert distances[0] < distances[1] < distances[2], distances
    fresh = np.mean([moved(levels(drawn(api))[::-1], home), moved(np.roll(levels(drawn(api)), 2, axis=0), home)])
    assert distances[2] == pytest.approx(fresh, rel=0.1)


def test_small_degrees_return_the_parent_to_the_autoencoder_s_error_and_larger_ones_move_away(tmp_path: Path) -> None:
    """With an autoencoder that is true to a few grey levels, and a network that sees no noise but what was added."""
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion(faithful=True)
    pipeline.scheduler = DDIMScheduler(**tiny.betas())
    pipeline.save_pretrained(tmp_path)
    api = api_of(str(tmp_path), steps=1000, size=8, batch_size=6)
    rows, columns = np.mgrid[:8, :8] * 32
    smooth = np.stack([rows, columns, 255 - rows], axis=-1).astype(np.uint8)
    parents = Answer(Images(np.stack([smooth] * 6)), drawn(api_of(str(tmp_path), steps=1, size=8)).conditions)
    with torch.no_grad():
        pixels = torch.from_numpy(levels(parents)).float().permute(0, 3, 1, 2) / 127.5 - 1
        decoded = pipeline.vae.decode(pipeline.vae.encode(pixels).latents).sample.permute(0, 2, 3, 1).numpy()
    error = np.abs((decoded + 1) * 127.5 - levels(parents)).mean()
    assert 0 < error < 3
    first = levels(varied(api, parents, 0.001))  # one step, whose noise is a few grey levels
    assert moved(first, levels(parents)) < error + 5
    distances = [moved(levels(varied(api, parents, degree)), levels(parents)) for degree in (0.0, 0.001, 0.01, 0.03)]
    assert distances[0] == 0
    assert distances == sorted(distances)
    few = api_of(str(tmp_path), steps=10, size=8, batch_size=6)
    assert distances[-1] < moved(levels(varied(few, parents, 0.4)), levels(parents))


@pytest.mark.parametrize("family", ["Stable Diffusion 1", "Stable Diffusion XL", "Stable Diffusion 3", "Flux"])
@pytest.mark.parametrize(("steps", "degree", "run"), [(50, 0.58, 29), (10, 0.7, 7), (10, 0.19, 1), (3, 0.99, 2)])
def test_a_degree_runs_the_steps_that_it_says(
    family: str, steps: int, degree: float, run: int, saved: Callable[[str], str]
) -> None:
    model = loaded(saved(family))
    image = model._vary.pipeline
    network, calls = getattr(image, "unet", None) or image.transformer, []
    network.register_forward_hook(lambda *_: calls.append(1))
    parent = np.zeros((tiny.SIDE, tiny.SIDE, 3), dtype=np.uint8)
    job = Job(steps, degree, 1.0, (tiny.SIDE, tiny.SIDE))
    with torch.no_grad():
        model.vary(job, [Item(job, 7, parent, "a")])
    assert len(calls) in (
        (run, run + 1) if family == "Stable Diffusion 1" else (run,)
    )  # PNDM starts with a double step


def test_a_degree_that_leaves_no_step_is_refused_before_the_pipeline_is_called(saved: Callable[[str], str]) -> None:
    api = api_of(saved("Stable Diffusion 1"), steps=4)
    parents = drawn(api)
    answer = varied(api, parents, 0.2)
    assert len(answer.samples) == 0
    assert set(answer.missing) == set(range(6))
    miss = answer.missing[0]
    assert isinstance(miss, Failed)
    assert not miss.retryable
    assert miss.reason == (
        "Degree 0.2 of 4 steps leaves no denoising step to run: take a degree of at least 0.25, or more steps."
    )
    with pytest.raises(RecipeError, match=r"evolution\.degree is 0\.2, and of 4 steps .*: take .* at least 0\.25"):
        api.describe_degree(0.2)
    assert api.describe_degree(0.5) == "noised and denoised, the last 2 of 4 steps"


def test_a_latent_consistency_model_runs_all_its_steps_on_a_part_of_its_schedule(saved: Callable[[str], str]) -> None:
    api = api_of(saved("Latent Consistency"), steps=4)
    parents = drawn(api)
    assert not varied(api, parents, 0.2).missing  # 10 of the 50 steps it was distilled on
    reason = varied(api, parents, 0.05).missing[0].reason
    assert reason.startswith("Degree 0.05 leaves 2 of the 50 steps that this latent consistency model")


def test_what_the_safety_checker_finds_is_refused(tmp_path: Path, saved: Callable[[str], str]) -> None:
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion(tiny.safety_checker())
    pipeline.save_pretrained(tmp_path / "strict")
    answer = drawn(api_of(str(tmp_path / "strict")))
    assert len(answer.samples) == 0
    assert set(answer.missing) == set(range(6))
    assert answer.missing[0] == Refused("the model's safety checker took the image for unsafe")

    unchecked = drawn(api_of(str(tmp_path / "strict"), safety_checker=False))
    assert not unchecked.missing
    checker = pipeline.safety_checker
    images = [Image.fromarray(pixels) for pixels in unchecked.samples.array]
    with torch.no_grad():
        pixels = pipeline.feature_extractor(images, return_tensors="pt").pixel_values
        features = checker.visual_projection(checker.vision_model(pixels)[1])
        likeness = torch.cosine_similarity(features, checker.concept_embeds[:1]).sort()
    split = int(likeness.values.diff().argmax()) + 1  # the checker rounds to a thousandth, so at the widest gap
    checker.concept_embeds_weights.data[0] = float(likeness.values[split - 1 : split + 1].mean())
    pipeline.save_pretrained(tmp_path / "halves")
    some = drawn(api_of(str(tmp_path / "halves")))
    assert set(some.missing) == set(likeness.indices[split:].tolist())
    kept = [i for i in range(6) if i not in some.missing]
    assert np.abs(levels(some) - levels(unchecked)[kept]).max() <= 1


def test_an_image_of_no_numbers_has_failed_and_may_be_tried_again(saved: Callable[[str], str]) -> None:
    model = loaded(saved("Stable Diffusion 1"))
    job = Job(3, None, 1.0, (tiny.SIDE, tiny.SIDE))
    items = [Item(job, 1, prompt="a"), Item(job, 2, prompt="b")]
    model._text.vae.decoder.conv_out.register_forward_hook(
        lambda module, args, out: out.index_fill(0, torch.tensor([1]), torch.nan)
    )
    with torch.no_grad():
        good, lost = model.sample(job, items)
    assert isinstance(good, np.ndarray)
    assert isinstance(lost, Failed)
    assert lost.retryable


def test_a_model_without_img2img_is_refused_with_a_sentence(tmp_path: Path, saved: Callable[[str], str]) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "PixArtAlphaPipeline"}')
    with pytest.raises(
        RecipeError,
        match=r"\(PixArtAlphaPipeline\) cannot answer VARIATION_API: in diff.* it can only draw, so name another",
    ):
        drawn(api_of(str(tmp_path)))
    (tmp_path / "model_index.json").write_text('{"_class_name": "DDIMPipeline"}')
    with pytest.raises(RecipeError, match=r"\(DDIMPipeline\) makes no images from text"):
        drawn(api_of(str(tmp_path)))


def test_samples_of_another_size_and_of_one_channel(saved: Callable[[str], str]) -> None:
    api = api_of(saved("Stable Diffusion 1"), image_size=20, channels=1)
    parents = drawn(api)
    assert parents.samples.array.shape == (6, 20, 20, 1)
    assert varied(api, parents, 0.4).samples.array.shape == (6, 20, 20, 1)
    wide = api_of(saved("Stable Diffusion 1"), size=(32, 48))
    assert drawn(wide).samples.array.shape == (6, 32, 48, 3)


def test_prompts_by_label_and_negative_prompts_reach_the_model(saved: Callable[[str], str]) -> None:
    model = saved("Stable Diffusion 1")
    by_label = api_of(model, prompts={"a": "xx", "b": ["yy"], "c": "zz"})
    assert list(drawn(by_label).conditions["prompt"]) == ["xx", "yy", "zz"] * 2
    plain, negative = api_of(model), api_of(model, negative_prompt="qq")
    assert moved(levels(drawn(plain)), levels(drawn(negative))) > 0
    assert moved(levels(drawn(plain)), levels(drawn(by_label))) > 0
    with pytest.raises(RecipeError, match="FluxPipeline has no use for one"):
        drawn(api_of(saved("Flux"), negative_prompt="qq"))
    with pytest.raises(RecipeError, match="negative_prompt has no effect at guidance 1"):
        api_of(model, negative_prompt="qq", guidance=1)


def test_parents_from_elsewhere_are_varied_under_a_drawn_prompt(saved: Callable[[str], str]) -> None:
    api = api_of(saved("Stable Diffusion 1"))
    images = Images(np.random.default_rng(0).integers(0, 256, (6, 25, 40, 1)).astype(np.uint8))
    answer = api.variation_api(VariationRequest(images, LABELS, Conditions(), SEEDS, 0.5))
    assert answer.samples.array.shape == (6, tiny.SIDE, tiny.SIDE, 3)
    assert list(answer.conditions["prompt"]) == [f"a photo of {label}" for label in LABELS]


@pytest.mark.parametrize("sampler", ["ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"])
def test_other_samplers(sampler: str, saved: Callable[[str], str]) -> None:
    api = api_of(saved("Stable Diffusion 1"), sampler=sampler)
    parents = drawn(api)
    own = drawn(api_of(saved("Stable Diffusion 1")))
    assert moved(levels(parents), levels(own)) > 0.5
    assert not varied(api, parents, 0.5).missing
    with pytest.raises(RecipeError, match=rf"sampler is '{sampler}', but the model has a flow"):
        drawn(api_of(saved("Flux"), sampler=sampler))


def test_slices_and_half_precision_draw_nearly_the_same(saved: Callable[[str], str]) -> None:
    plain = levels(drawn(api_of(saved("Stable Diffusion 1"))))
    sliced = drawn(api_of(saved("Stable Diffusion 1"), vae_slicing=True))
    assert np.abs(levels(sliced) - plain).max() <= 1
    half = drawn(api_of(saved("Stable Diffusion 1"), precision="bf16"))
    assert 0 < moved(levels(half), plain) < 10


def test_settings_are_checked_before_anything_is_loaded() -> None:
    for settings, said in (
        ({"steps": 0}, "steps is 0: it must be at least 1"),
        ({"sampler": "magic"}, "sampler is 'magic': it must be one of own, ddim"),
        ({"offload": "disk"}, "offload is 'disk': it must be one of none, model, sequential"),
        ({"size": 30}, r"size is \(30, 30\): a model draws multiples of 8 pixels"),
        ({"size": None, "image_size": 20}, "image_size is given, so give size, too"),
        ({"precision": "fp8"}, "precision is 'fp8': it must be one of auto, fp32, bf16, fp16"),
        ({"device": "gpu"}, "device is 'gpu': it must be auto, cpu, mps, cuda, cuda:1, or a list"),
    ):
        with pytest.raises(RecipeError, match=said):
            api_of("nobody/nothing", **settings)


def test_offloading_from_a_cpu_is_refused(saved: Callable[[str], str]) -> None:
    with pytest.raises(RecipeError, match="offload is 'model', but the model runs on the CPU already"):
        drawn(api_of(saved("Stable Diffusion 1"), offload="model"))
