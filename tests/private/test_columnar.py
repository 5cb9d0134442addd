"""Private records in Parquet and Arrow files that are odd or damaged."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe.private.tables import ImageParquet, TextTable
from tests.private.records import FILES, LABELS, PIXELS, arrow, read, refused, write

EMBEDDED = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def save(path, **columns):
    made = pa.table(columns)
    path.parent.mkdir(exist_ok=True)
    return (
        arrow(path, made)
        if path.suffix == ".arrow"
        else pq.write_table(made, path, row_group_size=3) or path
    )


def source(path, **settings):
    return ImageParquet(
        path, **{"size": 8, "classes": ["cat", "dog"], "label_column": "label"} | settings
    )


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"picture": FILES, "label": LABELS}, "no column 'image'"),
        ({"image": FILES, "labl": LABELS}, "no column 'label': did you mean 'labl'"),
        ({"image": ["a.png"] * 7, "label": LABELS}, "of type string, not bytes"),
        ({"image": FILES, "label": [["cat"]] * 7}, "several labels"),
        ({"image": FILES, "label": ["cat", None, *LABELS[2:]]}, "Row 2 of .* has no label"),
        (
            {"image": [*FILES[:5], FILES[5][:80], FILES[6]], "label": LABELS},
            "row 6 of .* is truncated",
        ),
        (
            {"image": pa.array([{"path": "0.png"}], EMBEDDED), "label": ["cat"]},
            "only a path, .* embed",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, suffix, columns, part):
    refused(source(save(tmp_path / f"a.{suffix}", **columns)), part)


def test_two_columns_of_one_name_are_named(tmp_path):
    table = pa.Table.from_arrays([pa.array(FILES)] * 2, names=["image", "image"])
    pq.write_table(table, tmp_path / "a.parquet")
    refused(ImageParquet(tmp_path / "a.parquet", size=8), "two columns of the same name")


def test_classes_and_the_column_of_labels_belong_together(tmp_path):
    path = save(tmp_path / "a.parquet", image=FILES, label=LABELS)
    refused(
        source(path, label_column=None),
        "`label_column` is not set, but `classes` lists 2 .*; it has the columns 'image', 'label'",
    )
    refused(source(path, classes=None), r"classes: \[cat, dog\]")
    data = ImageParquet(path, size=8).open()
    assert (data.classes, data.units.tolist()) == (("all",), list(range(7)))


def test_bad_rows_are_skipped_where_told(tmp_path):
    path = save(tmp_path / "a.parquet", image=[None, b"no image", *FILES[2:]], label=LABELS)
    images, valid = read(source(path, on_bad_record="skip").open())
    assert valid.tolist() == [False, False] + [True] * 5
    np.testing.assert_array_equal(images, PIXELS[2:])


def test_units_and_files_that_are_not_there_are_named(tmp_path):
    path = save(tmp_path / "a.parquet", image=FILES, label=LABELS, who=["a", None] * 3 + ["b"])
    refused(source(path, privacy_unit="who"), "Row 2 of .* no usable who")
    refused(source(path, privacy_unit="whom"), "no column 'whom': did you mean 'who'")
    for number, label in enumerate(["dog", "cow"]):
        save(tmp_path / f"shards/{number}.parquet", image=FILES[:2], label=["cat", label])
    refused(source(tmp_path / "shards"), r"Row 2 of .*1\.parquet has the label 'cow'")
    save(tmp_path / "shards/2.arrow", image=FILES[:2], label=["cat", "cat"])
    refused(
        source(tmp_path / "shards"), r"tables of several kinds \(\.arrow, \.parquet\): keep one"
    )
    write(tmp_path / "dict/dataset_dict.json", b'{"splits": ["train"]}')
    refused(source(tmp_path / "dict"), "several splits: name the folder of one of them")
    refused(source(write(path, b"not parquet")), "cannot be read as Parquet")


@pytest.mark.parametrize("stream", [True, False])
def test_an_arrow_file_that_is_cut_off_anywhere_is_refused(tmp_path, stream):
    path = arrow(
        tmp_path / "a.arrow", pa.table({"image": FILES, "label": LABELS}), stream, together=3
    )
    data = path.read_bytes()
    for size in [0, 4, 8, *range(16, len(data), 256), len(data) - 8, len(data) - 1]:
        write(path, data[:size])
        refused(
            source(path), r"a\.arrow cannot be read as Arrow: it is damaged or of another format\.$"
        )


def test_offsets_that_lead_out_of_an_arrow_file_are_refused(tmp_path):
    data = save(tmp_path / "a.arrow", image=[b"x" * 40, b"y" * 40]).read_bytes()
    offsets = np.array([0, 40, 80], np.int32).tobytes()
    assert data.count(offsets) == 1
    write(tmp_path / "a.arrow", data.replace(offsets, np.array([0, 2**30, 80], np.int32).tobytes()))
    refused(ImageParquet(tmp_path / "a.arrow", size=8), "cannot be read as Arrow")


def test_an_arrow_file_that_is_cut_off_while_it_is_read_is_an_error_and_no_signal(tmp_path):
    path = save(tmp_path / "a.arrow", image=[data * 50 for data in FILES * 30])
    code = f"""
import os, pe
data = pe.ImageParquet({str(path)!r}, size=8, on_bad_record="skip").open()
blocks = data.blocks(4)
next(blocks)
os.truncate({str(path)!r}, 4096)
for _ in blocks: pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BAD = pa.array([b"cat", b"\xe9"], pa.binary()).view(pa.string())
PARTS = {
    "odd": BAD,
    "list": pa.ListArray.from_arrays([0, 1, 2], BAD),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"label_column": "odd", "classes": ["cat"]}, ["Row 2", "label that is not text in UTF-8"]),
        ({"label_column": "list", "classes": ["cat"]}, []),
    ],
)
def test_a_label_or_unit_that_is_not_utf_8_is_named(tmp_path, suffix, settings, parts):
    refused(
        ImageParquet(save(tmp_path / f"a.{suffix}", image=FILES[:2], **PARTS), size=8, **settings),
        *parts,
    )
    refused(TextTable(save(tmp_path / f"b.{suffix}", text=["a", "b"], **PARTS), **settings), *parts)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_text_that_is_not_utf_8_is_a_bad_record(tmp_path, suffix):
    bad = TextTable(save(tmp_path / f"a.{suffix}", text=BAD), on_bad_record="skip").open().check()
    assert [one.index for one in bad] == [1]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_small_file_of_many_large_cells_takes_little_memory(tmp_path, suffix):
    """In a dictionary, a cell stands once for thousands of rows: 4 MB of it, 8 GB of them."""
    cells = pa.DictionaryArray.from_arrays(
        pa.array([0] * 2000, pa.int32()), pa.array(["x" * 2**22])
    )
    rows = pa.table({"text": cells, "who": ["a", "b"] * 1000})
    path = tmp_path / f"a.{suffix}"
    if suffix == "arrow":
        arrow(path, rows)
    else:
        pq.write_table(rows, path, store_schema=False)  # so it is read as text
    code = f"""
import itertools, resource, sys
from pe.data.tables import read_rows
from pathlib import Path
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for text, _ in itertools.islice(read_rows(Path({str(path)!r}), ["text", "who"]), 60):
    assert len(text) == 2**22
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400  # MB
