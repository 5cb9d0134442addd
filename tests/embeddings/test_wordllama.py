"""WordLlama: texts of like meaning are near without a shared word; its files are those that were
published.
"""

import numpy as np
import pytest
from safetensors.numpy import save

from embeddings.wordllama import TOKENIZER, VECTORS, WordLlama
from pe.data.texts import Texts
from pe.errors import MissingDependency, RecipeError

SAME = [
    ("The physician cured an ill child.", "A doctor treated the sick kids."),
    ("Shares fell as investors sold.", "Stock prices dropped on the market."),
    ("The rocket reached orbit.", "NASA launched a satellite into space."),
    ("Our team won the hockey final.", "Players celebrated their playoff goal."),
]


def test_texts_of_like_meaning_are_near_without_a_shared_word(tmp_path):
    (tmp_path / "public.txt").write_text("\n".join(text for pair in SAME for text in pair))
    for settings in ({}, {"public": tmp_path / "public.txt"}):
        one, other = (
            WordLlama(**settings).embed(Texts.of(list(texts))) for texts in zip(*SAME, strict=True)
        )
        np.testing.assert_array_equal((one @ other.T).argmax(axis=1), np.arange(len(SAME)))


@pytest.mark.parametrize(
    ("packaged", "content", "says"),
    [
        (VECTORS, save({"a": np.zeros(1)}), "not the right file: its SHA-256 is"),
        (VECTORS, b"other vectors", "cut or damaged: download"),
        (TOKENIZER, b"other words", "not the right file: its SHA-256 is"),
    ],
)
def test_another_file_or_none_is_refused_in_one_sentence(
    packaged, content, says, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("pe.plugins.weights.find_spec", lambda name: None)
        assert not WordLlama.weights_here()
        with pytest.raises(
            MissingDependency, match=r"The embedding needs wordllama, .*\[words\]'?\.$"
        ):
            packaged.find("The embedding")
    (tmp_path / "wordllama" / packaged.name).parent.mkdir(parents=True)
    (tmp_path / "wordllama" / packaged.name).write_bytes(content)
    (tmp_path / "wordllama" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match=rf"{packaged.name} is {says}"):
        WordLlama().embed(Texts.of(["a"])) if packaged is TOKENIZER else packaged.find(
            "The embedding"
        )
