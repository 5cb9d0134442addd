"""The sources as values of a recipe."""

import pytest
from pydantic import TypeAdapter

from pe.errors import RecipeError
from pe.private.folder import ImageFolder, TextFolder
from pe.private.medical import Dicom
from pe.private.source import read_source
from pe.private.tables import ImageParquet, TextTable
from pe.private.webdataset import WebDataset


@pytest.mark.parametrize(
    "source",
    [
        ImageFolder("scans", size=128, classes=["benign", 2], privacy_unit="patient", declared_size=100, resize="crop"),
        ImageParquet("a.parquet", size=8, image_column="picture", label_column="class", classes=[]),
        WebDataset("s3://bucket/shards", size=8, label_column="cls", image_column="png"),
        Dicom("scans", size=8, window=(40, 400)),
        TextFolder("notes", classes=[], privacy_unit="subfolder", longest=500, cut=True, encoding="cp1252"),
        TextTable("notes.csv", classes=["a", "b"], text_column="note", label_column="kind", declared_units=9),
    ],
)
def test_a_source_survives_the_way_through_a_recipe(source):
    written = TypeAdapter(type(source)).dump_python(source, mode="json")
    read = read_source(written, "the test")
    assert read == source
    assert hash(read) == hash(source)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((ImageFolder, {"size": size}) for size in (0, 10_000, True, (8, 8, 3))),
        *((ImageFolder, {"classes": names}) for names in ([1, "1"], [True, False], "ab")),
        *((ImageFolder, one) for one in ({"channels": 4}, {"resize": "zoom"}, {"privacy_unit": ""})),
        *((TextTable, {"encoding": name}) for name in ("ebcdic", "zlib", "rot13", "")),
        *((Dicom, {"window": window}) for window in [(40, 0), (40, -1), (40,), 40]),
    ],
)
def test_wrong_settings_are_refused(kind, changes):
    with pytest.raises(RecipeError):
        kind("scans", **({} if kind is TextTable else {"size": 8}) | changes)


def test_what_decodes_for_the_public_clock_reads_as_much_as_any_record():
    assert len(bytes(TextFolder("notes", longest=50).decoding()())) == 50
    assert ImageFolder("scans", size=8, channels=1, largest_side=20).decoding()().shape == (8, 8, 1)
    assert ImageFolder("scans", size=(8, 9)).decoding()().shape == (8, 9, 3)
