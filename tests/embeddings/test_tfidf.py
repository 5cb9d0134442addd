"""TF-IDF: texts of the same subject are near, rare words count more, and public texts alone are fitted on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.tfidf import TfIdf
from pe.data.images import Images
from pe.data.texts import Texts
from pe.errors import BadTable, ContractError, RecipeError
from pe.plugins.embed import try_embedding

SUBJECTS = {
    "wine": "vineyard harvest barrel grape cellar tasting vintage cork",
    "rail": "locomotive platform signal carriage timetable conductor junction freight",
    "court": "judge verdict appeal witness prosecutor sentence hearing defendant",
}
FILLER = ["the", "and", "of", "a", "was", "in", "it", "that", "with", "for", "on", "as", "at", "by", "from"]


def written(subject: str, count: int, seed: int) -> list[str]:
    """Texts of a few words of a subject among many that any text has."""
    rng, words = np.random.default_rng(seed), SUBJECTS[subject].split()
    return [
        " ".join(rng.permutation([*rng.choice(words, 4), *rng.choice(FILLER, 20)])).capitalize() for _ in range(count)
    ]


@pytest.fixture
def public(tmp_path: Path) -> Path:
    rows = [text for seed, subject in enumerate(SUBJECTS) for text in written(subject, 30, seed)]
    (tmp_path / "public.jsonl").write_text("\n".join(json.dumps({"note": row}) for row in rows))
    return tmp_path / "public.jsonl"


def settings(public: Path, fitted: str) -> dict[str, Any]:
    files: dict[str, Any] = {"public": public, "text_column": "note", "projection": fitted}
    return {} if not fitted else files | ({"dimensions": 30} if fitted == "svd" else {})


@pytest.mark.parametrize("fitted", ["", "hash", "svd"])
def test_the_nearest_text_is_of_the_same_subject(public: Path, fitted: str) -> None:
    embedding = TfIdf(**settings(public, fitted))
    one, other = (
        embedding.embed(Texts.of([text for subject in SUBJECTS for text in written(subject, 20, seed)]))
        for seed in (8, 9)
    )
    subjects = np.repeat(np.arange(3), 20)
    assert np.mean(subjects[(one @ other.T).argmax(axis=1)] == subjects) > 0.9
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-6)
    try_embedding(embedding, Texts, (200,))


@pytest.mark.parametrize("fitted", ["", "hash", "svd"])
def test_vectors_are_the_same_in_another_process_and_of_odd_texts_too(public: Path, fitted: str) -> None:
    odd = ["", "!?", "日本語のテキスト", "مرحبا", "👩‍👩‍👧", "x" * 3000, "Vineyard"]
    code = (
        "import sys, json; from pathlib import Path\n"
        "from embeddings.tfidf import TfIdf; from pe.data.texts import Texts\n"
        "s = json.loads(sys.argv[1]); s |= {'public': Path(s['public'])} if 'public' in s else {}\n"
        "sys.stdout.buffer.write(TfIdf(**s).embed(Texts.of(json.loads(sys.argv[2]))).tobytes())"
    )
    chosen = settings(public, fitted)
    vectors = TfIdf(**chosen).embed(Texts.of(odd))
    arguments = (json.dumps(chosen, default=str), json.dumps(odd))
    again = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True).stdout
    assert again == vectors.tobytes()
    assert not vectors[0].any()
    assert np.linalg.norm(vectors[1:], axis=1) == pytest.approx(1)
    assert len(np.unique(vectors, axis=0)) == len(odd)
    assert not ((vectors != 0) & (np.abs(vectors) < 1e-8)).any()  # whose products would be denormal


def test_a_word_that_few_public_texts_have_counts_more(public: Path) -> None:
    near, far = Texts.of(["of the vineyard"]), Texts.of(["of the verdict"])
    plain, fitted = TfIdf(), TfIdf(public=public, text_column="note")
    like = [float((each.embed(near) @ each.embed(far).T).item()) for each in (plain, fitted)]
    assert like[1] < 0.5 < like[0] + 0.4
    assert TfIdf(dimensions=7).embed(near).shape == (1, 7)


def test_it_says_what_it_reads_and_reads_it_as_the_records_are(public: Path) -> None:
    embedding = TfIdf(public=public, text_column="note")
    names, texts = zip(*embedding.public_samples((9,), None), strict=True)
    assert embedding.public_paths() == (public,)
    assert (len(texts), names[0]) == (90, f"row 1 of {public}")
    assert max(len(bytes(text)) for text in texts) <= 9
    assert TfIdf().public_paths() == ()
    assert list(TfIdf().public_samples((9,), None)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dimensions": 0}, "dimensions must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"projection": "pca"}, "projection must be 'hash' or 'svd'"),
        ({"projection": "svd"}, "fitted on public texts: name them by public"),
        ({"public": Path("nowhere.csv")}, r"no public texts at nowhere\.csv"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        TfIdf(**change)


def test_what_it_cannot_embed_or_read_is_said(public: Path, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="takes texts, not Images"):
        TfIdf().embed(Images(np.zeros((1, 2, 2, 3), np.uint8)))
    with pytest.raises(BadTable, match="has no column 'text'"):
        TfIdf(public=public).embed(Texts.of(["a"]))
    (tmp_path / "one.txt").write_text("a single line")
    with pytest.raises(RecipeError, match="too few public texts for an SVD: take projection: hash"):
        TfIdf(public=tmp_path / "one.txt", projection="svd").embed(Texts.of(["a"]))
