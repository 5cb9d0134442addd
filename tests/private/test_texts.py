"""Private texts: folders of .txt files, CSV, TSV, JSON lines and Parquet, and whatever odd things lie in them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe.errors import PEError, PrivateDataError, RecipeError
from pe.private import PrivateDataset, PrivateSource, TextFolder, TextTable
from pe.private.dataset import sample_digest

TEXTS = ["=cmd|'/c calc'!A1", 'two "quoted"\nlines, and a comma', "naïve 日本語", "tab\there"]
LABELS, PATIENTS = ["bad", "good", "bad", "bad"], ["ann", "bob", "ann", "eve"]


def as_csv(path: Path, **columns: Sequence[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])


def as_json_lines(path: Path, **columns: Sequence[Any]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)), "utf-8")


def as_parquet(path: Path, **columns: Sequence[Any]) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=2)


WRITERS: dict[str, Callable[..., None]] = {
    ".csv": as_csv,
    ".tsv": as_csv,
    ".jsonl": as_json_lines,
    ".parquet": as_parquet,
}


def table(path: Path, **settings: Any) -> PrivateDataset:
    defaults = {"classes": ["bad", "good"], "label_column": "label"}
    return TextTable(path, **defaults | settings).open()


def read(data: PrivateDataset) -> list[str]:
    return [str(each) for block, valid in data.blocks(3) for each in block.take(valid).strings]  # type: ignore[attr-defined]


def reasons(source: PrivateSource) -> list[str]:
    """What `on_bad_record: skip` lists, and `fail` refuses."""
    found = [one.reason for one in source.open().check()]
    assert all("\n" not in one and one.endswith(".") for one in found)
    return found


def stopped(open_: Callable[[], PrivateDataset]) -> str:
    with pytest.raises(PrivateDataError) as caught:
        open_().check()
    said = str(caught.value)
    assert "\n" not in said
    assert not any(text[:9] in said for text in TEXTS)
    return said


@pytest.mark.parametrize("suffix", WRITERS)
def test_texts_labels_and_units_come_from_columns(tmp_path: Path, suffix: str) -> None:
    WRITERS[suffix](tmp_path / f"notes{suffix}", who=PATIENTS, text=TEXTS, label=LABELS)
    data = table(tmp_path / f"notes{suffix}", privacy_unit="who")
    assert read(data) == TEXTS
    assert (data.labels.tolist(), data.units.tolist()) == ([0, 1, 0, 0], [0, 1, 0, 2])
    assert (data.classes, data.shape, data.unit_name) == (("bad", "good"), (2000,), "who")
    assert read(data) == TEXTS  # once more
    alone = table(tmp_path / f"notes{suffix}", label_column=None, classes=None)
    assert (alone.classes, alone.units.tolist()) == (("all",), [0, 1, 2, 3])


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path, suffix: str) -> None:
    for name, rows in (("b", slice(2, 4)), ("a", slice(2)), (".hidden", slice(1))):
        WRITERS[suffix](tmp_path / f"{name}{suffix}", text=TEXTS[rows], label=LABELS[rows])
    (tmp_path / "README.md").write_text("about")
    assert read(table(tmp_path)) == TEXTS
    WRITERS[suffix](tmp_path / f"c{suffix}", text=["x"], label=["worse"])
    assert f"Row 1 of {tmp_path}/c{suffix} has the label 'worse'" in stopped(lambda: table(tmp_path))


def test_a_folder_of_files_has_the_labels_and_units_of_its_subfolders(tmp_path: Path) -> None:
    for label, patient, text in zip(LABELS, PATIENTS, TEXTS, strict=True):
        (tmp_path / label / patient).mkdir(parents=True, exist_ok=True)
        (tmp_path / label / patient / f"{TEXTS.index(text)}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    source = TextFolder(tmp_path, classes=["bad", "good"], privacy_unit="subfolder")
    assert sorted(read(source.open())) == sorted(TEXTS)
    assert source.open().units.tolist() == [0, 0, 1, 2]
    (tmp_path / "bad" / "scan.pdf").write_bytes(b"%PDF")
    assert "scan.pdf is no file of a type that is read here" in stopped(source.open)
    (tmp_path / "labels.csv").write_text("file,label,who\ngood/bob/1.txt,good,bob\n")
    listed = TextFolder(tmp_path, classes=["bad", "good"], privacy_unit="who").open()
    assert read(listed) == TEXTS[1:2]
    (tmp_path / "empty").mkdir()
    assert len(TextFolder(tmp_path / "empty").open()) == 0


ODD = {
    "nul": (b"a\0b", "holds a NUL"),
    "utf16": ("été".encode("utf-16-le"), "is not text in utf-8|holds a NUL"),
    "latin": ("été".encode("latin-1"), "is not text in utf-8"),
    "empty": (b"", "is empty"),
    "blank": (b"\xef\xbb\xbf \r\n\t\x07", "is empty"),
    "long": ("é".encode() * 11, "has more than 20 bytes: raise longest, or set cut: true"),
    "huge": (b"x" * 10**6, "has more than 20 bytes"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_casts_no_vote_or_stops_the_start(tmp_path: Path, name: str) -> None:
    content, sentence = ODD[name]
    (tmp_path / "good.txt").write_text("\x1b[31mred\x07 " + "e\u0301" * 6 + "\r\n", encoding="utf-8")
    (tmp_path / "odd.txt").write_bytes(content)
    (reason,) = reasons(TextFolder(tmp_path, longest=20, on_bad_record="skip"))
    assert reason.startswith(f"{tmp_path}/odd.txt ")
    assert any(part in reason for part in sentence.split("|"))
    assert read(TextFolder(tmp_path, longest=20, on_bad_record="skip").open()) == ["[31mred éééééé"]
    assert "Repair or remove it, or set on_bad_record: skip" in stopped(TextFolder(tmp_path, longest=20).open)


def test_a_longer_text_is_cut_where_that_is_declared(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("日本" * 10**5, encoding="utf-8")
    (tmp_path / "2.txt").write_text("word and more", encoding="utf-8")
    assert read(TextFolder(tmp_path, longest=8, cut=True).open()) == ["日本", "word and"]
    as_parquet(tmp_path / "a.parquet", text=["日本" * 10**6, "ab"])
    assert read(TextTable(tmp_path / "a.parquet", longest=8, cut=True).open()) == ["日本", "ab"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-32"])
def test_another_encoding_is_declared(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("text\r\nété\r\n".encode(encoding))
    assert read(TextTable(tmp_path / "a.csv", encoding=encoding, longest=5).open()) == ["été"]
    (tmp_path / "a.txt").write_bytes("été".encode(encoding))
    assert read(TextFolder(tmp_path, encoding=encoding, longest=5).open()) == ["été"]


@pytest.mark.parametrize("name", ["ebcdic", "zlib", "rot13", ""])
def test_what_is_no_encoding_of_text_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="is no encoding of text"):
        TextFolder("notes", encoding=name)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"text,label\nfine,bad\n\xff\xfe,good\n", "The text in row 2 of {} is not text in utf-8"),
        ("a.csv", b'text,label\n"",bad\nfine,bad', "The text in row 1 of {} is empty."),
        ("a.jsonl", b'{"text": "half \\ud83d", "label": "bad"}\n\n{"text": "x", "label": "bad"}', "row 1 of {} is not"),
        ("a.jsonl", b'{"label": "bad"}\n{"text": "x", "label": "bad"}', "The text in row 1 of {} is missing."),
        ("a.jsonl", b'{"text": 7, "label": "bad"}\n{"text": "x", "label": "bad"}', "is of type int, and no text."),
        (
            "a.tsv",
            b"text\tlabel\n" + b"x" * 9000 + b"\tbad\ny\tbad",
            "text in row 1 of {} has more than 2,000 bytes",
        ),
    ],
)
def test_an_odd_cell_is_a_bad_record(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    settings = {"classes": ["bad", "good"], "label_column": "label"}
    (reason,) = reasons(TextTable(path, **settings, on_bad_record="skip"))
    assert sentence.format(path) in reason
    assert sentence.format(path) in stopped(lambda: table(path))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "text,label\nfine,bad\nfine,bad,more\n", "Row 2 of {} has 3 cells, and the header 2"),
        ("a.csv", "text,label\nfine\n", "Row 1 of {} has 1 cells, and the header 2"),
        ("a.csv", "text,label,text\nfine,bad,x\n", "{} has two columns of the same name."),
        ("a.csv", 'text,label\nfine,bad\n"open,bad\n', "Row 2 of {} cannot be read: its quotes do not match"),
        ("a.csv", "", "{} has no first row"),
        ("a.csv", "=cmd|'/c calc'!A1,bad\n", "{} has no column 'label': name one that it has; of CSV"),
        ("a.csv", "texts,label\nfine,bad\n", "{} has no column 'text': did you mean 'texts'?"),
        ("a.csv", "text,label\n" + "x" * 200_000 + ",bad\n", "a cell has more than 131,072 characters."),
        ("a.jsonl", '{"text": "fine", "label": "bad"}\n{"text"', "Line 2 of {} is no JSON object"),
        ("a.jsonl", '{"text": "a", "text": "b", "label": "bad"}', "Line 1 of {} is no JSON object whose keys differ"),
        ("a.jsonl", '["fine", "bad"]', "Line 1 of {} is no JSON object: write one in each line."),
        ("a.jsonl", "[" * 10**5, "Line 1 of {} is no JSON object"),
        ("a.jsonl", '{"text": "fine"}', "{} has no column 'label'"),
        ("a.jsonl", '{"text": "fine"}\n{"text": "x", "label": "bad"}', "Row 1 of {} has no label"),
        ("a.parquet", "text", "{} cannot be read as Parquet"),
        ("a.docx", "text", "{} is of no type that is read here"),
    ],
)
def test_a_table_that_is_not_as_declared_stops_the_start(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert sentence.format(tmp_path / name) in stopped(lambda: table(tmp_path / name, on_bad_record="skip"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label_column": None}, "label_column is not set, and classes lists 2 classes"),
        ({"label_column": "text"}, "text_column is 'text', as another column is"),
        ({"privacy_unit": "subfolder"}, "a table has no subfolders"),
        ({"privacy_unit": "whom"}, "has no column 'whom': did you mean 'who'?"),
    ],
)
def test_columns_are_declared(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    as_csv(tmp_path / "a.csv", text=TEXTS, label=LABELS, who=PATIENTS)
    assert sentence in stopped(lambda: table(tmp_path / "a.csv", **settings))


def test_a_folder_of_nothing_or_of_several_kinds_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in stopped(lambda: table(tmp_path / "none"))
    assert "holds no files of these types: .csv, .tsv" in stopped(lambda: table(tmp_path))
    as_csv(tmp_path / "a.csv", text=TEXTS, label=LABELS)
    as_json_lines(tmp_path / "a.jsonl", text=TEXTS, label=LABELS)
    assert "holds tables of several kinds (.csv, .jsonl): keep one" in stopped(lambda: table(tmp_path))


@pytest.mark.parametrize("suffix", WRITERS)
def test_equal_texts_have_one_digest_whatever_file_they_lie_in(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("cafe\u0301\r\n", encoding="utf-8")
    WRITERS[suffix](tmp_path / f"a{suffix}", text=["café"])
    one, other = (
        next(iter(source.open().preflight(b"").digests))
        for source in (TextFolder(tmp_path / "notes"), TextTable(tmp_path / f"a{suffix}", longest=99))
    )
    texts, _ = next(TextFolder(tmp_path / "notes").open().blocks(4))
    assert one.tobytes() == other.tobytes() == sample_digest(texts.array[0])


def test_what_decodes_for_the_public_clock_reads_as_much_as_any_record() -> None:
    assert len(bytes(TextFolder("notes", longest=50).decoding()())) == 50  # type: ignore[call-overload]


def test_a_text_that_changes_between_two_readings_stops_the_run(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", text=TEXTS)
    data = TextTable(tmp_path / "a.csv").open()
    as_csv(tmp_path / "a.csv", text=TEXTS[:2])
    with pytest.raises(PEError, match="changed while they were read"):
        read(data)
