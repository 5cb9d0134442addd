"""What every embedding must do; all implementations in the repository are run through it."""

import numpy as np
import pytest

from embeddings.http import OpenAIEmbeddings
from embeddings.pixels import Pixels
from embeddings.tfidf import TfIdf
from embeddings.wordllama import WordLlama
from pe.data.images import Images
from pe.data.texts import Texts
from pe.errors import ContractError
from pe.plugins.embed import check_vectors, try_embedding
from pe.plugins.protocols import Embedding, Vectors, info_of
from tests.embeddings.networks import networks
from tests.endpoints.embeddings_server import TextEmbeddingsServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.generators import Mean

EMBEDDINGS = {
    "pixels": Pixels(size=12, batch_size=8),
    "pyramid": Pixels(features="pyramid", size=12, batch_size=8),
    "gradients": Pixels(features="gradients", size=12, cells=3, batch_size=8),
    "tfidf": TfIdf(batch_size=8),
    "wordllama": WordLlama(batch_size=8),
    "the tests' own": Mean(),
}
OTHERS = (
    "dinov2",
    "efficientnet_lite",
    "inception",
    "open_clip",
    "sentence_transformers",
    "static",
)
ON_PUBLIC_TEXTS = ("hash", "svd", "centred")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All of them; the last over an endpoint that counts words."""
    public = tmp_path_factory.mktemp("public") / "texts.txt"
    public.write_text("\n".join(texts(60, seed=5).strings))
    common = {"public": public, "batch_size": 8}
    on_texts = {name: TfIdf(projection=name, dimensions=20, **common) for name in ("hash", "svd")}
    on_texts["centred"] = WordLlama(**common)
    given = {"model": "m", "trusted_with_private_data": True, "key_env": None, "batch_size": 8}
    with serving(TextEmbeddingsServer(Script())) as url:
        served = {"openai_embeddings": OpenAIEmbeddings(base_url=f"{url}/v1", **given)}
        yield EMBEDDINGS | networks(tmp_path_factory.mktemp("weights")) | on_texts | served


@pytest.fixture(params=[*EMBEDDINGS, *OTHERS, *ON_PUBLIC_TEXTS, "openai_embeddings"])
def embedding(request, made):
    return made[request.param]


def images(count, seed=0):
    return Images(np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8))


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return Texts.of(
        [" ".join("".join(rng.choice(list("abcde"), 3)) for _ in range(9)) for _ in range(count)],
        60,
    )


def samples(embedding, count, seed=0):
    """Different ones, of the embedding's modality."""
    return {"images": images, "texts": texts}[info_of(embedding).modality](count, seed)


def test_it_answers_float32_rows_and_passes_the_trial_before_a_run(embedding):
    assert isinstance(embedding, Embedding)
    three = samples(embedding, 3)
    vectors = check_vectors(embedding, three)
    assert np.isfinite(vectors).all()
    assert len(np.unique(vectors, axis=0)) == 3
    try_embedding(embedding, type(three), three.shape)


def test_a_row_does_not_depend_on_the_others_in_its_block_nor_on_its_place(embedding):
    """Removing a record moves those after it up by one place."""
    size = embedding.batch_size
    block, other = samples(embedding, size), samples(embedding, size, seed=1)
    vectors, half = embedding.embed(block), size // 2
    mixed = type(block)(np.concatenate([block.array[:half], other.array[half:]]))
    np.testing.assert_array_equal(vectors[:half], embedding.embed(mixed)[:half])
    moved = np.roll(np.arange(size), -1)
    np.testing.assert_array_equal(embedding.embed(block.take(moved)), vectors[moved])


def test_samples_are_left_as_they_were_and_nothing_is_kept_between_calls(embedding):
    given = samples(embedding, 2)
    first = embedding.embed(given)
    np.testing.assert_array_equal(given.array, samples(embedding, 2).array)
    embedding.embed(samples(embedding, 2, seed=9))
    np.testing.assert_array_equal(embedding.embed(given), first)


class Broken:
    """Pixels, of which a test breaks the promise of an embedding."""

    def __init__(self, rule, batch_size=16):
        self._rule, self.batch_size = rule, batch_size
        self.calls = 0

    def embed(self, samples):
        self.calls += 1
        return self._rule(samples.pixels.reshape(len(samples), -1).astype(np.float32)).astype(
            np.float32
        )


def unlike_before():
    seen: list[Vectors] = []

    def rule(e):
        seen.append(e.mean(0))
        return e - np.mean(seen, axis=0)

    return rule


ALONE = "another vector when the others in its block change"
RULES = {
    "the mean of the block is taken off": (lambda: lambda e: e - e.mean(0), ALONE),
    "a twentieth of the block's mean is mixed in": (lambda: lambda e: e + 0.05 * e.mean(0), ALONE),
    "sums over the block": (
        lambda: lambda e: np.cumsum(e, axis=0),
        "when the others|at different places",
    ),
    "the place is in the vector": (
        lambda: lambda e: e + 5 * np.arange(len(e))[:, None],
        "at different places",
    ),
    "earlier blocks are remembered": (unlike_before, ALONE),
    "always the same vector": (lambda: np.ones_like, "gives different images the same vector"),
    "no number": (lambda: lambda e: e * np.nan, "no finite vector for any of 16 made-up images"),
}


@pytest.mark.parametrize("name", list(RULES))
def test_an_embedding_that_breaks_its_promise_is_refused_on_public_samples(name):
    made, sentence = RULES[name]
    broken = Broken(made())
    with pytest.raises(ContractError, match=sentence) as error:
        try_embedding(broken, Images, (8, 8, 3))
    assert "\n" not in str(error.value)
    assert broken.calls <= 2


def test_what_a_real_network_s_arithmetic_does_to_a_vector_refuses_none():
    """Half precision, rounded anew at each call, as of an endpoint; and an image that the embedding
    fails on.
    """
    rng = np.random.default_rng(0)

    def rounded(e):
        return e * (1 + rng.normal(scale=1e-3, size=e.shape))

    def failing_on_noise(e):
        if e.std(axis=1).max() > 72:
            raise ValueError("no face")
        return e

    for rule in (rounded, failing_on_noise):
        for size in (1, 2, 16, 64):
            try_embedding(Broken(rule, size), Images, (8, 8, 3))


@pytest.mark.parametrize("size", [1, 2, 16])
def test_an_embedding_of_any_block_size_is_tried_on_few_blocks(size):
    whole = Broken(lambda e: e, size)
    try_embedding(whole, Images, (8, 8, 3))
    assert whole.calls == {1: 4, 2: 3, 16: 2}[size]
    with pytest.raises(ContractError, match=ALONE if size > 1 else "the same vector"):
        try_embedding(Broken(lambda e: e - e.mean(0), size), Images, (8, 8, 3))
