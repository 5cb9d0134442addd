"""Tables from outside, streamed: CSV, TSV, JSON lines, Parquet and Arrow, by the file's suffix.

The first row of CSV and TSV names the columns; cells with separators, quotes or line breaks stand in double quotes
(RFC 4180). A formula is text like any other. Each line of JSON lines is an object. A cell whose bytes are not of the
declared encoding has a lone surrogate for each of them, so that whoever takes it as text can refuse that row alone.
No message holds a cell.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar, cast

from pe.data.columnar import COLUMNAR, open_columns
from pe.data.public_folders import LABELS_CSV, is_clutter
from pe.data.remote import TablePath
from pe.data.strict_json import unlike
from pe.data.text_decoding import UTF_8, with_mark
from pe.errors import BadTable, nearest_name

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", *COLUMNAR)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_WORDS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_MOST_CHARACTERS = 2**24  # of a line
_ROWS_READ = 256
_SPLITS = "dataset_dict.json"  # of `datasets`, beside the folders of several splits
_CACHED = "cache-"  # of `datasets`: what it computed from a data set, in the same folder

Row = tuple[object, ...]
SomePath = TypeVar("SomePath", bound=TablePath)


def table_files(path: SomePath, suffixes: Sequence[str] = SUFFIXES) -> list[SomePath]:
    """The file at `path`, or those of a folder that are tables, in the order of their names.

    Raises:
        BadTable: nothing is there, it is no table, or the folder holds none or several kinds.
    """
    known = ", ".join(suffixes)
    if path.is_file():
        if path.suffix.lower() not in suffixes:
            raise BadTable(f"{path} is of no type that is read here: its name must end in one of {known}.")
        return [path]
    if not path.is_dir():
        raise BadTable(f"{path} does not exist.")
    files = tables_in(path, suffixes)
    if not files:
        if has_splits(path):
            raise BadTable(f"{path} holds a data set of several splits: name the folder of one of them.")
        raise BadTable(f"The folder {path} holds no files of these types: {known}.")
    kinds = sorted({file.suffix.lower() for file in files})
    if len(kinds) > 1:
        raise BadTable(f"The folder {path} holds tables of several kinds ({', '.join(kinds)}): keep one of them.")
    return files


def tables_in(folder: SomePath, suffixes: Sequence[str] = SUFFIXES) -> list[SomePath]:
    """The tables at the top of a folder, but for hidden files, `labels.csv`, and what `datasets` keeps as its cache."""
    inside = cast(Iterator[SomePath], folder.iterdir())
    found = (file for file in inside if file.suffix.lower() in suffixes and file.is_file())
    return sorted(
        file
        for file in found
        if not (is_clutter(file.name) or file.name.startswith(_CACHED) or file.name == LABELS_CSV)
    )


def has_splits(folder: TablePath) -> bool:
    """Whether a folder holds a DatasetDict of `datasets`: a folder for each split."""
    return any(file.name == _SPLITS for file in folder.iterdir())


def columns_of(file: TablePath, encoding: str = UTF_8) -> list[str]:
    """The names of a table's columns; of JSON lines, those of its first row.

    Raises:
        BadTable: the file cannot be read.
        MissingDependency: pyarrow is not installed, which reads Parquet and Arrow.
    """
    suffix = file.suffix.lower()
    if suffix in COLUMNAR:
        with open_columns(file) as opened:
            return list(opened.schema.names)
    with _open_text(file, encoding) as lines:
        if suffix in _SEPARATORS:
            return _header(file, csv.reader(lines, delimiter=_SEPARATORS[suffix], strict=True))
        return list(next(_objects(file, lines), {}))


def read_rows(file: TablePath, columns: Sequence[str], encoding: str = UTF_8) -> Iterator[Row]:
    """The values of these columns, row by row; a few rows are in memory.

    Args:
        file: a table.
        columns: their names.
        encoding: of all but Parquet and Arrow.

    Yields:
        Strings, from CSV and TSV; else what JSON, Parquet or Arrow hold there, None where a row has no such value.

    Raises:
        BadTable: a column is not there, a row is not as its header says, or the file cannot be read.
        MissingDependency: pyarrow is not installed, which reads Parquet and Arrow.
    """
    suffix = file.suffix.lower()
    if suffix in COLUMNAR:
        yield from _columnar_rows(file, columns)
        return
    with _open_text(file, encoding) as lines:
        yield from (_csv_rows if suffix in _SEPARATORS else _json_rows)(file, lines, columns)


def read_lines(file: TablePath, encoding: str = UTF_8) -> Iterator[str]:
    """The lines of a file, each with its end.

    Raises:
        BadTable: the file cannot be read, or a line is longer than any text.
    """
    with _open_text(file, encoding) as lines:
        yield from lines


@contextmanager
def _open_text(file: TablePath, encoding: str) -> Iterator[Iterator[str]]:
    """The lines of a file, each with its end."""
    try:
        with file.open(encoding=with_mark(encoding), errors="surrogateescape", newline="") as opened:
            yield _lines(file, opened)
    except UnicodeError as error:
        raise BadTable(f"{file} is not text in {encoding}: convert it, or declare its encoding.") from error
    except OSError as error:
        raise BadTable(f"{file} cannot be read: {error.strerror}.") from error


def _lines(file: TablePath, text: TextIO) -> Iterator[str]:
    while line := text.readline(_MOST_CHARACTERS):
        if len(line) == _MOST_CHARACTERS:
            raise BadTable(f"{file} has a line of more than {_MOST_CHARACTERS:,} characters: break it up.")
        yield line


def _csv_rows(file: TablePath, lines: Iterator[str], columns: Sequence[str]) -> Iterator[Row]:
    reader = csv.reader(lines, delimiter=_SEPARATORS[file.suffix.lower()], strict=True)
    header = _header(file, reader)
    for column in columns:
        check_column(file, column, header)
    places, count = [header.index(column) for column in columns], 0
    try:
        for row in reader:
            if not row:  # an empty line
                continue
            count += 1
            if len(row) != len(header):
                raise BadTable(
                    f"Row {count:,} of {file} has {len(row):,} cells, and the header {len(header):,}: put cells with "
                    "separators or line breaks in double quotes."
                )
            yield tuple(row[place] for place in places)
    except csv.Error as error:
        raise BadTable(
            f"Row {count + 1:,} of {file} cannot be read: its quotes do not match, or a cell has more than "
            f"{csv.field_size_limit():,} characters."
        ) from error


def _header(file: TablePath, reader: Iterator[list[str]]) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise BadTable(f"The first row of {file} cannot be read: its quotes do not match.") from error
    if not header:
        raise BadTable(f"{file} has no first row that names its columns.")
    if len(set(header)) != len(header):
        raise BadTable(f"{file} has two columns of the same name.")
    return header


def _json_rows(file: TablePath, lines: Iterator[str], columns: Sequence[str]) -> Iterator[Row]:
    known: set[str] = set()
    for found in _objects(file, lines):
        known.update(found)
        yield tuple(found.get(column) for column in columns)
    for column in columns if known else ():
        check_column(file, column, known)


def _objects(file: TablePath, lines: Iterator[str]) -> Iterator[dict[str, object]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=unlike)
        except (ValueError, RecursionError) as error:
            raise BadTable(f"Line {number:,} of {file} is no JSON object whose keys differ.") from error
        if not isinstance(found, dict):
            raise BadTable(f"Line {number:,} of {file} is no JSON object: write one in each line.")
        yield found


def _columnar_rows(file: TablePath, columns: Sequence[str]) -> Iterator[Row]:
    with open_columns(file) as opened:
        for column in columns:
            if opened.schema.names.count(column) != 1:
                check_column(file, column, opened.schema.names)
                raise BadTable(f"{file} has two columns of the same name.")
        for batch in opened.batches(list(dict.fromkeys(columns)), _ROWS_READ):
            yield from zip(*(opened.cells(batch, column) for column in columns), strict=True)


def check_column(file: TablePath, column: str, known: Sequence[str] | set[str]) -> None:
    """Refuse a column that is not there; the nearest is named, not all: without a header they are a record's cells.

    Raises:
        BadTable: it is not among the `known` ones.
    """
    if column in known:
        return
    near = nearest_name(column, known) if known else ""
    hint = near if near.startswith("did") else "name one that it has; of CSV and TSV the first row names them."
    if own := _SEPARATORS.get(file.suffix.lower()):
        other = next((word for mark, word in _WORDS.items() if len(known) == 1 and mark in min(known)), "")
        if any(name.lower().startswith("sep=") for name in known):
            hint = f"it begins with a line sep=: leave that line out, and save the table with {_WORDS[own]}."
        elif other:
            hint = f"its cells are separated by {other}: save it with {_WORDS[own]}."
    raise BadTable(f"{file} has no column '{column}': {hint}")
