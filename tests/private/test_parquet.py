"""Private images in Parquet files."""

import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from pe.errors import MissingDependency, PrivateDataError
from pe.private import ImageParquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


BYTES = [png(pixels) for pixels in PIXELS]
LABELS = ["cat", "dog", "cat", "dog", "cat", "cat", "dog"]


def save(path, metadata=None, **columns):
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, row_group_size=3)
    return path


def source(path, **settings):
    defaults = {"size": 8, "classes": ["cat", "dog"], "label_column": "label"}
    return ImageParquet(path, **defaults | settings)


def refused(path, match, **settings):
    with pytest.raises(PrivateDataError, match=match):
        source(path, **settings).open().check()


@pytest.mark.parametrize("form", ["binary", "large_binary", "struct"])
def test_images_labels_and_units(tmp_path, form, read):
    images = (
        [{"bytes": b, "path": "x.png"} for b in BYTES] if form == "struct" else pa.array(BYTES, getattr(pa, form)())
    )
    path = save(tmp_path / "a.parquet", image=images, label=LABELS, patient=[9, 9, 4, 4, 4, 7, 9])
    data = source(path, privacy_unit="patient").open()
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert data.units.tolist() == [0, 0, 1, 1, 1, 2, 0]
    np.testing.assert_array_equal(read(data)[0], PIXELS)


def test_a_folder_of_files_is_read_in_the_order_of_names(tmp_path, read):
    save(tmp_path / "2.parquet", image=BYTES[3:], label=LABELS[3:], who=["b", "a", "c", "d"])
    save(tmp_path / "1.parquet", image=BYTES[:3], label=LABELS[:3], who=["a", "b", "a"])
    data = source(tmp_path, privacy_unit="who").open()
    np.testing.assert_array_equal(read(data)[0], PIXELS)
    assert data.units.tolist() == [0, 1, 0, 1, 0, 2, 3]


def test_hugging_face_names_are_the_labels(tmp_path):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    save(tmp_path / "a.parquet", metadata, image=BYTES, label=[0, 1, 0, 1, 0, 0, 1])
    assert source(tmp_path / "a.parquet").open().labels.tolist() == [0, 1, 0, 1, 0, 0, 1]


def test_classes_without_a_label_column_name_the_columns_there_are(tmp_path):
    path = save(tmp_path / "a.parquet", image=BYTES, kind=LABELS)
    refused(
        path, r"label_column is not set, and classes lists 2 classes: .*; it has 'image', 'kind'", label_column=None
    )


def test_without_a_label_column_there_is_one_label(tmp_path):
    path = save(tmp_path / "a.parquet", image=BYTES, label=LABELS)
    assert source(path, label_column=None, classes=None).open().classes == ("all",)
    refused(path, r"classes: \[cat, dog\]", classes=None)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"picture": BYTES, "label": LABELS}, "no column 'image'"),
        ({"image": BYTES}, "no column 'label'"),
        ({"image": ["a.png"] * 7, "label": LABELS}, "of type string, not bytes"),
        ({"image": BYTES, "label": [["cat"]] * 7}, "several labels"),
        ({"image": BYTES, "label": ["cat", None, *LABELS[2:]]}, "Row 2 of .* has no label"),
        ({"image": BYTES, "label": [0.5] * 7}, "label of type float"),
        ({"image": BYTES, "label": ["cow"] * 7}, "'cow'"),
        ({"image": [*BYTES[:6], None], "label": LABELS}, "row 7 of .* is missing"),
        ({"image": [*BYTES[:5], BYTES[5][:80], BYTES[6]], "label": LABELS}, "row 6 of .* is truncated"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, columns, match):
    refused(save(tmp_path / "a.parquet", **columns), match)


def test_bad_rows_are_skipped_where_told(tmp_path, read):
    path = save(tmp_path / "a.parquet", image=[None, b"no image", *BYTES[2:]], label=LABELS)
    data = source(path, on_bad_record="skip").open()
    assert [bad.index for bad in data.check()] == [0, 1]
    images, valid = read(data)
    assert valid.tolist() == [False, False] + [True] * 5
    np.testing.assert_array_equal(images, PIXELS[2:])


def test_missing_units_and_files(tmp_path):
    path = save(tmp_path / "a.parquet", image=BYTES, label=LABELS, who=["a", None] * 3 + ["b"])
    refused(path, "Row 2 of .* no usable who", privacy_unit="who")
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in (1, 2):
        save(shards / f"{number}.parquet", image=BYTES[:2], label=["cat", "cow" if number == 2 else "dog"])
    refused(shards, r"Row 2 of .*2\.parquet has the label 'cow'")
    refused(path, "no column 'whom': did you mean 'who'", privacy_unit="whom")
    refused(path, "no subfolders", privacy_unit="subfolder")
    refused(tmp_path / "none", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no files of these types: .parquet, .arrow")
    path.write_bytes(b"not parquet")
    refused(path, "cannot be read as Parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "a.parquet", image=BYTES, label=LABELS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[parquet\]'"):
        source(path).open()


def test_reading_does_not_hold_the_images(tmp_path):
    noise = png(np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8))
    schema = pa.schema([("image", pa.binary())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, use_dictionary=False) as writer:
        for _ in range(8):
            writer.write_table(pa.table({"image": [noise] * 64}, schema))  # 24 MiB in all
    data = source(tmp_path / "a.parquet", label_column=None, classes=None, size=128).open()
    before, peak = pa.total_allocated_bytes(), 0
    for _ in data.blocks(64):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 12 * 2**20
