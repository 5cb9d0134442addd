"""The sources as values of a recipe."""

import subprocess
import sys

import pytest
from pydantic import TypeAdapter

from pe.errors import RecipeError
from pe.private import Dicom, ImageFolder, ImageNpz, ImageParquet, MnistSample, TextFolder, TextTable, WebDataset
from pe.private.source import read_source


@pytest.mark.parametrize(
    "source",
    [
        ImageFolder("scans", size=128, classes=["benign", 2], privacy_unit="patient", declared_size=100, resize="crop"),
        ImageNpz("a.npz", size=(8, 9), channels=1, on_bad_record="skip"),
        ImageParquet("a.parquet", size=8, image_column="picture", label_column="class", classes=[]),
        WebDataset("s3://bucket/shards", size=8, label_column="cls", image_column="png"),
        MnistSample("test"),
        Dicom("scans", size=8, window=(40, 400)),
        Dicom("scans", size=8, window=None),
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
    "settings",
    [
        {},
        {"size": 8, "sizes": 9},
        {"size": 0},
        {"size": 10_000},
        {"size": True},
        {"size": "8"},
        {"size": (8, 8, 3)},
        {"size": 8, "classes": ["a", "b", "a"]},
        {"size": 8, "classes": [1, "1"]},
        {"size": 8, "classes": [True, False]},
        {"size": 8, "classes": ["a", " "]},
        {"size": 8, "classes": "ab"},
        {"size": 8, "channels": 4},
        {"size": 8, "resize": "zoom"},
        {"size": 8, "on_bad_record": "ignore"},
        {"size": 8, "declared_size": 0},
        {"size": 8, "privacy_unit": ""},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(RecipeError):
        ImageFolder("scans", **settings)


@pytest.mark.parametrize("settings", [{"longest": 0}, {"longest": 200_000}, {"longest": True}, {"cut": 1}, {"size": 8}])
def test_wrong_settings_of_texts_are_refused(settings):
    with pytest.raises(RecipeError):
        TextTable("notes.csv", **settings)


@pytest.mark.parametrize("window", [(40, 0), (40, -1), (40,), 40])
def test_a_window_has_a_centre_and_a_positive_width(window):
    with pytest.raises(RecipeError):
        Dicom("scans", size=8, window=window)


def test_dicom_needs_its_window_declared():
    with pytest.raises(RecipeError, match=r"the test: 'private\.window' is missing"):
        read_source({"kind": "dicom", "path": "scans", "size": 8}, "the test", "private")


def test_sources_are_values():
    source = ImageFolder("scans", size=8)
    with pytest.raises(AttributeError):
        source.size = 9
    assert (source.height_width, source.shape) == ((8, 8), (8, 8, 3))


def test_importing_loads_no_optional_library():
    heavy = {"pyarrow", "pydicom", "tifffile", "imagecodecs", "mlxtend", "sklearn", "torch", "faiss", "scipy"}
    code = f"import sys, pe.private; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
