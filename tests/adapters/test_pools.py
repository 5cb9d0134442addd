"""PublicImages, PublicTexts and PublicTable: a pool of public samples and its neighbourhoods."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from adapters.pools import PublicImages, PublicTable, PublicTexts
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.errors import APIError, BadImage, BadSample, BadTable, RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest

POOL = 101


def seeds(count, start=0):
    return np.random.default_rng(start).integers(0, 2**64, count, dtype=np.uint64)


def levels(count=POOL, size=16):
    """Flat images, each a little brighter than the one before: the neighbours of i are i ± 1."""
    return np.repeat(np.arange(count, dtype=np.uint8) * 2, size * size * 3).reshape(
        count, size, size, 3
    )


@pytest.fixture
def pool(tmp_path):
    np.savez(tmp_path / "pool.npz", images=levels())  # steps below one level of the comparison tie
    return PublicImages(path=str(tmp_path / "pool.npz"))


def deal(api, *labels, start=0):
    """New samples, as the dispatcher asks for them."""
    numbers = seeds(len(labels), start)
    return api.random_api(RandomRequest(labels, numbers, api.draw_conditions(labels, numbers)))


def vary(api, parents, degree, label="", start=0):
    count = len(parents)
    empty = (
        Images(np.zeros((count, 16, 16, 3), np.uint8))
        if isinstance(api, PublicImages)
        else Texts.of([""] * count)
    )
    conditions = Conditions({"pool": parents})
    return api.variation_api(
        VariationRequest(empty, (label,) * count, conditions, seeds(count, start), degree)
    )


def test_random_deals_out_the_pool_in_random_order_and_says_which(pool):
    answer = deal(pool, *[""] * (POOL + 40))
    chosen = answer.conditions["pool"]
    assert (answer.samples.pixels == levels()[chosen]).all()
    assert sorted(chosen[:POOL]) == list(range(POOL))
    assert list(chosen) != list(deal(pool, *[""] * (POOL + 40), start=1).conditions["pool"])
    firsts = [deal(pool, "", start=start).conditions["pool"][0] for start in range(2000)]
    assert np.bincount(firsts, minlength=POOL).min() > 3


@pytest.mark.parametrize(("degree", "reach"), [(0.02, 2), (0.4, 40)])
def test_the_neighbourhood_grows_in_proportion_to_the_degree(pool, degree, reach):
    chosen = vary(pool, np.full(3000, 50), degree).conditions["pool"]
    assert chosen.min() >= 50 - reach
    assert chosen.max() <= 50 + reach
    assert len(np.unique(chosen)) == 1 + np.ceil(degree * (POOL - 1))


def test_neighbours_are_those_of_an_exhaustive_search(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 1)).astype(np.uint8)
    np.savez(tmp_path / "noise.npz", images=images)
    api = PublicImages(path=str(tmp_path / "noise.npz"), channels=1, blur=0.0)
    on_grid = np.rint(images.reshape(40, -1) * (63 / 255))
    distances = ((on_grid[7] - on_grid) ** 2).sum(axis=1)
    nearest = np.argsort(distances)[:5]
    chosen = vary(api, np.full(500, 7), 4 / 39).conditions["pool"]
    assert set(chosen) == set(nearest)


def write(path, level, size=(10, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path)


def test_the_pool_may_be_a_folder_resized_to_one_size(tmp_path):
    write(tmp_path / "a.png", 10, (30, 20))
    write(tmp_path / "sub" / "b.jpg", 200, (12, 24))
    write(tmp_path / ".hidden" / "c.png", 99)
    (tmp_path / "notes.txt").write_text("not an image")
    api = PublicImages(path=str(tmp_path), size=14, channels=1)
    assert len(api) == 2
    found = vary(api, np.array([0, 1]), 0.0).samples.pixels
    assert found.shape == (2, 14, 14, 1)
    np.testing.assert_allclose(found[:, 7, 7, 0], [10, 200], atol=2)


def test_by_label_each_label_draws_from_its_own_subfolder(tmp_path):
    for k in range(4):
        write(tmp_path / "dark" / f"{k}.png", k)
        write(tmp_path / "light" / f"{k}.png", 250 + k)
    api = PublicImages(path=str(tmp_path), by_label=True)
    answer = deal(api, *("dark", "light") * 50)
    assert (answer.samples.pixels[::2] < 4).all()
    assert (answer.samples.pixels[1::2] >= 250).all()
    assert (vary(api, np.full(50, 5), 1.0, label="light").samples.pixels >= 250).all()
    with pytest.raises(
        RecipeError, match="no images of label 'grey'; its labels are 'dark', 'light'"
    ):
        deal(api, "grey")


def test_a_damaged_file_of_the_pool_and_one_of_another_size_are_named(tmp_path):
    write(tmp_path / "a.png", 1, (10, 10))
    write(tmp_path / "b.png", 1, (10, 11))
    with pytest.raises(RecipeError, match=r"differ in size \(b.png and a.png\)"):
        PublicImages(path=str(tmp_path))
    (tmp_path / "b.png").write_bytes(b"nothing")
    with pytest.raises(BadImage, match=r"b\.png"):
        PublicImages(path=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("missing", None, r"neither a folder nor an \.npz"),
        (".", None, "holds no images"),
        ("bad.npz", b"nothing", r"is no \.npz"),
        ("objects.npz", {"images": np.array([{}], dtype=object)}, r"is no \.npz"),
        ("labels.npz", {"images": levels(3), "labels": [1, 2]}, "3 images and 2 labels"),
    ],
)
def test_a_pool_that_cannot_be_read_is_refused(tmp_path, name, content, sentence):
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    elif content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=sentence):
        PublicImages(path=str(tmp_path / name))


def test_parents_from_elsewhere_are_refused(pool):
    with pytest.raises(APIError, match="carry no 'pool'"):
        pool.variation_api(
            VariationRequest(
                Images(np.zeros((1, 16, 16, 3), np.uint8)), ("",), Conditions(), seeds(1), 0.5
            )
        )
    with pytest.raises(APIError, match=f"outside the pool of {POOL}"):
        vary(pool, np.array([POOL]), 0.5)


WORDS = [f"word{i}" for i in range(60)]


def sliding(path):
    """Fifty texts of ten words: the neighbours of i, which shares nine words with each, are
    i ± 1.
    """
    path.write_text("\n".join(" ".join(WORDS[i : i + 10]) for i in range(50)))
    return path


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


def texts_of(folder, form):
    """Three texts labelled `a` and two labelled `b`; the settings that read them."""
    rows = [(f"text {i} of {label}", label) for i in range(3) for label in "ab"][:5]
    if form == "folder":
        for i, (text, label) in enumerate(rows):
            (folder / "pool" / label).mkdir(parents=True, exist_ok=True)
            (folder / "pool" / label / f"{i}.txt").write_text(text)
        (folder / "pool" / ".hidden.txt").write_text("no")
        return {"path": folder / "pool"}
    with (folder / "pool.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("t", "l"), *rows, ("", "a")])
    return {"path": folder / "pool.csv", "text_column": "t", "label_column": "l"}


@pytest.mark.parametrize("form", ["folder", "csv"])
def test_by_label_each_label_draws_from_its_own_texts(tmp_path, form):
    api = PublicTexts(**texts_of(tmp_path, form), by_label=True)
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
    assert set(deal(api, *[""] * 4).samples.strings) == {
        " ".join(WORDS[i : i + 5]) for i in range(0, 20, 5)
    }
    short = PublicTexts(path=tmp_path / "book.txt", words=30, longest=20)
    assert deal(short, "").samples.strings == ["word0 word1 word2 wo"]
    texts = [bytes(text).decode() for _, text in api.public_samples((200,), None)]
    assert texts == [*WORDS[:22], *(" ".join(WORDS[i : i + 5]) for i in range(0, 20, 5))]


def test_texts_are_read_as_private_ones_are(tmp_path):
    (tmp_path / "pool.csv").write_bytes("text\n  cafe\u0301 \x07\n\n日本語\n".encode())
    api = PublicTexts(path=tmp_path / "pool.csv", longest=6)
    assert vary(api, np.arange(2), 0.0).samples.strings == ["café", "日本"]
    assert [bytes(text).decode() for _, text in api.public_samples((99,), None)] == [
        "café",
        "日本語",
    ]


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
def test_a_pool_of_texts_that_cannot_be_read_is_refused(tmp_path, name, content, error, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=sentence):
        PublicTexts(path=tmp_path / name)


COLUMNS = {
    "a": {"kind": "integer", "min": 0, "max": 11},
    "color": {"kind": "category", "values": ["r", "g"], "missing": True},
}


def table_of(path, *last):
    """Write twelve rows, of which those with `a` below 6 are `lo`, and then the `last` ones."""
    rows = [f"{'rg'[a % 2]},{'lo' if a < 6 else 'hi'},{a}" for a in range(12)]
    path.write_text("\n".join(["color,out,a", *rows, *last]))
    return {"path": path, "columns": COLUMNS}


def test_a_table_deals_its_rows_by_label_and_reads_them_as_private_ones(tmp_path):
    api = PublicTable(
        **table_of(tmp_path / "pool.csv", ",lo,99"), label_column="out", by_label=True
    )
    new = deal(api, *("lo", "hi") * 7)
    assert sorted(row["a"] for row in new.samples.records[::2]) == [0, 1, 2, 3, 4, 5, 11]
    assert {row["a"] for row in new.samples.records[1::2]} == {6, 7, 8, 9, 10, 11}
    near = vary(api, np.full(300, 9), 0.4, "hi").samples
    assert {row["a"] for row in near.records} == {7, 9, 11}  # of the same color
    *_, (name, row) = api.public_samples((99,), None)
    assert name == f"Row 13 of {tmp_path / 'pool.csv'}"
    assert json.loads(bytes(row)) == {"a": 11, "color": None}


@pytest.mark.parametrize(
    ("last", "settings", "error", "sentence"),
    [
        (
            "r,lo,",
            {},
            BadSample,
            r"Row 13 of .*pool\.csv: column 'a' is empty. Declare `missing: true`",
        ),
        (
            "blue,lo,1",
            {},
            BadSample,
            r"Row 13 of .*pool\.csv: column 'color' is not among the listed `values`",
        ),
        ("r,lo,'1,5'".replace("'", '"'), {}, BadSample, r"column 'a' looks like a decimal comma"),
        ("r,lo", {}, BadTable, "has 2 cells"),
        ("r,lo,1", {"label_column": "put"}, BadTable, "did you mean 'out'"),
        ("r,lo,1", {"by_label": True}, RecipeError, "Name the column of the pool's labels"),
    ],
)
def test_a_pool_of_rows_that_cannot_be_read_is_refused(tmp_path, last, settings, error, sentence):
    with pytest.raises(error, match=sentence):
        PublicTable(**table_of(tmp_path / "pool.csv", last), **settings)
