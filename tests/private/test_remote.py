"""Private records on object stores and web servers: read in pieces, by their address."""

from __future__ import annotations

import functools
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from pe.errors import PrivateDataError, RecipeError
from pe.planning.checks import data_set_ledger
from pe.private import ImageParquet, TextTable
from pe.private.source import read_source
from pe.recipe.reading import with_full_paths

fsspec = pytest.importorskip("fsspec")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SOURCE = {"size": 8, "classes": ["cat", "dog"], "label_column": "label", "privacy_unit": "who"}


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two Parquet files and a table of texts."""
    for number in range(2):
        columns = {
            "image": [png(3 * number + i) for i in range(3)],
            "label": ["cat", "dog", "cat"],
            "who": ["a", number, 2],
        }
        columns["who"] = list(map(str, columns["who"]))
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=2)
    (tmp_path / "notes.csv").write_text("text,label\nfine,cat\nbad,dog\n")
    return tmp_path


@pytest.fixture
def bucket(shards: Path) -> Iterator[str]:
    """The same in an object store: fsspec's own, in memory."""
    system = fsspec.filesystem("memory")
    for file in shards.iterdir():
        system.pipe(f"/bucket/{file.name}", file.read_bytes())
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


@pytest.fixture
def web(shards: Path) -> Iterator[str]:
    """The same on a web server."""
    pytest.importorskip("aiohttp")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(shards))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fingerprint(source: ImageParquet | TextTable) -> str:
    return source.open().preflight(b"key").fingerprint


def test_a_folder_on_a_store_holds_the_records_of_its_copy_on_disk(shards: Path, bucket: str) -> None:
    assert fingerprint(ImageParquet(bucket, **SOURCE)) == fingerprint(ImageParquet(shards, **SOURCE))
    assert fingerprint(ImageParquet(shards.as_uri(), **SOURCE)) == fingerprint(ImageParquet(shards, **SOURCE))
    assert ImageParquet(bucket, **SOURCE).open().units.tolist() == [0, 1, 2, 0, 3, 2]


def test_a_file_on_a_web_server_holds_the_records_of_its_copy(shards: Path, web: str) -> None:
    assert fingerprint(ImageParquet(f"{web}/1.parquet", **SOURCE)) == fingerprint(
        ImageParquet(shards / "1.parquet", **SOURCE)
    )


def test_texts_are_read_by_their_address(shards: Path, bucket: str) -> None:
    settings = {"classes": ["cat", "dog"], "label_column": "label"}
    assert fingerprint(TextTable(f"{bucket}/notes.csv", **settings)) == fingerprint(
        TextTable(shards / "notes.csv", **settings)
    )


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://nothing", "memory://nothing does not exist"),
        ("memory://bucket/notes.csv", "cannot be read as Parquet"),
        ("http://127.0.0.1:1/x.parquet", r"http://127\.0\.0\.1:1/x\.parquet"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_that_names_it(bucket: str, url: str, sentence: str) -> None:
    with pytest.raises(PrivateDataError, match=sentence) as error:
        ImageParquet(url, **SOURCE).open()
    assert "\n" not in str(error.value)


def test_a_connection_that_breaks_off_while_records_are_read_is_told(bucket: str) -> None:
    data = ImageParquet(bucket, **SOURCE).open()
    fsspec.filesystem("memory").pipe("/bucket/1.parquet", b"gone")
    with pytest.raises(PrivateDataError, match=r"bucket/1\.parquet cannot be read"):
        data.check()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("github://org:repo@main/a.parquet", "'github://' is not read here"),
        ("s3://key:secret@bucket/a.parquet", "an address holds no credentials"),
        ("s3://bucket/a.zip::x", "not chained"),
    ],
)
def test_addresses_that_are_refused(url: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        ImageParquet(url, **SOURCE)


def test_an_address_survives_the_way_through_a_recipe() -> None:
    source = ImageParquet("s3://bucket/a b/x.parquet", **SOURCE)
    written = TypeAdapter(ImageParquet).dump_python(source, mode="json")
    assert written["path"] == "s3://bucket/a b/x.parquet"
    assert read_source(with_full_paths({"private": written}, Path("/elsewhere"))["private"], "the test") == source
    assert with_full_paths({"private": source}, Path("/elsewhere"))["private"] == source


def test_a_remote_data_set_names_its_ledger_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"private\.ledger_file is not set, .* beside s3://bucket/x: name a file"):
        data_set_ledger(ImageParquet("s3://bucket/x", **SOURCE))
    named = data_set_ledger(ImageParquet("s3://bucket/x", **SOURCE, ledger_file=tmp_path / "l.json"))
    assert named is not None
    assert named.path == tmp_path / "l.json"
