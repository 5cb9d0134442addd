"""A record with a fault is one bad record where these are skipped: all others stay as they are."""

import io
import json
import os
import re
import tarfile
from contextlib import suppress

import numpy as np
import pandas
import pyarrow as pa
import pytest

from pe.data.tables import read_rows_or_faults
from pe.errors import BadSample, PrivateDataError
from pe.private.dataset import NOBODY
from pe.private.folder import ImageFolder, TextFolder
from pe.private.memory import source_of
from pe.private.npz import ImageNpz
from pe.private.tables import RowTable, TextTable
from pe.private.webdataset import WebDataset
from tests.private.records import FILES, PIXELS, arrow, png, read, tar, write
from tests.test_neighbours import (
    BAD_FILES,
    BAD_LINES,
    BAD_ROWS,
    COLUMNS,
    ROWS,
    TEXTS,
    write_table,
    write_text_folder,
    write_text_table,
)


def rows_in(path, rows):
    write_table(rows, path / "p.csv")
    return RowTable(
        path / "p.csv", columns=COLUMNS, label_column="y", classes=["a", "b"], on_bad_record="skip"
    )


def lines_in(path, texts):
    write_text_table(texts, path / "p.jsonl")
    return TextTable(path / "p.jsonl", longest=60, on_bad_record="skip")


def files_in(path, texts):
    write_text_folder(texts, path / "p")
    return TextFolder(path / "p", longest=60, on_bad_record="skip")


CLIPPED = ("of an age out of range", "of an age below")
CASES = [
    *((rows_in, ROWS, name, fault) for name, fault in BAD_ROWS.items() if name not in CLIPPED),
    *((lines_in, TEXTS, name, fault) for name, fault in BAD_LINES.items()),
    *((files_in, TEXTS, name, fault) for name, fault in BAD_FILES.items()),
]


def valid_records(source):
    data = source.open()
    bad = {one.index for one in data.check()}
    samples, valid = read(data)
    assert {index for index, ok in enumerate(valid) if not ok} == bad
    return [bytes(one) for one in samples], data.labels[valid].tolist(), len(bad), data


@pytest.mark.parametrize(
    ("make", "records", "name", "fault"),
    CASES,
    ids=[f"{case[0].__name__}-{case[2]}" for case in CASES],
)
def test_a_fault_of_one_record_leaves_all_others_as_they_are(tmp_path, make, records, name, fault):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    *without, no_bad, _ = valid_records(make(tmp_path / "without", records))
    *with_it, bad, _ = valid_records(make(tmp_path / "with", [*records, fault]))
    assert (no_bad, bad) == (0, 1)
    assert sorted(zip(*with_it, strict=True)) == sorted(zip(*without, strict=True))


IDS = ["p1", "p2", "p1", "p3"]


@pytest.mark.parametrize(
    "odd", [None, "", [1], {"a": 1}, 1.5, True, "\u200b", "half \ud83d", 10**1000]
)
def test_a_record_without_a_usable_unit_is_bad(tmp_path, odd):
    lines = [json.dumps({"text": f"t{i}", "who": who}) for i, who in enumerate([*IDS, odd])]
    source = TextTable(
        write(tmp_path / "a.jsonl", "\n".join(lines).encode()),
        privacy_unit="who",
        on_bad_record="skip",
    )
    samples, _, bad, data = valid_records(source)
    assert (samples, bad) == ([b"t0", b"t1", b"t2", b"t3"], 1)
    assert data.units.tolist() == [0, 1, 0, 2, NOBODY]


@pytest.mark.parametrize("alike", ["P1", "p01", "p\u200b1", " p1", "p 1"])
def test_units_that_look_alike_are_one_where_bad_records_are_skipped(tmp_path, alike):
    lines = [json.dumps({"text": f"t{i}", "who": who}) for i, who in enumerate([*IDS, alike])]
    path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    assert TextTable(path, privacy_unit="who", on_bad_record="skip").open().units.tolist() == [
        0,
        1,
        0,
        2,
        0,
    ]
    numbers = [json.dumps({"text": f"t{i}", "who": who}) for i, who in enumerate(["7", 7, "8"])]
    path = write(tmp_path / "b.jsonl", "\n".join(numbers).encode())
    assert TextTable(path, privacy_unit="who", on_bad_record="skip").open().units.tolist() == [
        0,
        0,
        1,
    ]


def test_an_image_that_is_listed_twice_votes_as_one_unit(tmp_path):
    for i, data in enumerate(FILES[:3]):
        write(tmp_path / f"{i}.png", data)
    rows = [
        "0.png,a",
        "1.png,b",
        "0.png,b",
        "gone.png,a",
        "../x.png,a",
        ",a",
        "1.png",
        "2.png,c",
        ".2.png,a",
    ]
    write(tmp_path / "labels.csv", "\n".join(["file,label", *rows]).encode())
    source = ImageFolder(tmp_path, size=8, classes=["a", "b"], on_bad_record="skip")
    samples, labels, bad, data = valid_records(source)
    assert (len(samples), labels, bad) == (3, [0, 1, 1], 6)
    assert data.units.tolist()[:3] == [0, 1, 0]
    with pytest.raises(PrivateDataError):
        ImageFolder(tmp_path, size=8, classes=["a", "b"]).open()


def test_images_of_every_kind_with_a_fault_are_skipped(tmp_path):
    folder = tmp_path / "scans"
    for i, data in enumerate(FILES[:3]):
        write(folder / "cat" / f"{i}.png", data)
    write(folder / "cat" / "cut.png", FILES[0][:50])
    write(folder / "cat" / "empty.png")
    write(folder / "cat" / "large.png", png(np.zeros((9, 9, 3), np.uint8)))
    write(folder / "cat" / "notes.docx", b"?")
    write(folder / "dog" / "0.png", FILES[3])
    write(folder / "top.png", FILES[4])
    (folder / "cat" / "link.png").symlink_to(folder / "cat" / "0.png")
    source = ImageFolder(folder, size=8, classes=["cat"], on_bad_record="skip")
    samples, labels, bad, _ = valid_records(source)
    assert (len(samples), labels, bad) == (
        4,
        [0] * 4,
        6,
    )  # of a single class are the files that lie in no folder, too


def test_samples_of_a_tar_file_with_a_fault_are_skipped(tmp_path):
    members = [
        ("0.png", FILES[0]),
        ("0.json", b'{"label": "cat"}'),
        ("1.png", FILES[1]),
        ("1.json", b'{"label": "cat"}'),
    ]
    faults = [
        [("2.png", FILES[2]), ("2.json", b"{")],
        [("2.png", FILES[2]), ("2.json", b'{"label": "rare-HIV"}')],
        [("2.png", FILES[2])],
        [("2.json", b'{"label": "cat"}')],
        [("2.png", FILES[2]), ("2.png", FILES[3]), ("2.json", b'{"label": "cat"}')],
        [("2.png", FILES[2]), ("2.jpg", FILES[3]), ("2.json", b'{"label": "cat"}')],
        [("2.png", b"cut"), ("2.json", b'{"label": "cat"}')],
    ]
    for number, fault in enumerate(faults):
        path = tar(tmp_path / f"{number}.tar", [*members[:2], *fault, *members[2:]])
        source = WebDataset(
            path, size=8, classes=["cat"], label_column="label", on_bad_record="skip"
        )
        samples, labels, bad, _ = valid_records(source)
        assert (len(samples), labels, bad) == (2, [0, 0], 1), fault


def damaged(member, place, content, checksum=True):
    """A header with other bytes in a place; with its checksum, or the one it had before."""
    header = bytearray(member)
    header[place : place + len(content)] = content
    if checksum:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


HEADERS = {
    "a time that is no number": lambda header: damaged(header, 136, b"x" * 11),
    "an owner that is no number": lambda header: damaged(header, 108, b"x" * 7),
    "a checksum that does not fit": lambda header: damaged(header, 136, b"7", checksum=False),
}


@pytest.mark.parametrize("name", [*HEADERS, "a length of pax", "a time of pax"])
def test_a_damaged_header_of_a_tar_file_is_the_fault_of_one_sample(tmp_path, name):
    path = tmp_path / "a.tar"
    keys = {"a length of pax": "size", "a time of pax": "mtime"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(FILES[number])
            if name in keys and number == 1:
                member.pax_headers = {keys[name]: "many"}
            file.addfile(member, io.BytesIO(FILES[number]))
    if name in HEADERS:
        data = path.read_bytes()
        start = data.index(b"1.png")
        header = HEADERS[name](data[start : start + 512])
        path.write_bytes(data[:start] + header + data[start + 512 :])
    samples, _, bad, data = valid_records(WebDataset(path, size=8, on_bad_record="skip"))
    is_harmless = name == "a time of pax"
    assert (len(samples), bad, len(data)) == ((3, 0, 3) if is_harmless else (2, 1, 3))
    if not is_harmless:
        with pytest.raises(PrivateDataError, match=r"'1\.png' in .* header is damaged"):
            WebDataset(path, size=8).open()


def of_bytes(kind, *values, width=8):
    content = b"".join(value.to_bytes(width, "little") for value in values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(content)])


def with_bad_text():
    """Views of texts, the second of which has its first letters wrong."""
    _, views, letters = pa.array(["cat", "x" * 40, "cat"], pa.string_view()).buffers()
    buffers = [None, views, pa.py_buffer(b"y" + letters.to_pybytes()[1:])]
    return pa.Array.from_buffers(pa.string_view(), 3, buffers)


CELLS = {
    "an index": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 9, 0], pa.int8()), pa.array(["cat"]), safe=False
    ),
    "a view": with_bad_text,
    "a date": lambda: of_bytes(pa.date64(), 0, 5, 0),
    "a time": lambda: of_bytes(pa.time32("s"), 0, 90_000, 0, width=4),
    "a decimal": lambda: of_bytes(pa.decimal128(3), 0, 10**9, 0, width=16),
    "an offset": lambda: pa.Array.from_buffers(
        pa.binary(),
        3,
        [None, pa.py_buffer(np.array([0, 3, 2**30, 6], np.int32)), pa.py_buffer(b"catdog")],
    ),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_damaged_cell_of_an_arrow_file_leaves_others_as_they_are(tmp_path, name, stream):
    table = pa.table({"text": ["one", "two", "three"], "who": CELLS[name]()})
    path = arrow(tmp_path / "a.arrow", table, stream)
    data = TextTable(path, privacy_unit="who", on_bad_record="skip").open()
    assert len(data) == 3
    assert 1 in [one.index for one in data.check()]
    rows = list(read_rows_or_faults(path, ["text", "who"]))
    faults = [place for place, row in enumerate(rows) if isinstance(row, BadSample)]
    assert faults == ([1, 2] if name == "an offset" else [1])  # an offset ends one cell, begins one
    assert rows[0][0] == "one"
    with pytest.raises(PrivateDataError, match=r"Row 2 of .* cannot be read as Arrow"):
        TextTable(path, privacy_unit="who").open()


def test_a_missing_class_list_names_no_label_where_bad_records_are_skipped(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text": "t", "label": "rare-HIV"}')
    for rule, names in (("fail", "[rare-HIV]"), ("skip", "[…]")):
        with pytest.raises(PrivateDataError, match=re.escape(names)):
            TextTable(path, label_column="label", on_bad_record=rule).open()


def test_labels_of_an_array_are_skipped_one_by_one(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS[:3], labels=np.array(["cat", "rare", "cat"]))
    source = ImageNpz(tmp_path / "a.npz", size=8, classes=["cat"], on_bad_record="skip")
    samples, labels, bad, _ = valid_records(source)
    assert (len(samples), labels, bad) == (2, [0, 0], 1)


def test_a_long_label_of_an_array_is_skipped_alone(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS[:3], labels=np.array(["cat", "x" * 2000, "cat"]))
    source = ImageNpz(tmp_path / "a.npz", size=8, classes=["cat"], on_bad_record="skip")
    samples, labels, bad, _ = valid_records(source)
    assert (len(samples), labels, bad) == (2, [0, 0], 1)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_of_an_archive_is_told_in_a_sentence(tmp_path, save):
    """The archive has one checksum for all images: no record is known to be the bad one."""
    path = tmp_path / "a.npz"
    save(path, images=PIXELS[:3], labels=np.array(["cat"] * 3), **{"a" * 1100: np.zeros(3)})
    data = path.read_bytes()
    source = ImageNpz(path, size=8, classes=["cat"], on_bad_record="skip")
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with suppress(PrivateDataError):
            source.open().check()


def deep(path):
    """Put a text below so many folders that no path is long enough for it."""
    os.chdir(path)
    for _ in range(2100):
        os.mkdir("a")  # noqa: PTH102
        os.chdir("a")
    (path.__class__("x.txt")).write_text("deep")


FOLDERS = {
    "a link to itself": (None, lambda path: (path / "x.txt").symlink_to("x.txt")),
    "a link through a file": (None, lambda path: (path / "x.txt").symlink_to("0.txt/x")),
    "a link to a name that is too long": (
        None,
        lambda path: (path / "x.txt").symlink_to("y" * 300),
    ),
    "too deep a folder": (None, deep),
    "a folder of a single class": (["cat"], lambda path: write(path / "dog" / "x.txt", b"a dog")),
    "a folder beside foreign metadata": (
        ["cat"],
        lambda path: write(path / "dog" / "x.txt", b"a dog"),
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_no_link_and_no_folder_takes_other_files_with_it(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes, add = FOLDERS[name]
    for place in ("without", "with"):
        for number, text in enumerate(TEXTS):
            write(
                tmp_path / place / ("cat" if "metadata" in name else "") / f"{number}.txt",
                text.encode(),
            )
        if "metadata" in name:
            write(tmp_path / place / "metadata.csv", b"file_name,label\n0.txt,cat")
    add(tmp_path / "with")
    sources = (
        TextFolder(tmp_path / place, classes=classes, on_bad_record="skip")
        for place in ("without", "with")
    )
    try:
        (*without, no_bad, _), (*with_it, bad, _) = map(valid_records, sources)
    finally:
        os.system(f"rm -rf {tmp_path}/with")  # deeper than Python's own function goes
    assert (without, no_bad, bad) == (with_it, 0, 1)


@pytest.mark.parametrize("head", [b"\xff\xfe{", b"\xfe\xff{", b"\x1f\x8b", b"PK\x03\x04", b"PAR1"])
def test_the_first_record_does_not_say_what_the_file_is(tmp_path, head):
    path = write(tmp_path / "a.jsonl", head + b'\n{"text": "t0"}\n{"text": "t1"}')
    samples, _, bad, _ = valid_records(TextTable(path, on_bad_record="skip"))
    assert (samples, bad) == ([b"t0", b"t1"], 1)


@pytest.mark.parametrize("encoding", ["utf-16", "UTF_32_LE", "hz", "iso2022_jp", "utf-7"])
def test_an_encoding_in_which_one_record_can_spoil_others_is_refused_before_a_record_is_read(
    tmp_path, encoding
):
    (tmp_path / "p.csv").write_bytes("text\nwet gardens\n".encode(encoding))
    source = TextTable(tmp_path / "p.csv", longest=60, encoding=encoding, on_bad_record="skip")
    with pytest.raises(PrivateDataError, match="does not go with `on_bad_record: skip`"):
        source.open()
    assert len(TextTable(tmp_path / "p.csv", longest=60, encoding=encoding).open()) == 1


def test_a_line_as_long_as_may_be_takes_no_other_with_it(tmp_path):
    for length in (2**24 - 1, 2**24, 2**24 + 1):
        line = b'{"text": "' + b"x" * (length - 13) + b'"}\n'
        assert len(line) == length
        path = write(tmp_path / "a.jsonl", b'{"text": "t0"}\n' + line + b'{"text": "t1"}\n')
        samples, _, bad, _ = valid_records(TextTable(path, on_bad_record="skip"))
        assert (samples, bad) == ([b"t0", b"t1"], 1)


MARKS = "a" + "\u0315\u0300" * 40_000  # Unicode's normal form C takes very long for them


@pytest.mark.parametrize("key", ["y", "who"])
def test_a_long_name_takes_no_time(tmp_path, key):
    rows = [{"text": f"t{i}", "y": "a", "who": "p"} for i in range(3)]
    lines = [json.dumps(row) for row in [*rows, {"text": "t3", "y": "a", "who": "p", key: MARKS}]]
    path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    source = TextTable(
        path, label_column="y", classes=["a"], privacy_unit="who", on_bad_record="skip"
    )
    samples, _, bad, _ = valid_records(source)
    assert (len(samples), bad) == (3, 1)


def test_names_that_are_no_characters_are_skipped_one_by_one(tmp_path):
    labels = np.array(["cat", "cat", "cat"])
    labels.view(np.uint32)[0] = 0x110000
    np.savez(tmp_path / "a.npz", images=PIXELS[:3], labels=labels, who=labels)
    for unit in ("record", "who"):
        source = ImageNpz(
            tmp_path / "a.npz", size=8, classes=["cat"], privacy_unit=unit, on_bad_record="skip"
        )
        samples, _, bad, _ = valid_records(source)
        assert (len(samples), bad) == (2, 1)


def in_memory(records, **settings):
    given = {"on_bad_record": "skip", "ledger_file": "l.json", **settings}
    return valid_records(source_of(records, given, "pe.evolve", ()))


def test_a_missing_number_makes_no_other_a_fraction():
    for key, settings in {"label": {"classes": [0, 1]}, "who": {"privacy_unit": "who"}}.items():
        samples, labels, bad, data = in_memory(
            pandas.DataFrame({"text": list("pqrs"), key: [0, 1, 0, None]}), **settings
        )
        assert (len(samples), bad, data.units.tolist()[:3]) == (
            3,
            1,
            [0, 1, 0] if key == "who" else [0, 1, 2],
        )
        assert labels == ([0, 1, 0] if key == "label" else [0, 0, 0])


@pytest.mark.parametrize("key", ["image", "label", "labels", "texts", "class"])
def test_a_key_of_one_record_is_no_column(key):
    records = [{"text": f"t{i}"} for i in range(8)]
    assert in_memory([*records, {"text": "t8", key: "rare-HIV"}])[0] == [
        b"t%d" % i for i in range(9)
    ]


class Unread:
    """A data set, as torch has them, one of whose records cannot be read."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise OSError("of Jane Doe")
        return PIXELS[index], "cat"


class Odd:
    ndim = 0

    def item(self):
        raise RuntimeError("of Jane Doe")


def test_what_an_object_raises_is_the_fault_of_one_record():
    samples, _, bad, _ = in_memory(Unread(), size=8, classes=["cat"])
    assert (len(samples), bad) == (3, 1)
    samples, _, bad, _ = in_memory((["p", "q"], ["cat", Odd()]), classes=["cat"])
    assert (samples, bad) == ([b"p"], 1)
