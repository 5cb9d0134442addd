"""Sentence embeddings: what the library itself gives, as a function of one text alone, to the last
bit.
"""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embeddings.sentence_transformers import SentenceTransformers
from pe.data.images import Images
from pe.data.texts import Texts
from pe.errors import ContractError, RecipeError
from tests.embeddings.sentences import LIMIT, encoder, incomplete, prompted, static, with_code
from tests.endpoints.chat_server import WORDS

KINDS = {
    "the mean of its tokens": encoder,
    "its last token": lambda folder: encoder(folder, pooling="lasttoken"),
    "a plain encoder": lambda folder: encoder(folder, modules=False),
    "with a prompt of its own": lambda folder: prompted(folder, "query: "),
    "static": static,
}


@pytest.fixture(scope="module", params=list(KINDS))
def model(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("model"))


def written(*lengths):
    """Texts of so many words."""
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def embedding(model, **settings):
    return SentenceTransformers(
        model=model, device="cpu", **{"batch_size": 4, "offline": True} | settings
    )


def assert_of_library(vectors, model, texts, **settings):
    """They are what the library gives for each text alone."""
    made = SentenceTransformer(model, device="cpu")
    expected = np.concatenate([made.encode([text], **settings) for text in texts])
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)


def test_a_text_has_the_vector_that_the_library_itself_gives(model):
    texts = written(1, 3, 9, 20, 30, 44, 60, 100)
    vectors = embedding(model).embed(Texts.of(texts))
    assert_of_library(vectors, model, texts)
    assert len(np.unique(vectors, axis=0)) == len(texts)
    assert embedding(model).embed(Texts.of([])).shape == (0, vectors.shape[1])


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_no_text_beside_it_changes_a_vector(model, batch_size):
    """Short and long ones, some as long as the model takes: a library may skip the mask where all
    of them are.
    """
    texts = written(100, 2, 100, 9, 100, 100, 12, 30, 100, 100, 100, 40)
    made = embedding(model, batch_size=batch_size)
    alone = np.concatenate([made.embed(Texts.of([text])) for text in texts])
    unpadded = []

    def look(_, given):
        mask = given[0].get("attention_mask")
        unpadded.append(mask is not None and len(mask) > 1 and bool(mask.all()))

    made._copies[0].network.module.register_forward_pre_hook(look)
    for order in (
        range(len(texts)),
        reversed(range(len(texts))),
        [0, 2, 4],
        [0, 2, 4, 5, 8, 9, 10],
        [0, 0, 0, 0, 1],
    ):
        chosen = list(order)
        np.testing.assert_array_equal(
            made.embed(Texts.of([texts[i] for i in chosen])), alone[chosen]
        )
    assert not any(unpadded)


def test_prompts_and_the_number_of_tokens_are_as_the_recipe_says(tmp_path):
    model, texts = prompted(tmp_path, "query: "), written(5, 60)
    for prompt in ("topic of ", ""):
        assert_of_library(
            embedding(model, prompt=prompt).embed(Texts.of(texts)), model, texts, prompt=prompt
        )
    short = embedding(model, max_tokens=8, prompt="")
    first = " ".join(texts[1].split()[:10])
    np.testing.assert_array_equal(short.embed(Texts.of([texts[1]])), short.embed(Texts.of([first])))
    with pytest.raises(
        RecipeError, match=f"max_tokens is {LIMIT + 1}, and the model takes {LIMIT}: give that"
    ):
        embedding(model, max_tokens=LIMIT + 1).embed(Texts.of(texts))


def test_a_model_that_lacks_weights_is_refused_and_code_beside_one_is_not_run(tmp_path):
    with pytest.raises(RecipeError, match="lacks some of its weights: name one that has them all"):
        embedding(incomplete(tmp_path / "incomplete")).embed(Texts.of(["a"]))
    told = tmp_path / "told"
    with pytest.raises(
        RecipeError, match=r"cannot be loaded .*own\.Own.*: name a folder, or OWNER/NAME"
    ) as caught:
        embedding(with_code(tmp_path / "code", told)).embed(Texts.of(["a"]))
    assert "\n" not in str(caught.value)
    assert not told.exists()
    with pytest.raises(ContractError, match="'sentence_transformers' takes texts, not Images"):
        embedding(str(tmp_path)).embed(Images(np.zeros((1, 2, 2, 3), np.uint8)))
