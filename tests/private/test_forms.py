"""The same records are the same data set in whatever form they are kept, and none of it is held in
memory.
"""

import json
import tracemalloc
from functools import partial
from uuid import uuid4

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from pe.data.images import Images
from pe.errors import PrivateDataError, RecipeError
from pe.planning.checks import data_set_ledger
from pe.private.folder import ImageFolder
from pe.private.npz import ImageNpz
from pe.private.source import read_source
from pe.private.tables import ImageParquet
from pe.private.webdataset import WebDataset
from pe.recipe.reading import with_full_paths
from tests.private.records import (
    FILES,
    LABELS,
    PIXELS,
    UNITS,
    arrow,
    fingerprint,
    png,
    read,
    refused,
    tar,
    write,
)
from tests.private_data import dataset_of

SETTINGS = {"classes": ["cat", "dog"], "privacy_unit": "who"}
COLUMNS = SETTINGS | {"label_column": "label"}
NAMES = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["cat", "dog"]}}}})}
FEW = (FILES, PIXELS, LABELS, UNITS)
NOISE = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
MANY = (
    [png(NOISE)] * 240,
    np.stack([NOISE] * 240),
    ["cat"] * 240,
    ["a"] * 240,
)  # 11 MiB, of pixels and of files


def folder(place, files, _pixels, labels, units):
    rows = ["file,label,who\n"]
    for number, (data, label, unit) in enumerate(zip(files, labels, units, strict=True)):
        write(place / f"{number}.png", data)
        rows.append(f"{number}.png,{label},{unit}\n")
    write(place / "labels.csv", "".join(rows).encode())
    return partial(ImageFolder, place, **SETTINGS)


def npz(place, _files, pixels, labels, units, save=np.savez):
    save(place / "a.npz", images=pixels, labels=labels, who=units)
    return partial(ImageNpz, place / "a.npz", **SETTINGS)


def parquet(place, files, _pixels, labels, units, kind="binary"):
    """Two files, of which the one whose name comes last is written first."""
    table = pa.table({"image": pa.array(files, kind), "label": labels, "who": units})
    for name, rows in (("b", slice(3, None)), ("a", slice(0, 3))):
        pq.write_table(
            table[rows], place / f"{name}.parquet", row_group_size=2, use_dictionary=False
        )
    return partial(ImageParquet, place, **COLUMNS)


def saved(place, files, _pixels, labels, units, stream=True):
    """As `datasets` saves it: with names for the labels' numbers, a cache, and a file that
    describes it.
    """
    table = pa.table({"image": [{"bytes": data, "path": "x.png"} for data in files], "who": units})
    table = table.append_column("label", [[["cat", "dog"].index(label) for label in labels]])
    table = table.replace_schema_metadata(NAMES)
    for name, rows in (
        ("data-0", slice(0, 4)),
        ("data-1", slice(4, None)),
        ("cache-01", slice(0, 2)),
    ):
        arrow(place / f"{name}.arrow", table[rows], stream, together=3)
    write(place / "state.json", b"{}")
    return partial(ImageParquet, place, **COLUMNS)


def shards(place, files, _pixels, labels, units):
    for shard, numbers in enumerate((range(3), range(3, len(files)))):
        members = [("._0.png", b"not read")]
        for number in numbers:
            members += [
                (f"../x/{number}.PNG", files[number]),
                (f"../x/{number}.label", f" {labels[number]}\n".encode()),
                (
                    f"../x/{number}.json",
                    json.dumps({"who": units[number], "label": "not this one"}).encode(),
                ),
                (f"../x/{number}.mask.png", b"not read"),
            ]
        tar(place / f"{shard}.tar", members)
    return partial(WebDataset, place, **COLUMNS)


FORMS = {
    "folder": folder,
    "npz": npz,
    "npz, compressed": partial(npz, save=np.savez_compressed),
    "parquet": parquet,
    "parquet, large": partial(parquet, kind="large_binary"),
    "arrow streams": saved,
    "arrow files": partial(saved, stream=False),
    "tar": shards,
}
WHOLE = dataset_of(
    Images(PIXELS),
    [0, 1, 0, 1, 0, 0, 1],
    classes=["cat", "dog"],
    units=[0, 1, 0, 2, 2, 3, 1],
    unit_name="who",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_keeps_images_labels_and_units_in_their_order(tmp_path, form):
    data = FORMS[form](tmp_path, *FEW)(size=8).open()
    assert (data.classes, data.unit_name, data.shape) == (WHOLE.classes, "who", (8, 8, 3))
    assert (data.labels.tolist(), data.units.tolist()) == (
        WHOLE.labels.tolist(),
        WHOLE.units.tolist(),
    )
    assert (data.labels.dtype, data.units.dtype) == (np.int32, np.int64)
    for _ in range(2):
        np.testing.assert_array_equal(read(data)[0], PIXELS)
    assert data.preflight(b"key").fingerprint == WHOLE.preflight(b"key").fingerprint != ""


@pytest.mark.parametrize("form", [*FORMS, "on a store"])
def test_reading_holds_a_small_part_of_the_images(tmp_path, form):
    source = FORMS.get(form, saved)(tmp_path, *MANY)(size=128)
    if form == "on a store":
        source = ImageParquet(bucket(tmp_path), **COLUMNS, size=128)
    data = source.open()
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    for _ in data.blocks(8):
        most = max(most, pa.total_allocated_bytes() - before)
    most += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < MANY[1].nbytes / 2


def bucket(place):
    """The files of a folder in an object store, fsspec's own."""
    name = uuid4().hex
    for file in place.iterdir():
        fsspec.filesystem("memory").pipe(f"/{name}/{file.name}", file.read_bytes())
    return f"memory://{name}"


@pytest.mark.parametrize("form", ["parquet", "arrow streams", "arrow files", "tar"])
def test_records_are_read_by_the_address_of_a_store(tmp_path, form):
    kind = FORMS[form](tmp_path, *FEW).func
    for address in (bucket(tmp_path), tmp_path.as_uri()):
        assert fingerprint(kind(address, **COLUMNS, size=8)) == WHOLE.preflight(b"key").fingerprint


def test_an_address_that_cannot_be_read_is_named(tmp_path):
    parquet(tmp_path, *FEW)
    write(tmp_path / "notes.csv", b"text\nfine\n")
    url = bucket(tmp_path)
    for address, part in (
        ("memory://nothing", "memory://nothing does not exist"),
        (f"{url}/notes.csv", "cannot be read as Parquet"),
        ("http://127.0.0.1:1/x.parquet", r"http://127\.0\.0\.1:1/x\.parquet"),
    ):
        refused(ImageParquet(address, **COLUMNS, size=8), part)
    data = ImageParquet(url, **COLUMNS, size=8).open()
    fsspec.filesystem("memory").pipe(f"{url.removeprefix('memory:/')}/b.parquet", b"gone")
    with pytest.raises(PrivateDataError, match=r"b\.parquet cannot be read"):
        data.check()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("github://org:repo@main/a.parquet", "'github://' is not read here"),
        ("s3://key:secret@bucket/a.parquet", "an address holds no credentials"),
        ("s3://bucket/a.zip::x", "not chained"),
    ],
)
def test_addresses_with_credentials_or_of_other_kinds_are_refused(url, sentence):
    with pytest.raises(RecipeError, match=sentence):
        ImageParquet(url, **COLUMNS, size=8)


def test_an_address_survives_the_way_through_a_recipe_and_needs_a_named_ledger_file(tmp_path):
    source = ImageParquet("s3://bucket/a b/x.parquet", **COLUMNS, size=8)
    written = TypeAdapter(ImageParquet).dump_python(source, mode="json")
    assert (
        read_source(with_full_paths({"private": written}, tmp_path)["private"], "the test")
        == source
    )
    with pytest.raises(RecipeError, match=r"No ledger file can lie beside s3://bucket/a b/x"):
        data_set_ledger(source)
    named = data_set_ledger(
        ImageParquet("s3://bucket/x", **COLUMNS, size=8, ledger_file=tmp_path / "l.json")
    )
    assert named.path == tmp_path / "l.json"
