"""Private records in Arrow files, as `datasets` writes them: what holds of Parquet holds of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pe.errors import PrivateDataError
from pe.private import ImageParquet, TextTable
from pe.private.look import look

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")

FEATURES = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
SETTINGS = {"size": 8, "classes": ["cat", "dog"], "label_column": "label", "privacy_unit": "who"}


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


TABLE = pa.table(
    {
        "image": [{"bytes": png(seed), "path": f"{seed}.png"} for seed in range(7)],
        "label": [0, 1, 0, 1, 0, 0, 1],
        "who": ["a", "b", "a", "c", "c", "d", "b"],
        "text": ["one", "two", "three", "four", "five", "six", "sept"],
    }
).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def write(path: Path, table: pa.Table = TABLE, stream: bool = True) -> Path:
    path.parent.mkdir(exist_ok=True)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder of two shards, with what `datasets` puts beside them."""
    write(tmp_path / "saved" / "data-00000-of-00002.arrow", TABLE[:4])
    write(tmp_path / "saved" / "data-00001-of-00002.arrow", TABLE[4:])
    write(tmp_path / "saved" / "cache-0123456789abcdef.arrow", TABLE[:2])
    (tmp_path / "saved" / "state.json").write_text("{}")
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    return tmp_path / "saved"


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pq.write_table(TABLE, tmp_path / "same.parquet")
    return tmp_path / "same.parquet"


def fingerprint(place: Path | str) -> tuple[str, str]:
    texts = TextTable(place, classes=["cat", "dog"], label_column="label", privacy_unit="who")
    return tuple(source.open().preflight(b"key").fingerprint for source in (ImageParquet(place, **SETTINGS), texts))


def refused(path: Path, match: str, **changes: object) -> None:
    with pytest.raises(PrivateDataError, match=match) as error:
        ImageParquet(path, **SETTINGS | changes).open().check()
    assert "\n" not in str(error.value)


def test_a_saved_data_set_holds_the_records_of_its_parquet_file(saved: Path, parquet: Path) -> None:
    assert fingerprint(saved) == fingerprint(parquet)


def test_a_file_may_be_of_either_format_of_arrow(tmp_path: Path, parquet: Path) -> None:
    assert fingerprint(write(tmp_path / "a.arrow", stream=False)) == fingerprint(parquet)
    assert fingerprint(write(tmp_path / "b.arrow")) == fingerprint(parquet)


@pytest.mark.parametrize("stream", [True, False])
def test_it_is_read_from_a_store(tmp_path: Path, parquet: Path, stream: bool) -> None:
    fsspec.filesystem("memory").pipe("/arrow/a.arrow", write(tmp_path / "a.arrow", stream=stream).read_bytes())
    assert fingerprint("memory://arrow") == fingerprint("memory://arrow/a.arrow") == fingerprint(parquet)


def test_without_label_and_unit_rows_are_counted(saved: Path) -> None:
    assert len(ImageParquet(saved, size=8).open()) == 7


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path, stream: bool) -> None:
    data = write(tmp_path / "a.arrow", stream=stream).read_bytes()
    for size in [0, 4, 8, *range(16, len(data), 64), len(data) - 8, len(data) - 1]:
        (tmp_path / "a.arrow").write_bytes(data[:size])
        refused(tmp_path / "a.arrow", r"a\.arrow cannot be read as Arrow: it is damaged or of another format\.$")


def test_offsets_that_lead_out_of_the_file_are_refused(tmp_path: Path) -> None:
    images = pa.table({"image": pa.array([b"x" * 40, b"y" * 40], pa.binary())})
    data = write(tmp_path / "a.arrow", images).read_bytes()
    offsets = np.array([0, 40, 80], np.int32).tobytes()
    assert data.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(data.replace(offsets, np.array([0, 2**30, 80], np.int32).tobytes()))
    refused(tmp_path / "a.arrow", "cannot be read as Arrow", classes=None, label_column=None, privacy_unit="record")


def test_a_text_that_is_not_utf_8_is_a_bad_record_and_no_damage(tmp_path: Path) -> None:
    texts = pa.array([b"good", b"\xff\xfe"], pa.binary()).view(pa.string())
    bad = TextTable(write(tmp_path / "a.arrow", pa.table({"text": texts})), on_bad_record="skip").open().check()
    assert [one.index for one in bad] == [1]


def test_what_does_not_fit_is_refused_as_of_parquet(tmp_path: Path, saved: Path) -> None:
    refused(saved, "has no column 'labl': did you mean 'label'", label_column="labl")
    refused(saved, "of type string, not bytes", image_column="text")
    null = TABLE[:2].set_column(0, "image", [[{"bytes": png(0), "path": ""}, {"bytes": None, "path": "/etc/x.png"}]])
    refused(write(tmp_path / "null.arrow", null), "image in row 2 of .* is missing: its bytes are null")
    cow = pa.table({"image": [png(1)], "label": ["cow"], "who": ["a"]})
    write(saved / "data-2.arrow", cow)
    refused(saved, r"Row 1 of .*data-2\.arrow has the label 'cow'")
    pq.write_table(TABLE, saved / "a.parquet")
    refused(saved, r"tables of several kinds \(\.arrow, \.parquet\): keep one")
    (tmp_path / "dict" / "train").mkdir(parents=True)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    refused(tmp_path / "dict", "several splits: name the folder of one of them")


def test_pe_init_finds_images_and_texts(tmp_path: Path, saved: Path) -> None:
    seen = look(saved, None, None, None)
    assert seen.settings == {"kind": "parquet", "path": saved, "image_column": "image", "label_column": "label"}
    assert (seen.labels, seen.units) == (("cat", "dog"), ("who", "text"))
    texts = look(write(tmp_path / "texts" / "a.arrow", TABLE.drop_columns("image")).parent, None, None, None)
    assert texts.settings["kind"] == "text_table"
    assert texts.settings["text_column"] == "text"


def test_one_batch_is_in_memory(tmp_path: Path) -> None:
    noise = pa.table({"image": pa.array([png(0) * 500] * 64, pa.binary())})
    with pa.ipc.new_stream(tmp_path / "a.arrow", noise.schema) as writer:
        for _ in range(8):
            writer.write_table(noise)
    fsspec.filesystem("memory").pipe("/big/a.arrow", (tmp_path / "a.arrow").read_bytes())
    most = {}
    for place in (tmp_path / "a.arrow", "memory://big/a.arrow"):
        data = ImageParquet(place, size=8, on_bad_record="skip").open()
        before, most[str(place)] = pa.total_allocated_bytes(), 0
        for _ in data.blocks(16):
            most[str(place)] = max(most[str(place)], pa.total_allocated_bytes() - before)
    assert [size <= limit for size, limit in zip(most.values(), (2**20, 3 * noise.nbytes), strict=True)] == [True] * 2
