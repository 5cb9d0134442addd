"""What `pe init` sees at a place: the kind of source, columns, labels, units, and a size that suits
most records.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe.data.texts import Texts
from pe.errors import PEError
from pe.private.folder import ImageFolder
from pe.private.look import kind_at, look, look_at_length, look_at_shape, text_kind_at
from tests.private.records import FILES, LABELS, png, write
from tests.private.test_forms import FEW, FORMS
from tests.private.test_texts import WRITERS
from tests.private_data import dataset_of

NAMES = {
    "huggingface": json.dumps({"info": {"features": {"kind": {"names": ["cat", "dog", "eel"]}}}})
}
WORDS = {"id": ["1", "2"], "said": ["some more words", "a few words"], "topic": ["cat", "dog"]}


def class_folders(place, suffix="png"):
    for number, label in enumerate(LABELS):
        write(place / label / f"{number}.{suffix}", FILES[number])


def named_numbers(place):
    table = pa.table(
        {"id": [1, 2], "img": [{"bytes": data, "path": None} for data in FILES[:2]], "kind": [0, 1]}
    )
    pq.write_table(table.replace_schema_metadata(NAMES), place / "0.parquet")


def texts(suffix, columns=WORDS):
    return lambda place: WRITERS[suffix](place / f"a{suffix}", columns)


@pytest.mark.parametrize(
    ("made", "name", "kind", "sample", "label", "labels", "units"),
    [
        (class_folders, "", "folder", None, None, "cat dog", "subfolder"),
        (FORMS["folder"], "", "folder", None, None, "cat dog", "subfolder who"),
        (FORMS["npz"], "a.npz", "npz", None, None, "cat dog", "who"),
        (FORMS["parquet"], "", "parquet", "image", "label", "cat dog", "who"),
        (named_numbers, "", "parquet", "img", "kind", "cat dog eel", "id"),
        (FORMS["tar"], "", "webdataset", "png", "label", "cat dog", "mask.png who"),
        (
            lambda place: class_folders(place, "txt"),
            "",
            "text_folder",
            None,
            None,
            "cat dog",
            "subfolder",
        ),
        (texts(".parquet"), "", "text_table", "said", "topic", "cat dog", "id"),
        (
            texts(".csv", {"said": ["long enough"], "text": ["short"]}),
            "",
            "text_table",
            "text",
            None,
            "",
            "said",
        ),
    ],
)
def test_what_is_there_is_seen(tmp_path, made, name, kind, sample, label, labels, units):
    made(tmp_path, *(FEW if made in FORMS.values() else ()))
    place = tmp_path / name
    seen = look(place, None, None, None)
    key = "text_column" if seen.noun == "texts" else "image_column"
    columns = {} if sample is None else {key: sample, "label_column": label}
    assert seen.settings == {"kind": kind, "path": place} | columns
    assert (seen.labels, seen.units) == (tuple(labels.split()), tuple(units.split()))
    assert (text_kind_at if seen.noun == "texts" else kind_at)(
        place
    ) == kind  # as `pe evaluate` reads a test set


def test_columns_are_those_that_the_owner_names(tmp_path):
    texts(".csv")(tmp_path)
    seen = look(tmp_path, None, "topic", "said")
    assert (seen.settings["text_column"], seen.labels) == (
        "topic",
        ("a few words", "some more words"),
    )
    FORMS["tar"](tmp_path, *FEW)
    seen = look(tmp_path, "mask.png", None, "")
    assert seen.settings == {
        "kind": "webdataset",
        "path": tmp_path,
        "image_column": "mask.png",
        "label_column": None,
    }
    assert (seen.labels, seen.units) == ((), ("png", "label", "who"))


@pytest.mark.parametrize(
    ("name", "columns", "sentence"),
    [
        (
            "nowhere",
            {},
            "does not exist: name a folder of images or texts, an .npz or .tar file or a table",
        ),
        ("ct", {}, "ct holds DICOM files: write a recipe with private.kind: dicom"),
        (
            "a.jsonl",
            {"text_column": "body"},
            "no column 'body': it has the columns 'id', 'said', 'topic'",
        ),
        (
            "numbers.parquet",
            {},
            "numbers.parquet has no column of words, but the columns 'a': name one by "
            "--text-column, or add --table",
        ),
    ],
)
def test_what_no_source_reads_is_refused(tmp_path, name, columns, sentence):
    write(tmp_path / "ct" / "1.2.840", bytes(128) + b"DICM")
    texts(".jsonl")(tmp_path)
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "numbers.parquet")
    with pytest.raises(PEError, match=sentence):
        look(
            tmp_path / name,
            *(columns.get(key) for key in ("image_column", "text_column", "label_column")),
        )


@pytest.mark.parametrize(
    ("sides", "side"),
    [
        ([256, 256, 40], 256),
        ([257, 257, 40], 128),
        ([100, 100, 150, 150], 64),
        ([(100, 200)], 64),
    ],  # half is not most
)
def test_the_side_is_that_of_most_images_or_a_usual_one(tmp_path, sides, side):
    for number, own in enumerate(sides):
        shape = own if isinstance(own, tuple) else (own, own)
        write(tmp_path / f"{number}.png", png(np.zeros((*shape, 3), np.uint8)))
    assert look_at_shape(ImageFolder(tmp_path, size=1).open())[0] == side


@pytest.mark.parametrize(("grey", "channels"), [(1, 3), (2, 1)])
def test_images_are_grey_where_most_are(tmp_path, grey, channels):
    for number in range(3 if grey == 2 else 2):
        write(
            tmp_path / f"{number}.png",
            png(np.full((8, 8, 3), [9, 9, 9] if number < grey else [9, 9, 8], np.uint8)),
        )
    assert look_at_shape(ImageFolder(tmp_path, size=1).open())[1] == channels


@pytest.mark.parametrize(
    ("lengths", "longest"), [([125], 250), ([10, 126, 900], 500), ([501], 2000)]
)
def test_a_text_may_have_twice_the_median_length_and_no_more_than_the_usual(lengths, longest):
    texts = Texts.of(["x" * length for length in lengths])
    assert look_at_length(dataset_of(texts, [0] * len(lengths), classes=["all"])) == longest
