"""PublicTexts: a pool of public texts and its neighbourhoods."""

import csv
import json

import numpy as np
import pytest

from adapters.pools import PublicTexts
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.errors import BadSample, BadTable, RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest

WORDS = [f"word{i}" for i in range(60)]


def seeds(count, start=0):
    return np.random.default_rng(start).integers(0, 2**64, count, dtype=np.uint64)


def sliding(path):
    """Fifty texts of ten words: the neighbours of i, which shares nine words with each, are i ± 1."""
    path.write_text("\n".join(" ".join(WORDS[i : i + 10]) for i in range(50)))
    return path


def deal(api, *labels):
    """New samples, as the dispatcher asks for them."""
    numbers = seeds(len(labels))
    return api.random_api(RandomRequest(labels, numbers, api.draw_conditions(labels, numbers)))


def vary(api, parents, degree, label=""):
    texts, count = Texts.of([""] * len(parents)), len(parents)
    return api.variation_api(
        VariationRequest(texts, (label,) * count, Conditions({"pool": parents}), seeds(count), degree)
    )


def test_the_degree_is_the_share_of_the_pool_that_counts_as_near(tmp_path):
    pool = PublicTexts(path=sliding(tmp_path / "pool.txt"))
    for degree, reach in ((0.04, 1), (0.2, 5)):
        chosen = vary(pool, np.full(300, 25), degree).conditions["pool"]
        assert set(chosen) == set(range(25 - reach, 26 + reach))


def test_copies_and_texts_without_words_stay_apart(tmp_path):
    (tmp_path / "pool.txt").write_text("\n".join(["the same"] * 5 + ["!?", "..."]))
    api = PublicTexts(path=tmp_path / "pool.txt")
    assert set(vary(api, np.full(100, 3), 1 / 6).conditions["pool"]) == {3, 0}
    assert set(vary(api, np.full(100, 5), 1 / 6).conditions["pool"]) == {5, 0}


def write(folder, form):
    """Three texts labelled `a` and two labelled `b`; the settings that read them."""
    rows = [(f"text {i} of {label}", label) for i in range(3) for label in "ab"][:5]
    if form == "folder":
        for i, (text, label) in enumerate(rows):
            (folder / "pool" / label).mkdir(parents=True, exist_ok=True)
            (folder / "pool" / label / f"{i}.txt").write_text(text)
        (folder / "pool" / ".hidden.txt").write_text("no")
        return {"path": folder / "pool"}
    if form == "labels.csv":
        (folder / "pool").mkdir()
        for i, (text, _) in enumerate(rows):
            (folder / "pool" / f"{i}.txt").write_text(text)
        lines = [f"{i}.txt,{label}" for i, (_, label) in enumerate(rows)]
        (folder / "pool" / "labels.csv").write_text("\n".join(["file,label", *lines]))
        return {"path": folder / "pool"}
    if form == "jsonl":
        (folder / "pool.jsonl").write_text("\n".join(json.dumps({"t": text, "l": label}) for text, label in rows))
    else:
        with (folder / "pool.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("t", "l"), *rows, ("", "a")])
    return {"path": folder / f"pool.{form}", "text_column": "t", "label_column": "l"}


@pytest.mark.parametrize("form", ["folder", "labels.csv", "jsonl", "csv"])
def test_by_label_each_label_draws_from_its_own_texts(tmp_path, form):
    api = PublicTexts(**write(tmp_path, form), by_label=True)
    assert (len(api), api.info.distinct, api.info.by_label) == (5, 3, True)
    answer = deal(api, *"ab" * 6)
    assert [text[-1] for text in answer.samples.strings] == list("ab" * 6)
    b = int(answer.conditions["pool"][1])
    assert {text[-1] for text in vary(api, np.full(30, b), 1.0, "b").samples.strings} == {"b"}
    with pytest.raises(RecipeError, match="no texts of label 'c'; its labels are 'a', 'b'"):
        api.check_labels(["a", "c"])


def test_windows_are_the_pool_and_what_they_are_cut_from_is_compared_too(tmp_path):
    (tmp_path / "book.txt").write_text("\n\n".join(WORDS[:22]))
    api = PublicTexts(path=tmp_path / "book.txt", words=5)
    assert set(deal(api, *[""] * 4).samples.strings) == {" ".join(WORDS[i : i + 5]) for i in range(0, 20, 5)}
    short = PublicTexts(path=tmp_path / "book.txt", words=30, longest=20)
    assert deal(short, "").samples.strings == ["word0 word1 word2 wo"]
    texts = [bytes(text).decode() for _, text in api.public_samples((200,), None)]
    assert texts == [*WORDS[:22], *(" ".join(WORDS[i : i + 5]) for i in range(0, 20, 5))]


def test_texts_are_read_as_private_ones_are(tmp_path):
    (tmp_path / "pool.csv").write_bytes("text\n  cafe\u0301 \x07\n\n日本語\n".encode())
    api = PublicTexts(path=tmp_path / "pool.csv", longest=6)
    assert vary(api, np.arange(2), 0.0).samples.strings == ["café", "日本"]
    assert [bytes(text).decode() for _, text in api.public_samples((99,), None)] == ["café", "日本語"]


@pytest.mark.parametrize(
    ("name", "content", "error", "sentence"),
    [
        ("a.txt", b"", RecipeError, "holds no public texts"),
        ("a.txt", b"\xff\n", BadSample, "is not text in utf-8"),
        ("a.csv", b"text\na\nb\xff\n", BadSample, r"row 2 of .*a\.csv is not text in utf-8"),
        ("a.csv", b"texts\na\n", BadTable, "did you mean 'texts'"),
        ("a.pdf", b"%PDF", RecipeError, "its name must end in one of"),
        ("none", None, RecipeError, "There are no public texts at"),
    ],
)
def test_a_pool_that_cannot_be_read_is_refused(tmp_path, name, content, error, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=sentence):
        PublicTexts(path=tmp_path / name)
