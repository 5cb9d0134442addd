"""Sentence embeddings: what the library itself gives, as a function of one text alone, to the last bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest

from embeddings.sentence_transformers import SentenceTransformers
from pe.data.images import Images
from pe.data.texts import Texts
from pe.errors import ContractError, RecipeError
from pe.private import PrivateDataset, embed_private
from tests.embeddings.sentences import LIMIT, encoder, incomplete, prompted, static, with_code
from tests.endpoints.chat_server import WORDS

KINDS: dict[str, Callable[[Path], str]] = {
    "the mean of its tokens": encoder,
    "its last token": lambda folder: encoder(folder, pooling="lasttoken"),
    "a plain encoder": lambda folder: encoder(folder, modules=False),
    "with a prompt of its own": lambda folder: prompted(folder, "query: "),
    "static": static,
}


@pytest.fixture(scope="module", params=list(KINDS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return KINDS[request.param](tmp_path_factory.mktemp("model"))


def written(*lengths: int) -> list[str]:
    """Texts of so many words."""
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def embedding(model: str, **settings: Any) -> SentenceTransformers:
    return SentenceTransformers(model=model, device="cpu", **{"batch_size": 4, "offline": True} | settings)


def of_library(model: str, texts: list[str], **settings: Any) -> np.ndarray:
    """What the library gives for each text alone."""
    from sentence_transformers import SentenceTransformer

    made = SentenceTransformer(model, device="cpu")
    return np.concatenate([made.encode([text], **settings) for text in texts])


def test_a_text_has_the_vector_that_the_library_itself_gives(model: str) -> None:
    texts = written(1, 3, 9, 20, 30, 44, 60, 100)
    vectors = embedding(model).embed(Texts.of(texts))
    np.testing.assert_allclose(vectors, of_library(model, texts), rtol=1e-4, atol=1e-5)
    assert len(np.unique(vectors, axis=0)) == len(texts)
    assert embedding(model).embed(Texts.of([])).shape == (0, vectors.shape[1])


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_no_text_beside_it_changes_a_vector(model: str, batch_size: int) -> None:
    """Short and long ones, some as long as the model takes: a library may skip the mask where all of them are."""
    texts = written(100, 2, 100, 9, 100, 100, 12, 30, 100, 100, 100, 40)
    made = embedding(model, batch_size=batch_size)
    alone = np.concatenate([made.embed(Texts.of([text])) for text in texts])
    unpadded: list[bool] = []

    def look(_: object, given: tuple[dict[str, Any]]) -> None:
        mask = given[0].get("attention_mask")
        unpadded.append(mask is not None and len(mask) > 1 and bool(mask.all()))

    made._copies[0].network.module.register_forward_pre_hook(look)
    for order in (range(len(texts)), reversed(range(len(texts))), [0, 2, 4], [0, 2, 4, 5, 8, 9, 10], [0, 0, 0, 0, 1]):
        chosen = list(order)
        np.testing.assert_array_equal(made.embed(Texts.of([texts[i] for i in chosen])), alone[chosen])
    assert not any(unpadded)


def test_removing_a_record_leaves_all_other_private_vectors_bit_identical(model: str) -> None:
    records = Texts.of(written(*np.random.default_rng(0).integers(1, 60, 20)))
    made = embedding(model)

    def vectors(kept: list[int]) -> np.ndarray:
        return embed_private(
            PrivateDataset.of(records.take(kept), np.zeros(len(kept)), classes=["a"]), made, None
        ).vectors

    whole = vectors(list(range(20)))
    for gone in (0, 15, 16, 19):
        kept = [i for i in range(20) if i != gone]
        np.testing.assert_array_equal(vectors(kept), whole[kept])


def test_prompts_and_the_number_of_tokens_are_as_the_recipe_says(tmp_path: Path) -> None:
    model, texts = prompted(tmp_path, "query: "), written(5, 60)
    given = embedding(model, prompt="topic of ").embed(Texts.of(texts))
    np.testing.assert_allclose(given, of_library(model, texts, prompt="topic of "), rtol=1e-4, atol=1e-5)
    none = embedding(model, prompt="").embed(Texts.of(texts))
    np.testing.assert_allclose(none, of_library(model, texts, prompt=""), rtol=1e-4, atol=1e-5)
    short = embedding(model, max_tokens=8, prompt="")
    first = " ".join(texts[1].split()[:10])
    np.testing.assert_array_equal(short.embed(Texts.of([texts[1]])), short.embed(Texts.of([first])))
    with pytest.raises(RecipeError, match=f"max_tokens is {LIMIT + 1}, and the model takes {LIMIT}: give that"):
        embedding(model, max_tokens=LIMIT + 1).embed(Texts.of(texts))
    with pytest.raises(RecipeError, match="max_tokens must be at least 1, not 0"):
        embedding(model, max_tokens=0)


def test_a_model_that_lacks_weights_is_refused_and_code_beside_one_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="lacks some of its weights: name one that has them all"):
        embedding(incomplete(tmp_path / "incomplete")).embed(Texts.of(["a"]))
    told = tmp_path / "told"
    with pytest.raises(RecipeError, match=r"cannot be loaded .*own\.Own.*: name a folder, or OWNER/NAME") as caught:
        embedding(with_code(tmp_path / "code", told)).embed(Texts.of(["a"]))
    assert "\n" not in str(caught.value)
    assert not told.exists()
    with pytest.raises(ContractError, match="'sentence_transformers' takes texts, not Images"):
        embedding(str(tmp_path)).embed(Images(np.zeros((1, 2, 2, 3), np.uint8)))


def test_offline_a_repository_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    made, texts = encoder(tmp_path / "made"), Texts.of(written(7))
    repository = tmp_path / "models--some--encoder"
    shutil.copytree(made, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    np.testing.assert_array_equal(embedding("some/encoder").embed(texts), embedding(made).embed(texts))
