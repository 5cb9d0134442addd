"""What every generator must do, whoever wrote it; all implementations in the repository are run
through it.
"""

from functools import partial

import numpy as np
import pytest
import torch

from pe.data.samples import Conditions, modality
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.fit.trainer import HasRecordLoss
from pe.plugins.protocols import (
    Answer,
    Generator,
    RandomRequest,
    VariationRequest,
    as_generator,
    info_of,
)
from pe.plugins.specs import construct
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.language import tiny as language
from tests.contracts.fitted import CLASSES, KINDS, WITHOUT_LOSS, fitted, model_of, records_of_fits
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.hosts import HOSTS
from tests.endpoints.job_hosts import SERVERS, hosted
from tests.endpoints.serving import serving
from tests.generators import Shades

# of diffusers with numpy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LABELS = tuple("01234")
SEEDS = np.random.default_rng(0).integers(0, 2**63, len(LABELS)).astype(np.uint64)
ONE = {"device": "cpu", "batch_size": 1}


def pool_of_images(folder):
    rng = np.random.default_rng(1)
    labels = np.array([str(i % 5) for i in range(60)])
    np.savez(
        folder / "pool.npz",
        images=rng.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8),
        labels=labels,
    )
    return {"path": str(folder / "pool.npz"), "size": 8}


def pool_of_rows(folder):
    (folder / "pool.csv").write_text(
        "\n".join(["a,b,c", *(f"{i},{i // 9},{i // 30}" for i in range(120))])
    )
    columns = {name: {"kind": "integer", "min": 0, "max": 119} for name in "abc"}
    return {"path": folder / "pool.csv", "columns": columns}


def pool_of_texts(folder):
    rng = np.random.default_rng(1)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "en", "ist", "or")]
    (folder / "pool.txt").write_text(
        "\n".join(" ".join(rng.choice(words[i // 5 :][:20], 12)) for i in range(120))
    )
    return {"path": folder / "pool.txt"}


def stable_diffusion(folder):
    torch.manual_seed(0)
    tiny.stable_diffusion(faithful=True).save_pretrained(folder)
    return {"model": str(folder), "prompts": "{label}", "steps": 5, "size": 8} | ONE


def improved_diffusion(folder):
    torch.save(weights(SMALL), folder / "small.pt")
    return {"model": str(folder / "small.pt"), "size": 8, "steps": 5} | ONE


def captions(folder):
    sizes, strokes = ("", "small ", "large "), ("", "thin ", "bold ")
    pool = [
        f'a {size}{stroke}"{digit}"' for digit in range(10) for size in sizes for stroke in strokes
    ]
    (folder / "captions.txt").write_text("\n".join(pool))
    written = {"kind": "public_texts", "path": folder / "captions.txt"}
    return {
        "captions": written,
        "draw": stable_diffusion(folder / "model")
        | {"kind": "diffusion", "prompts": "{caption}", "steps": 1},
    }


TEXTS = [" ".join(language.WORDS[i : i + 25]) for i in range(3)]
LOCAL = {
    "caption_then_draw": captions,
    "causal_lm": lambda folder: (
        {"model": language.causal(folder), "prompts": "{label}", "max_tokens": 12} | ONE
    ),
    "diffusion": stable_diffusion,
    "glyphs": lambda _: {"size": 16},
    "improved_diffusion": improved_diffusion,
    "masked_lm": lambda folder: {"model": language.masked(folder), "prompts": TEXTS} | ONE,
    "pixel_diffusion": lambda folder: {"model": tiny.pixel_folder(folder, 3), "steps": 5} | ONE,
    "portfolio": lambda _: {
        "of": [{"kind": "glyphs", "size": 16, "name": name} for name in ("one", "other")]
    },
    "public_images": pool_of_images,
    "public_table": pool_of_rows,
    "public_texts": pool_of_texts,
}
"""Kind → its settings."""
CHATS = {
    "chat": {},
    "chat, by attributes": {"attributes": {"tone": ["warm", "cool"]}, "prompts": "{tone}: {label}"},
}
SURE = {
    "diffusion",
    "pixel_diffusion",
    "improved_diffusion",
    "masked_lm",
    "dpdm",
    "dp_feta",
    "dp_imgsyn",
    "dp_sad",
}
SURE |= {*CHATS, *HOSTS, *SERVERS}
"""Whose one variation of each image tells degrees 0.2 and 1 apart, by a factor of three; for others
it takes 30."""


@pytest.fixture(scope="module", params=["the tests' own", *LOCAL, *KINDS, *CHATS, *HOSTS, *SERVERS])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def api(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    if kind in LOCAL:
        yield construct("pe.adapters", kind.partition(",")[0], LOCAL[kind](folder))
    elif kind in KINDS:
        yield fitted(kind)
    elif kind in CHATS:
        given = {"model": "m", "prompts": "{label}", "key_env": None, "seed_field": "seed"} | CHATS[
            kind
        ]
        with serving(ChatServer()) as url:
            yield construct("pe.adapters", "chat", given | {"base_url": f"{url}/v1"})
    elif kind in SERVERS:
        with hosted(kind, folder) as (made, _):
            yield made
    elif kind in HOSTS:
        with serving(HOSTS[kind].serve(None)) as url:
            yield HOSTS[kind].make(url)
    else:
        yield as_generator(Shades())


@pytest.fixture(scope="module")
def parents(api):
    """What it answers first of all."""
    return new(api)


@pytest.fixture(scope="module")
def children(api, parents):
    return varied(api, parents, 0.4)


def new(api, which=slice(None), salt=0):
    seeds = SEEDS ^ np.uint64(salt)
    drawn = api.draw_conditions(LABELS, seeds)  # as the dispatcher does: for all of them at once
    drawn = drawn.take(np.arange(len(SEEDS))[which])
    labels, cut = LABELS[which], seeds[which]
    return together(
        [
            api.random_api(RandomRequest(labels[i], cut[i], drawn.take(i)))
            for i in chunks(api, len(cut))
        ]
    )


def varied(api, parents, degree, which=slice(None), salt=5):
    seeds, labels = (SEEDS ^ np.uint64(salt))[which], LABELS[which]
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    parts = [
        (samples.take(i), labels[i], conditions.take(i), seeds[i], degree)
        for i in chunks(api, len(seeds))
    ]
    return together([api.variation_api(VariationRequest(*part)) for part in parts])


def chunks(api, count):
    """Where the dispatcher cuts a request."""
    most = api.capabilities.max_chunk
    return [slice(start, start + most) for start in range(0, count, most)]


def together(answers):
    """Chunks, of which each has an answer without misses if there are several."""
    if len(answers) == 1:
        return answers[0]
    assert not any(answer.missing for answer in answers)
    samples = type(answers[0].samples)(np.concatenate([answer.samples.array for answer in answers]))
    return Answer(samples, Conditions.concatenate([answer.conditions for answer in answers]))


def same(one, other):
    return np.array_equal(one.samples.array, other.samples.array) and all(
        np.array_equal(one.conditions[name], other.conditions[name]) for name in one.conditions
    )


def test_it_answers_every_item_with_a_sample_of_its_modality_and_of_one_shape(
    api, parents, children
):
    assert isinstance(api, Generator)
    assert min(api.capabilities.max_chunk, api.capabilities.concurrency) >= 1
    for each in (parents, children):
        assert isinstance(each.samples, modality(info_of(api).modality))
        assert len(each.samples) + len(each.missing) == len(LABELS)
        assert each.conditions.rows in (None, len(each.samples))
    assert children.samples.shape == parents.samples.shape


def test_other_seeds_have_other_answers(api, parents):
    some = slice(3)
    assert not same(parents, new(api, salt=1))
    assert not same(
        varied(api, parents, 0.9, some, salt=1), varied(api, parents, 0.9, some, salt=2)
    )


def test_an_item_does_not_depend_on_its_chunk_or_on_what_was_asked_before(api, parents, children):
    for whole, ask in (
        (parents, partial(new, api)),
        (children, partial(varied, api, parents, 0.4)),
    ):
        assert same(together([ask(slice(2)), ask(slice(2, None))]), whole)


def test_degree_zero_changes_nothing_and_a_request_is_left_as_it_was(api):
    parents, some = new(api, slice(3)), slice(3)  # that nothing else has had in its hands
    before = parents.samples.array.copy(), SEEDS.copy()
    np.testing.assert_array_equal(varied(api, parents, 0.0, some).samples.array, before[0])
    varied(api, parents, 0.7, some)
    np.testing.assert_array_equal(parents.samples.array, before[0])
    np.testing.assert_array_equal(SEEDS, before[1])


def apart(one, other):
    """Return the distances of samples, or of the captions that they are drawn from: random weights
    heed no caption.
    """
    if "caption" not in one.conditions:
        return one.samples.distances(other.samples)
    texts, others = (Texts.of(each.conditions["caption"].tolist(), 100) for each in (one, other))
    return texts.distances(others)


def test_a_larger_degree_moves_further_on_average(kind, api, parents, children):
    def moved(degree):
        salts = range(100, 101 if kind in SURE else 130)  # at 0 a parent would be drawn again
        return float(np.mean([apart(varied(api, parents, degree, salt=s), parents) for s in salts]))

    if kind == "causal_lm":  # its random weights heed nothing that they are told
        assert children.samples.distances(parents.samples).max() > 0
    else:
        assert 0 < moved(0.2) < moved(1.0)


@pytest.mark.parametrize("fit", KINDS)
def test_the_loss_of_a_fitted_model_on_a_record_depends_on_no_other(fit):
    api, folder, records = fitted(fit), model_of(fit), records_of_fits()
    if not isinstance(api, HasRecordLoss):
        assert fit in WITHOUT_LOSS
        return
    samples, names = records.samples[:12], [CLASSES[label] for label in records.labels[:12]]
    losses = api.record_losses(folder, samples, names)
    assert losses.shape == (len(names),)
    assert np.isfinite(losses).all()
    assert len(np.unique(losses)) > len(names) // 2
    some = slice(5, 8)
    assert (api.record_losses(folder, samples[some], names[some]) == losses[some]).all()
    with pytest.raises(RecipeError, match="not for 'nine'"):
        api.record_losses(folder, samples[:1], ["nine"])
