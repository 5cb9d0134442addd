"""The sources as values of a recipe."""

import io
import time
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageCms
from pydantic import TypeAdapter

from pe.errors import BadSample, RecipeError
from pe.private.folder import ImageFolder, TextFolder
from pe.private.medical import Dicom
from pe.private.npz import ImageNpz
from pe.private.source import read_source
from pe.private.tables import ImageParquet, RowTable, TextTable
from pe.private.webdataset import WebDataset


@pytest.mark.parametrize(
    "source",
    [
        ImageFolder(
            "scans",
            size=128,
            classes=["benign", 2],
            privacy_unit="patient",
            declared_size=100,
            resize="crop",
        ),
        ImageParquet("a.parquet", size=8, image_column="picture", label_column="class", classes=[]),
        WebDataset("s3://bucket/shards", size=8, label_column="cls", image_column="png"),
        Dicom("scans", size=8, window=(40, 400)),
        TextFolder(
            "notes", classes=[], privacy_unit="subfolder", longest=500, cut=True, encoding="cp1252"
        ),
        TextTable(
            "notes.csv",
            classes=["a", "b"],
            text_column="note",
            label_column="kind",
            declared_units=9,
        ),
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
        *(
            (ImageFolder, one)
            for one in ({"channels": 4}, {"resize": "zoom"}, {"privacy_unit": ""})
        ),
        *((TextTable, {"encoding": name}) for name in ("ebcdic", "zlib", "rot13", "")),
        *((Dicom, {"window": window}) for window in [(40, 0), (40, -1), (40,), 40]),
    ],
)
def test_wrong_settings_are_refused(kind, changes):
    with pytest.raises(RecipeError):
        kind("scans", **({} if kind is TextTable else {"size": 8}) | changes)


def test_what_decodes_for_the_public_clock_reads_as_much_as_any_record():
    assert (
        len(bytes(TextFolder("notes", longest=50).decoding()())) >= 49
    )  # each accent has two bytes
    assert ImageFolder("scans", size=8, channels=1, largest_side=20).decoding()().shape == (8, 8, 1)
    assert ImageFolder("scans", size=(8, 9)).decoding()().shape == (8, 9, 3)
    assert ImageNpz("scans.npz", size=8).decoding()().shape == (8, 8, 3)


DATE = {"kind": "date", "min": "1900-01-01", "max": "2020-12-31", "format": "%A, %d %B %Y"}
TABLE = RowTable("t.csv", columns={f"d{i}": DATE for i in range(9)})
FOLDER = ImageFolder("scans", size=64)
NOTES = TextFolder("notes", cut=True)


def photograph(side, form="JPEG", **options):
    """A photograph's file, with the colour profile that a camera writes."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    pixels, file = (
        np.random.default_rng(1).integers(90, 160, (side, side, 3), dtype=np.uint8),
        io.BytesIO(),
    )
    Image.fromarray(pixels).save(file, form, icc_profile=profile, **options)
    return file.getvalue()


COSTLY = {
    "lines": (NOTES, lambda: NOTES.read("a line\n" * 1142, "x")),
    "letters in compatibility forms": (NOTES, lambda: NOTES.read("\uf900\n" * 2000, "x")),
    "accents": (NOTES, lambda: NOTES.read("e" + "\u0301\u0323" * 64 + "\n" * 7000, "x")),
    "many accents": (NOTES, lambda: NOTES.read(("a" + "\u0323\u0301" * 60 + "\n") * 60, "x")),
    "a photograph": (FOLDER, partial(FOLDER.read, photograph(64), "x")),
    "a photograph without loss": (
        FOLDER,
        partial(FOLDER.read, photograph(64, "WEBP", lossless=True), "x"),
    ),
    "dates in words": (TABLE, partial(TABLE.read, ["Wednesday, 05 September 1990"] * 9, "x")),
}


@pytest.mark.parametrize(("source", "read"), COSTLY.values(), ids=COSTLY)
def test_the_public_clock_leaves_time_to_decode_the_costliest_records(source, read):
    assert 3 * least_seconds(source.decoding()) > least_seconds(read)


def least_seconds(work):
    """The processor time of the quickest of several calls."""
    times = []
    for _ in range(7):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def test_a_text_over_which_normal_form_would_take_for_ever_is_a_bad_record():
    """The time grows with the square of the marks: 50,000 take a second, so one record could be
    told by its time.
    """
    notes = TextFolder("notes", longest=100_000)
    assert len(bytes(notes.read("e" + "\u0301\u0323" * 64, "x"))) > 250
    for text in (
        "e" + "\u0301\u0323" * 100_000,
        "\u0323" * 129,
        "a" * 9 + "\U0001d165" * 200 + "b",
    ):
        started = time.process_time()
        with pytest.raises(BadSample, match=r"^x has more than 128 combining characters in a row"):
            notes.read(text, "x")
        assert time.process_time() - started < 0.5
