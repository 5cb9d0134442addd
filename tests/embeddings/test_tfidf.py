"""Texts by their words: those of the same subject are near, rare words count more, public texts
alone are fitted on.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embeddings.tfidf import TfIdf
from pe.data.images import Images
from pe.data.texts import Texts
from pe.errors import BadTable, ContractError, RecipeError
from pe.plugins.specs import construct

SUBJECTS = {
    "wine": "vineyard harvest barrel grape cellar tasting vintage cork",
    "rail": "locomotive platform signal carriage timetable conductor junction freight",
    "court": "judge verdict appeal witness prosecutor sentence hearing defendant",
}
FILLER = [
    "the",
    "and",
    "of",
    "a",
    "was",
    "in",
    "it",
    "that",
    "with",
    "for",
    "on",
    "as",
    "at",
    "by",
    "from",
]


def written(subject, count, seed):
    """Texts of a few words of a subject among many that any text has."""
    rng, words = np.random.default_rng(seed), SUBJECTS[subject].split()
    return [
        " ".join(rng.permutation([*rng.choice(words, 4), *rng.choice(FILLER, 20)])).capitalize()
        for _ in range(count)
    ]


@pytest.fixture
def public(tmp_path):
    rows = [text for seed, subject in enumerate(SUBJECTS) for text in written(subject, 30, seed)]
    (tmp_path / "public.jsonl").write_text("\n".join(json.dumps({"note": row}) for row in rows))
    return tmp_path / "public.jsonl"


def ways(public):
    """Kind and settings: both embeddings without public texts and with them, and TF-IDF
    projected.
    """
    files = {"public": str(public), "text_column": "note"}
    plain = [(kind, settings) for kind in ("tfidf", "wordllama") for settings in ({}, files)]
    return [*plain, ("tfidf", files | {"projection": "svd", "dimensions": 30})]


def test_the_nearest_text_is_of_the_same_subject(public):
    batches = [
        Texts.of([text for name in SUBJECTS for text in written(name, 20, seed)]) for seed in (8, 9)
    ]
    subjects = np.repeat(np.arange(3), 20)
    for way in ways(public):
        one, other = map(construct("pe.embeddings", *way).embed, batches)
        assert np.mean(subjects[(one @ other.T).argmax(axis=1)] == subjects) > 0.9
        np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-6)


def test_vectors_are_the_same_in_another_process_and_of_odd_texts_too(public):
    odd = ["", "!?", "日本語のテキスト", "مرحبا", "👩‍👩‍👧", "x" * 3000, "Vineyard"]
    code = (
        "import sys, json; from pe.data.texts import Texts; from pe.plugins.specs import "
        "construct\n"
        "for way in json.loads(sys.argv[1]):\n"
        "    vectors = construct('pe.embeddings', *way).embed(Texts.of(json.loads(sys.argv[2])))\n"
        "    sys.stdout.buffer.write(vectors.tobytes())"
    )
    every = [construct("pe.embeddings", *way).embed(Texts.of(odd)) for way in ways(public)]
    command = [sys.executable, "-c", code, json.dumps(ways(public)), json.dumps(odd)]
    again = subprocess.run(command, capture_output=True, check=True).stdout
    assert again == b"".join(vectors.tobytes() for vectors in every)
    for vectors in every:
        assert not vectors[0].any()
        assert np.linalg.norm(vectors[1:], axis=1) == pytest.approx(1)
        assert len(np.unique(vectors, axis=0)) == len(odd)
        assert not (
            (vectors != 0) & (np.abs(vectors) < 1e-8)
        ).any()  # whose products would be denormal


def test_a_word_that_few_public_texts_have_counts_more(public):
    near, far = Texts.of(["of the vineyard"]), Texts.of(["of the verdict"])
    plain, fitted = TfIdf(), TfIdf(public=public, text_column="note")
    like = [float((each.embed(near) @ each.embed(far).T).item()) for each in (plain, fitted)]
    assert like[1] < 0.5 < like[0] + 0.4
    assert TfIdf(dimensions=7).embed(near).shape == (1, 7)


def test_it_says_what_it_reads_and_reads_it_as_the_records_are(public):
    embedding = TfIdf(public=public, text_column="note")
    names, texts = zip(*embedding.public_samples((9,), None), strict=True)
    assert embedding.public_paths() == (public,)
    assert (len(texts), names[0]) == (90, f"row 1 of {public}")
    assert max(len(bytes(text)) for text in texts) <= 9
    assert TfIdf().public_paths() == ()
    assert list(TfIdf().public_samples((9,), None)) == []


def test_what_it_cannot_embed_or_read_is_said(public, tmp_path):
    with pytest.raises(RecipeError, match="fitted on public texts: name them by public"):
        TfIdf(projection="svd")
    with pytest.raises(RecipeError, match=r"no public texts at nowhere\.csv"):
        TfIdf(public=Path("nowhere.csv"))
    with pytest.raises(ContractError, match="takes texts, not Images"):
        TfIdf().embed(Images(np.zeros((1, 2, 2, 3), np.uint8)))
    with pytest.raises(BadTable, match="has no column 'text'"):
        TfIdf(public=public).embed(Texts.of(["a"]))
    (tmp_path / "one.txt").write_text("a single line")
    with pytest.raises(RecipeError, match="too few public texts for an SVD: take projection: hash"):
        TfIdf(public=tmp_path / "one.txt", projection="svd").embed(Texts.of(["a"]))
