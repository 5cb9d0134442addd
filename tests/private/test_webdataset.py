"""Private images in .tar files, as WebDataset has them."""

from __future__ import annotations

import functools
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pe.errors import PrivateDataError
from pe.private import ImageParquet, WebDataset, webdataset
from pe.private.look import look

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SETTINGS: dict[str, Any] = {"size": 8, "classes": ["cat", "dog"], "label_column": "label", "privacy_unit": "who"}
LABELS, UNITS = ["cat", "dog", "cat", "dog", "cat"], ["a", "b", "a", "c", "b"]


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, members: Sequence[tuple[str, bytes | tarfile.TarInfo]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name) if isinstance(data, bytes) else data
            entry.name, entry.size = name, len(data) if isinstance(data, bytes) else 0
            tar.addfile(entry, io.BytesIO(data) if isinstance(data, bytes) else None)
    return path


def sample(number: int) -> list[tuple[str, bytes | tarfile.TarInfo]]:
    entry = json.dumps({"who": UNITS[number], "label": "not this one"}).encode()
    return [
        (f"{'../' * 3}x/{number}.PNG", png(number)),
        (f"{'../' * 3}x/{number}.label", f" {LABELS[number]}\n".encode()),
        (f"{'../' * 3}x/{number}.json", entry),
        (f"{'../' * 3}x/{number}.mask.png", b"not read"),
    ]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name, numbers in {"0": (0, 1, 2), "1": (3, 4)}.items():
        members = [("x", tarfile.TarInfo()), *(one for number in numbers for one in sample(number)), ("._0.png", b"")]
        members[0][1].type = tarfile.DIRTYPE
        write(tmp_path / "shards" / f"{name}.tar", members)
    return tmp_path / "shards"


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    table = pa.table({"image": [png(number) for number in range(5)], "label": LABELS, "who": UNITS})
    pq.write_table(table, tmp_path / "same.parquet")
    return fingerprint(ImageParquet(tmp_path / "same.parquet", **SETTINGS))


def fingerprint(source: ImageParquet | WebDataset) -> str:
    return source.open().preflight(b"key").fingerprint


def refused(path: Path, match: str, **changes: Any) -> None:
    with pytest.raises(PrivateDataError, match=match) as error:
        WebDataset(path, **SETTINGS | changes).open().check()
    assert "\n" not in str(error.value)


def test_samples_are_the_records_of_the_same_parquet_file(shards: Path, parquet: str) -> None:
    assert fingerprint(WebDataset(shards, **SETTINGS)) == parquet
    assert fingerprint(WebDataset(shards, **SETTINGS, image_column="PNG")) == parquet


def test_they_are_read_from_a_store_and_a_web_server(shards: Path, parquet: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    for file in shards.iterdir():
        fsspec.filesystem("memory").pipe(f"/shards/{file.name}", file.read_bytes())
    assert fingerprint(WebDataset("memory://shards", **SETTINGS)) == parquet
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(shards))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = fingerprint(WebDataset(f"http://127.0.0.1:{server.server_port}/0.tar", **SETTINGS))
        server.shutdown()
    assert found == fingerprint(WebDataset(shards / "0.tar", **SETTINGS))


LINK = tarfile.TarInfo()
LINK.type, LINK.linkname = tarfile.SYMTYPE, "/etc/passwd"
DEVICE = tarfile.TarInfo()
DEVICE.type = tarfile.CHRTYPE


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ([*sample(0), *sample(1), *sample(0)], r"Sample '\.\./\.\./\.\./x/0' of .*a\.tar comes twice, apart: put"),
        ([*sample(0), *sample(1)[1:3]], r"x/1' of .* has no image \('label', 'json'\): name the suffix"),
        ([*sample(0), ("README", b"")], r"'README' of .* has no image"),
        ([*sample(0), (f"{'../' * 3}x/0.jpg", b"")], r"x/0' of .* has several images \('png', 'jpg'\): name"),
        ([*sample(0), (f"{'../' * 3}x/0.png", b"")], r"x/0' of .* has two members 'png'"),
        ([*sample(0), ("1.png", LINK)], r"'1\.png' in .* is a link, a device or sparse"),
        ([*sample(0), ("1.png", DEVICE)], r"'1\.png' in .* is a link, a device or sparse"),
        ([*sample(0), ("1.png", png(1)), ("1.json", b'{"who": "a"}')], r"Sample 2 of .*a\.tar has no label"),
        ([*sample(0), ("1.png", png(1)), ("1.label", b"cow")], "has the label 'cow'"),
        (
            [*sample(0), ("1.png", png(1)), ("1.label", b"cat"), ("1.json", b"{")],
            r"'1' of .* has a \.json that is none",
        ),
        ([*sample(0), ("1.png", png(1)), ("1.label", b"c" * 2**21)], r"'1' of .* has a \.label of more than 1,048,576"),
        ([*sample(0), ("1.png", png(1)[:99]), *sample(1)[1:2]], "."),
        ([("1.png", png(1)), ("1.label", b"cat")], "'1' of .* has no 'who': known are 'label', 'png'"),
    ],
)
def test_archives_that_do_not_fit(tmp_path: Path, members: list[Any], match: str) -> None:
    refused(write(tmp_path / "a.tar", members), match)


def test_places_and_names_that_do_not_fit(tmp_path: Path, shards: Path) -> None:
    refused(shards, "no subfolders", privacy_unit="subfolder")
    refused(shards, "label_column is not set, and classes lists 2 classes", label_column=None)
    refused(shards, "has no 'labl': did you mean 'label'", label_column="labl")
    refused(tmp_path / "none", "does not exist")
    refused(tmp_path, r"holds no files of these types: \.tar")
    with tarfile.open(tmp_path / "z.tar", "w:gz"):
        pass
    refused(tmp_path / "z.tar", r"z\.tar cannot be read as a \.tar file: it is damaged, compressed \(unpack it\)")


def test_an_archive_that_is_cut_off_or_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tar", [*sample(0), *sample(1)]).read_bytes()
    end = len(data.rstrip(b"\0"))
    for size in range(0, end, 256):
        (tmp_path / "a.tar").write_bytes(data[:size])
        refused(tmp_path / "a.tar", "cannot be read as a|truncated")
    second = data.rindex(b"../../../x/1.PNG")
    (tmp_path / "a.tar").write_bytes(data[:second] + b"\xff" + data[second + 1 :])
    refused(tmp_path / "a.tar", "cannot be read as a")
    (tmp_path / "a.tar").write_bytes(data + data)  # a second archive joined to the first
    refused(tmp_path / "a.tar", "cannot be read as a")


def test_a_header_that_announces_a_huge_length_takes_no_memory(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE):
        entry = tarfile.TarInfo("1.png")
        entry.type, entry.size = kind, 2**40
        (tmp_path / "a.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
        refused(tmp_path / "a.tar", "cannot be read as a")


def test_bad_and_huge_images_are_bad_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    monkeypatch.setattr(webdataset, "_LONGEST_IMAGE", 2**16)
    members = [("0.png", b"none"), ("1.png", png(1)), ("2.png", bytes(70_000)), ("3.png", png(3)[:99])]
    data = WebDataset(write(tmp_path / "a.tar", members), size=8, on_bad_record="skip").open()
    assert [bad.index for bad in data.check()] == [0, 2, 3]
    assert "more than 65,536 bytes and was not read" in data.check()[1].reason
    assert read(data)[1].tolist() == [False, True, False, False]


def test_pe_init_finds_them(shards: Path) -> None:
    seen = look(shards / "0.tar", "png", None, None)
    assert seen.settings == {
        "kind": "webdataset",
        "path": shards / "0.tar",
        "image_column": "png",
        "label_column": "label",
    }
    assert seen.labels == ("cat", "dog")
    assert "who" in seen.units
    assert look(shards, None, None, None).settings["kind"] == "webdataset"
