"""SDS equals its defining double sum; vectors come from the usual files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pe.errors import RecipeError
from pe.evaluation.semantics import sds, word_vectors

VECTORS = {"cat": [1.0, 0.0, 0.5], "dog": [0.8, 0.3, 0.0], "truck": [0.0, -2.0, 1.0]}


def test_sds_is_the_double_sum_of_cosines() -> None:
    vectors = {name: np.array(vector) for name, vector in VECTORS.items()}
    first, second = {"cat": 0.5, "dog": 0.3, "truck": 0.2}, {"dog": 3.0, "truck": 1.0}

    def cosine(a: str, b: str) -> float:
        return float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))

    by_definition = sum(w1 * w2 / 4 * cosine(a, b) for a, w1 in first.items() for b, w2 in second.items())
    assert sds(first, second, vectors) == pytest.approx(by_definition)
    assert sds({"cat": 1}, {"cat": 7}, vectors) == pytest.approx(1)


def test_a_zero_vector_is_like_nothing() -> None:
    assert sds({"a": 1}, {"b": 1}, {"a": np.zeros(2), "b": np.ones(2)}) == 0


@pytest.fixture(params=["npz", "glove", "word2vec"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "npz":
        np.savez(tmp_path / "v.npz", words=np.array(list(VECTORS)), vectors=np.array(list(VECTORS.values())))
        return tmp_path / "v.npz"
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in VECTORS.items()]
    header = ["3 3"] if request.param == "word2vec" else []
    (tmp_path / "v.txt").write_text("\n".join(header + lines))
    return tmp_path / "v.txt"


def test_vectors_come_from_npz_glove_and_word2vec_files(file: Path) -> None:
    found = word_vectors(file, ["cat", "Truck", "dog_truck"])
    np.testing.assert_allclose(found["cat"], VECTORS["cat"])
    np.testing.assert_allclose(found["Truck"], VECTORS["truck"])
    np.testing.assert_allclose(found["dog_truck"], np.add(VECTORS["dog"], VECTORS["truck"]) / 2)


def test_a_word_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(RecipeError, match="has no vector for 'horse'"):
        word_vectors(file, ["cat", "horse"])


@pytest.mark.parametrize("content", ["cat 1 2\ndog 1\n", "cat one two\n"])
def test_damaged_vectors_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(RecipeError, match="cannot be read as word vectors"):
        word_vectors(tmp_path / "v.txt", ["cat", "dog"])


def test_a_pickle_in_an_npz_is_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", words=np.array([{}], dtype=object), vectors=np.zeros((1, 2)))
    with pytest.raises(RecipeError, match="cannot be read as word vectors"):
        word_vectors(tmp_path / "v.npz", ["cat"])
