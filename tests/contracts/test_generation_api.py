"""What every generator must do, whoever wrote it; all implementations in the repository are run through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from adapters.caption_then_draw import CaptionThenDraw
from adapters.chat import Chat
from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from adapters.glyphs import Glyphs
from adapters.http import Host
from adapters.local_text import CausalLM, MaskedLM
from adapters.pools import PublicImages, PublicTexts
from adapters.portfolio import Portfolio
from adapters.trained.diffusion import DPDM, DPFETA
from adapters.trained.dp_imgsyn import DPImgSyn
from adapters.trained.dp_sad import DPSAD
from pe.data.samples import Conditions, modality
from pe.errors import RecipeError
from pe.fit.trainer import HasRecordLoss
from pe.plugins.protocols import Answer, DrawsConditions, GenerationAPI, RandomRequest, VariationRequest, info_of
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.language import tiny as language
from tests.contracts.fitted import CLASSES, KINDS, fitted, model_of, records_of_fits
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS
from tests.endpoints.job_hosts import SERVERS, hosted
from tests.endpoints.serving import serving
from tests.generators import Shades

# of diffusers with numpy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WITHOUT_LOSS = {"central_images", "dp_merf", "dp_mepf"}
LABELS = tuple("01234012")
SEEDS = np.random.default_rng(0).integers(0, 2**63, len(LABELS)).astype(np.uint64)


def public_images(folder: Path) -> PublicImages:
    rng = np.random.default_rng(1)
    labels = np.array([str(i % 5) for i in range(60)])
    np.savez(folder / "pool.npz", images=rng.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8), labels=labels)
    return PublicImages(path=str(folder / "pool.npz"), size=8)


def public_texts(folder: Path) -> PublicTexts:
    rng = np.random.default_rng(1)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "en", "ist", "or")]
    (folder / "pool.txt").write_text("\n".join(" ".join(rng.choice(words[i // 5 :][:20], 12)) for i in range(120)))
    return PublicTexts(path=folder / "pool.txt")


def text_to_image(folder: Path) -> TextToImage:
    torch.manual_seed(0)
    tiny.stable_diffusion(faithful=True).save_pretrained(folder)
    return TextToImage(model=str(folder), prompts="{label}", steps=5, size=8, device="cpu", batch_size=1)


def causal_lm(folder: Path) -> CausalLM:
    return CausalLM(model=language.causal(folder), prompts="{label}", max_tokens=12, device="cpu", batch_size=1)


def masked_lm(folder: Path) -> MaskedLM:
    texts = [" ".join(language.WORDS[i : i + 25]) for i in range(3)]
    return MaskedLM(model=language.masked(folder), prompts=texts, device="cpu", batch_size=1)


def improved(folder: Path) -> ImprovedDiffusion:
    torch.save(weights(SMALL), folder / "small.pt")
    return ImprovedDiffusion(model=str(folder / "small.pt"), size=8, steps=5, device="cpu", batch_size=1)


def caption_then_draw(folder: Path) -> CaptionThenDraw:
    sizes, strokes = ("", "small ", "large "), ("", "thin ", "bold ")
    pool = [f'a {size}{stroke}"{digit}"' for digit in range(10) for size in sizes for stroke in strokes]
    (folder / "captions.txt").write_text("\n".join(pool))
    captions = {"kind": "public_texts", "path": folder / "captions.txt"}
    return CaptionThenDraw(captions=captions, draw={"kind": "glyphs", "size": 16})


MAKERS: dict[str, Callable[[Path], GenerationAPI]] = {
    "caption_then_draw": caption_then_draw,
    "causal_lm": causal_lm,
    "diffusion": text_to_image,
    "glyphs": lambda _: Glyphs(size=16),
    "glyphs, by prompts": lambda _: Glyphs(size=16, prompts=['a thin "{label}"', 'a bold "{label}"']),
    "improved_diffusion": improved,
    "masked_lm": masked_lm,
    "pixel_diffusion": lambda folder: PixelSpace(
        model=tiny.pixel_folder(folder, 3), steps=5, device="cpu", batch_size=1
    ),
    "portfolio": lambda _: Portfolio(of=[{"kind": "glyphs", "size": 16, "name": name} for name in ("one", "other")]),
    "public_images": public_images,
    "public_texts": public_texts,
    "the tests' own": lambda _: Shades(),
    **{kind: lambda _, kind=kind: fitted(kind) for kind in KINDS},  # type: ignore[misc]
}
CHATS = {"chat": {}, "chat, by attributes": {"attributes": {"tone": ["warm", "cool"]}, "prompts": "{tone}: {label}"}}
SURE = (TextToImage, PixelSpace, ImprovedDiffusion, DPDM, DPFETA, DPImgSyn, DPSAD, Host, Chat, MaskedLM)
"""Whose one variation of each image tells degrees 0.2 and 1 apart, by a factor of three; for others it takes 30."""


@pytest.fixture(scope="module", params=[*MAKERS, *CHATS, *HOSTS, *SERVERS])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenerationAPI]:
    folder = tmp_path_factory.mktemp("api")
    if request.param in MAKERS:
        yield MAKERS[request.param](folder)
    elif request.param in CHATS:
        given = {"model": "m", "prompts": "{label}", "key_env": None, "seed_field": "seed"} | CHATS[request.param]
        with serving(ChatServer(Script())) as url:
            yield Chat(base_url=f"{url}/v1", **given)
    elif request.param in SERVERS:
        with hosted(request.param, folder) as (made, _):
            yield made
    else:
        host = HOSTS[request.param]
        with serving(host.serve(Script())) as url:
            yield host.make(url)


@pytest.fixture(scope="module")
def parents(api: GenerationAPI) -> Answer:
    """What it answers first of all."""
    return new(api)


@pytest.fixture(scope="module")
def children(api: GenerationAPI, parents: Answer) -> Answer:
    return varied(api, parents, 0.4)


def new(api: GenerationAPI, which: slice = slice(None), salt: int = 0) -> Answer:
    seeds = SEEDS ^ np.uint64(salt)
    drawn = Conditions()
    if isinstance(api, DrawsConditions):  # as the dispatcher does: for all of them at once
        drawn = api.draw_conditions(LABELS, seeds).take(np.arange(len(SEEDS))[which])
    labels, cut = LABELS[which], seeds[which]
    parts = (RandomRequest(labels[i], cut[i], drawn.take(i)) for i in chunks(api, len(cut)))
    return together([api.random_api(part) for part in parts])


def varied(api: GenerationAPI, parents: Answer, degree: float, which: slice = slice(None), salt: int = 5) -> Answer:
    seeds = (SEEDS ^ np.uint64(salt))[which]
    samples, labels = parents.samples.take(which), LABELS[which]
    conditions = parents.conditions.take(which)
    parts = (
        VariationRequest(samples.take(i), labels[i], conditions.take(i), seeds[i], degree)
        for i in chunks(api, len(seeds))
    )
    return together([api.variation_api(part) for part in parts])


def chunks(api: GenerationAPI, count: int) -> list[slice]:
    """Where the dispatcher cuts a request."""
    most = api.capabilities.max_chunk
    return [slice(start, start + most) for start in range(0, count, most)]


def together(answers: list[Answer]) -> Answer:
    """Chunks, of which each has an answer without misses if there are several."""
    if len(answers) == 1:
        return answers[0]
    assert not any(answer.missing for answer in answers)
    samples = type(answers[0].samples)(np.concatenate([answer.samples.array for answer in answers]))
    return Answer(samples, Conditions.concatenate([answer.conditions for answer in answers]))


def same(one: Answer, other: Answer) -> bool:
    return np.array_equal(one.samples.array, other.samples.array) and all(
        np.array_equal(one.conditions[name], other.conditions[name]) for name in one.conditions
    )


def test_it_is_a_generation_api(api: GenerationAPI) -> None:
    assert isinstance(api, GenerationAPI)
    assert api.capabilities.max_chunk >= 1
    assert api.capabilities.concurrency >= 1


def test_it_answers_every_item_with_a_sample_of_its_modality_and_of_one_shape(
    api: GenerationAPI, parents: Answer, children: Answer
) -> None:
    for each in (parents, children):
        assert isinstance(each.samples, modality(info_of(api).modality))
        assert len(each.samples) + len(each.missing) == len(LABELS)
        assert each.conditions.rows in (None, len(each.samples))
    assert children.samples.shape == parents.samples.shape


def test_the_same_request_has_the_same_answer(api: GenerationAPI, parents: Answer, children: Answer) -> None:
    assert same(new(api), parents)
    assert same(varied(api, parents, 0.4), children)


def test_other_seeds_have_other_answers(api: GenerationAPI, parents: Answer) -> None:
    assert not same(parents, new(api, salt=1))
    some = slice(4)
    assert not same(varied(api, parents, 0.9, some, salt=1), varied(api, parents, 0.9, some, salt=2))


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_an_item_does_not_depend_on_its_chunk(api: GenerationAPI, parents: Answer, children: Answer, cut: int) -> None:
    parts = [new(api, part) for part in (slice(cut), slice(cut, None))]
    assert np.array_equal(parents.samples.array, np.concatenate([part.samples.array for part in parts]))
    parts = [varied(api, parents, 0.4, part) for part in (slice(cut), slice(cut, None))]
    assert np.array_equal(children.samples.array, np.concatenate([part.samples.array for part in parts]))


def test_degree_zero_changes_nothing(api: GenerationAPI, parents: Answer) -> None:
    np.testing.assert_array_equal(varied(api, parents, 0.0).samples.array, parents.samples.array)


def test_a_larger_degree_moves_further_on_average(api: GenerationAPI, parents: Answer) -> None:
    def moved(degree: float) -> float:
        salts = range(100, 101 if isinstance(api, SURE) else 130)  # at 0 a parent would be drawn again
        return float(np.mean([varied(api, parents, degree, salt=s).samples.distances(parents.samples) for s in salts]))

    if isinstance(api, CausalLM):  # its random weights heed nothing that they are told
        assert varied(api, parents, 0.4).samples.distances(parents.samples).max() > 0
    else:
        assert 0 < moved(0.2) < moved(1.0)


def test_a_request_is_left_as_it_was(api: GenerationAPI) -> None:
    parents = new(api)  # that nothing else has had in its hands
    before = parents.samples.array.copy(), SEEDS.copy()
    varied(api, parents, 0.7)
    np.testing.assert_array_equal(parents.samples.array, before[0])
    np.testing.assert_array_equal(SEEDS, before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_fitted_model_on_a_record_depends_on_no_other(kind: str) -> None:
    api, folder, records = fitted(kind), model_of(kind), records_of_fits()
    if not isinstance(api, HasRecordLoss):
        assert kind in WITHOUT_LOSS
        return
    samples, names = records.samples[:12], [CLASSES[label] for label in records.labels[:12]]
    losses = api.record_losses(folder, samples, names)
    assert losses.shape == (len(names),)
    assert np.isfinite(losses).all()
    assert len(np.unique(losses)) > len(names) // 2
    some = slice(5, 8)
    assert (api.record_losses(folder, samples[some], names[some]) == losses[some]).all()
    with pytest.raises(RecipeError, match="'nine' is none of them"):
        api.record_losses(folder, samples[:1], ["nine"])
    with pytest.raises(RecipeError):
        api.record_losses(folder / "nowhere", samples[:1], names[:1])
