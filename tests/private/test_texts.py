"""Private texts: folders of .txt files, CSV, TSV, JSON lines and Parquet, and whatever odd things
lie in them.
"""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe.data.texts import Texts
from pe.errors import PrivateDataError
from pe.private.folder import TextFolder
from pe.private.tables import TextTable
from tests.private.records import fingerprint, read, refused, write
from tests.private_data import dataset_of

TEXTS = ["=cmd|'/c calc'!A1", 'two "quoted"\nlines, and a comma', "naïve 日本語", "tab\there"]
LABELS, PATIENTS = ["bad", "good", "bad", "bad"], ["ann", "bob", "ann", "eve"]
SETTINGS = {"classes": ["bad", "good"], "label_column": "label"}


def as_csv(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])


def as_json_lines(path, columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text(
        "\n".join(json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)), "utf-8"
    )


def as_parquet(path, columns):
    pq.write_table(pa.table(columns), path, row_group_size=2)


WRITERS = {".csv": as_csv, ".tsv": as_csv, ".jsonl": as_json_lines, ".parquet": as_parquet}


def table(path, **settings):
    return TextTable(path, **SETTINGS | settings)


def texts_of(source):
    return [text.decode() for text in read(source.open())[0].tolist()]


@pytest.mark.parametrize("suffix", WRITERS)
def test_texts_labels_and_units_come_from_columns_of_a_file_or_of_a_folder_of_files(
    tmp_path, suffix
):
    place = tmp_path / f"notes{suffix}"
    columns = {"who": PATIENTS, "text": TEXTS, "label": LABELS}
    WRITERS[suffix](place, columns)
    whole = dataset_of(Texts.of(TEXTS), [0, 1, 0, 0], classes=["bad", "good"], units=[0, 1, 0, 2])
    data = table(place, privacy_unit="who").open()
    assert (data.classes, data.shape, data.unit_name) == (("bad", "good"), (2000,), "who")
    assert fingerprint(table(place, privacy_unit="who")) == whole.preflight(b"key").fingerprint
    assert texts_of(table(place)) == TEXTS
    place.unlink()
    for name, rows in (("b", slice(2, 4)), ("a", slice(2)), (".hidden", slice(1))):
        WRITERS[suffix](
            tmp_path / f"{name}{suffix}", {name: column[rows] for name, column in columns.items()}
        )
    write(tmp_path / "README.md", b"about")
    assert fingerprint(table(tmp_path, privacy_unit="who")) == whole.preflight(b"key").fingerprint
    WRITERS[suffix](tmp_path / f"c{suffix}", {"text": ["x"], "label": ["worse"]})
    refused(table(tmp_path), f"Row 1 of {tmp_path}/c{suffix} has the label 'worse'")


def test_a_folder_of_files_has_the_labels_and_units_of_its_subfolders(tmp_path):
    for number, (label, patient, text) in enumerate(zip(LABELS, PATIENTS, TEXTS, strict=True)):
        write(tmp_path / label / patient / f"{number}.txt", b"\xef\xbb\xbf" + text.encode())
    source = TextFolder(tmp_path, classes=["bad", "good"], privacy_unit="subfolder")
    assert texts_of(source) == [TEXTS[0], TEXTS[2], TEXTS[3], TEXTS[1]]
    assert source.open().units.tolist() == [0, 0, 1, 2]
    write(tmp_path / "bad/scan.pdf", b"%PDF")
    refused(source, "scan.pdf is no file of a type that is read here")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\0b", "holds a NUL"),
        ("日".encode("utf-16-le"), "is not text in utf-8"),
        (b"\xef\xbb\xbf \r\n\t\x07", "is empty"),
        ("é".encode() * 11, "has more than 20 bytes: raise longest, or set cut: true"),
    ],
)
def test_an_odd_file_casts_no_vote_or_stops_the_start(tmp_path, content, sentence):
    write(tmp_path / "good.txt", ("\x1b[31mred\x07 " + "e\u0301" * 6 + "\r\n").encode())
    write(tmp_path / "odd.txt", content)
    skipping = TextFolder(tmp_path, longest=20, on_bad_record="skip")
    (bad,) = skipping.open().check()
    assert bad.reason.startswith(f"{tmp_path}/odd.txt {sentence}")
    assert texts_of(skipping) == ["[31mred éééééé"]
    refused(TextFolder(tmp_path, longest=20), "Repair or remove it, or set on_bad_record: skip")


def test_a_longer_text_is_cut_where_that_is_declared(tmp_path):
    write(tmp_path / "1.txt", ("日本" * 10**5).encode())
    write(tmp_path / "2.txt", b"word and more")
    assert texts_of(TextFolder(tmp_path, longest=8, cut=True)) == ["日本", "word and"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-32"])
def test_another_encoding_is_declared(tmp_path, encoding):
    write(tmp_path / "a.csv", "text\r\nété\r\n".encode(encoding))
    assert texts_of(TextTable(tmp_path / "a.csv", encoding=encoding, longest=5)) == ["été"]
    write(tmp_path / "a.txt", "été".encode(encoding))
    assert texts_of(TextFolder(tmp_path, encoding=encoding, longest=5)) == ["été"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.csv",
            b"text,label\nfine,bad\n\xff\xfe,good\n",
            "The text in row 2 of .*/a.csv is not text in utf-8",
        ),
        (
            "a.jsonl",
            b'{"text": "half \\ud83d", "label": "bad"}\n\n{"text": "x", "label": "bad"}',
            "row 1 of .* is not",
        ),
        (
            "a.jsonl",
            b'{"label": "bad"}\n{"text": "x", "label": "bad"}',
            "The text in row 1 of .* is missing.",
        ),
        (
            "a.jsonl",
            b'{"text": 7, "label": "bad"}\n{"text": "x", "label": "bad"}',
            "is of type int, which is not text.",
        ),
        (
            "a.csv",
            b"text,label\nfine,bad\nfine,bad,more\nx,bad\n",
            "Row 2 of .*/a.csv has 3 cells, and the header 2",
        ),
        (
            "a.csv",
            b'text,label\nfine,bad\n"open,bad\nx,bad\n',
            "Row 2 of .* cannot be read: its quotes do not match",
        ),
        (
            "a.csv",
            b"text,label\n" + b"x" * 200_000 + b",bad\nx,bad\n",
            "a cell has more than 131,072 characters.",
        ),
        (
            "a.jsonl",
            b'{"text": "fine", "label": "bad"}\n{"text"',
            "Line 2 of .*/a.jsonl is no JSON object",
        ),
        (
            "a.jsonl",
            b'["fine", "bad"]\n{"text": "x", "label": "bad"}',
            "Line 1 of .*: write one in each line.",
        ),
        (
            "a.jsonl",
            b"[" * 10**5 + b'\n{"text": "x", "label": "bad"}',
            "Line 1 of .* is no JSON object",
        ),
    ],
)
def test_an_odd_cell_is_a_bad_record(tmp_path, name, content, sentence):
    source = table(write(tmp_path / name, content), on_bad_record="skip")
    (bad,) = source.open().check()
    assert refused(table(tmp_path / name), sentence).startswith(bad.reason)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "text,label,text\nfine,bad,x\n", "a.csv has two columns of the same name."),
        (
            "a.csv",
            "=cmd|'/c calc'!A1,bad\n",
            "a.csv has no column 'label': name one that it has; of CSV",
        ),
        ("a.csv", "text;label\na;cat\n", "separated by semicolons: save it with commas"),
        ("a.tsv", "text,label\na,cat\n", "separated by commas: save it with tabs"),
        (
            "a.csv",
            "sep=;\ntext;label\n",
            "a line sep=: leave that line out, and save the table with commas",
        ),
    ],
)
def test_a_table_that_is_not_as_declared_stops_the_start(tmp_path, name, content, sentence):
    said = refused(table(write(tmp_path / name, content.encode()), on_bad_record="skip"), sentence)
    assert "fine" not in said
    assert "=cmd" not in said


def test_a_table_that_changes_between_two_readings_stops_the_run(tmp_path):
    as_csv(tmp_path / "a.csv", {"text": TEXTS})
    data = TextTable(tmp_path / "a.csv").open()
    as_csv(tmp_path / "a.csv", {"text": TEXTS[:2]})
    with pytest.raises(PrivateDataError, match="changed while they were read"):
        read(data)
