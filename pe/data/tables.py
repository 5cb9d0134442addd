"""Tables and folders from outside, read as a stream, and public texts in them.

Tables are CSV, TSV, JSON lines, Parquet and Arrow. The first row of CSV and TSV names the columns;
cells with separators, quotes or line breaks stand in double quotes (RFC 4180). A formula is text
like any other. Each line of JSON lines is an object. A cell whose bytes are not of the declared
encoding has lone surrogates in their place, so that a reader of texts can refuse that row alone.

A fault of one row is that row's alone: where a row of several lines cannot be read, its first line
is the bad row, and reading goes on with the next line. A cell of Arrow that is not of its type
makes its row a bad one. No message contains a cell.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from pe.data.cells import SURROGATE, UNREADABLE
from pe.data.remote import TablePath
from pe.data.strict_json import unlike
from pe.data.texts import UTF_8, decode_text, with_mark
from pe.errors import BadSample, BadTable, MissingDependency, RecipeError, nearest_name

ARROW = ".arrow"
COLUMNAR = (".parquet", ARROW)
_MOST_BYTES = 2**22  # that are read of a text
_MOST_IN_BATCH = 2**26  # bytes of a column's cells that are in memory at a time
_ARROW_FILE = b"ARROW1"
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class ColumnFile:
    """An open Parquet or Arrow file."""

    schema: Any  # pyarrow's; its metadata may hold Hugging Face's
    # columns, most rows of a record batch ↦ record batches, and places of rows that cannot be read;
    # to be called once
    batches: Callable[[Sequence[str], int], Iterator[tuple[Any, Collection[int]]]]


def name_numbers(values: Iterable[Any], names: Sequence[str]) -> Iterator[Any]:
    """Yield a column's values. Whole numbers that count into `names` become the names."""
    for value in values:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        yield names[value] if is_number and 0 <= value < len(names) else value


def arrow_cells(column: Any) -> Iterator[object]:
    """Yield the values of an array of pyarrow.

    Bytes that are no text become surrogates. A value that Python cannot hold, such as a date beyond
    the year 9999, is UNREADABLE. The values of a dictionary are looked up one by one, because the
    whole column may be thousands of times as large as the file.
    """
    from pyarrow import types

    is_dictionary = types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    is_text = any(
        is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)
    )
    for scalar in column:
        value = scalar.value if is_dictionary and scalar.is_valid else scalar
        if is_text:
            yield _text(value.as_buffer()) if value.is_valid else None
            continue
        try:
            yield value.as_py()
        except (ValueError, OverflowError):
            yield UNREADABLE


def feature_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """Return the names that Hugging Face's metadata give to the numbers of a column, if any."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _text(data: Any) -> str:
    """Return the first _MOST_BYTES of a cell's text.

    Bytes that are not UTF-8 become lone surrogates.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return decoder.decode(bytes(memoryview(data)[:_MOST_BYTES]), data.size <= _MOST_BYTES)


@contextmanager
def open_columns(path: TablePath) -> Iterator[ColumnFile]:
    """Open a file of columns: Arrow by its suffix (IPC, as a stream or a file), else Parquet.

    No file is memory-mapped: a mapped file that is cut off while it is read would end the process.

    Raises:
        BadTable: the file cannot be read.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependency.of(
            "pyarrow",
            "parquet",
            "Reading Parquet and Arrow files",
        ) from error
    is_arrow = path.suffix.lower() == ARROW
    try:
        with ExitStack() as stack:
            content = stack.enter_context(path.open("rb"))
            if is_arrow:
                yield _arrow_file(stack.enter_context(arrow.PythonFile(content, "r")), arrow)
                return
            file = stack.enter_context(
                parquet.ParquetFile(content, pre_buffer=False, buffer_size=2**20)
            )

            # A page of a dictionary is small, and the cells that it stands for may not be.
            def batches(columns: Sequence[str], together: int) -> Iterator[tuple[Any, set[int]]]:
                rows = max(
                    min(together, _MOST_IN_BATCH // _largest_cell(file.metadata, columns)),
                    1,
                )
                for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                    yield batch, set()

            yield ColumnFile(file.schema_arrow, batches)
    except UnicodeDecodeError as error:
        raise BadTable(
            f"{path} has a column's name, or a text in a list, that is not UTF-8: write it anew."
        ) from error
    except (arrow.ArrowException, OSError) as error:
        kind = "Arrow" if is_arrow else "Parquet"
        raise BadTable(
            f"{path} cannot be read as {kind}: it is damaged or of another format."
        ) from error


def _largest_cell(metadata: Any, columns: Sequence[str]) -> int:
    """Return the most bytes, ≥ 1, that a cell may take.

    A dictionary holds a cell once, for any number of rows.
    """
    chunks = (
        metadata.row_group(i).column(j)
        for i in range(metadata.num_row_groups)
        for j in range(metadata.num_columns)
    )
    sizes = (
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.has_dictionary_page
        and any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns)
    )
    return max(sizes, default=1) or 1


def _arrow_file(content: Any, arrow: Any) -> ColumnFile:
    """Open Arrow's IPC, and check its end.

    A stream that breaks off between two batches would otherwise read as a whole one.
    """
    if content.size() < len(_ARROW_END):
        raise arrow.ArrowInvalid("too short")
    if content.read(len(_ARROW_FILE)) == _ARROW_FILE:
        reader = arrow.ipc.open_file(content)
        whole = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        content.seek(content.size() - len(_ARROW_END))
        if content.read() != _ARROW_END:
            raise arrow.ArrowInvalid("no end")
        content.seek(0)
        whole = reader = arrow.ipc.open_stream(content)

    def batches(columns: Sequence[str], _: int) -> Iterator[tuple[Any, set[int]]]:
        for batch in whole:
            selection = batch.select(columns)
            bad: set[int] = set()
            yield selection, bad.union(*map(_bad_places, selection.columns))

    return ColumnFile(reader.schema, batches)


def _is_valid(column: Any) -> bool:
    from pyarrow import ArrowException

    try:
        column.validate(full=True)
    except ArrowException:
        return False
    return True


def _bad_places(column: Any) -> set[int]:
    """Return the places of cells that are not of their type, and may point anywhere.

    A text that is not UTF-8 is none of them.
    """
    import pyarrow as arrow

    plain = {
        arrow.string(): arrow.binary(),
        arrow.large_string(): arrow.large_binary(),
        arrow.string_view(): arrow.binary_view(),
    }
    kind = column.type
    if kind in plain:
        column = column.view(plain[kind])
    if _is_valid(column):
        return set()
    # A slice would be checked together with all that a dictionary or a struct holds.
    if arrow.types.is_dictionary(kind):
        column.indices.validate()
        good = {None, *range(len(column.dictionary))} - _bad_places(column.dictionary)
        return {i for i, index in enumerate(column.indices.to_pylist()) if index not in good}
    if arrow.types.is_struct(kind):
        return set().union(*map(_bad_places, column.flatten()))
    return {i for i in range(len(column)) if not _is_valid(column.slice(i, 1))}


# Folders: the files in them, and labels of public ones.

LABELS_CSV = "labels.csv"
# fmt: off
_CLUTTER = frozenset({
    "@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@snapshot",
    "@sharesnap", "@__thumb", "@transcode", "~snapshot", "lost+found", "$recycle.bin", "found.000",
    "system volume information", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini",
    "__macosx", "network trash folder", "temporary items", "icon\r", "dicomdir",
})
# fmt: on


def is_clutter(name: str) -> bool:
    """Return True for names of hidden or system files and folders.

    The copies and deleted files in them are no samples.
    """
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _CLUTTER


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, at any depth, without clutter."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_clutter(name)]
        yield from (Path(parent, name) for name in names if not is_clutter(name))


def files_below(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the files of a folder, at any depth, whose names end in one of `suffixes`, sorted.

    Clutter is left out.
    """
    return sorted(path for path in walk(folder) if path.suffix.lower() in suffixes)


def folder_labels(folder: Path, files: Sequence[Path]) -> list[str | None]:
    """Return the label of each of the `files` in `folder`.

    Labels stand in the columns `file` and `label` of its `labels.csv`. A file that is not listed
    there has the name of the top subfolder that holds it, or None.
    """
    table = folder / LABELS_CSV
    columns = ["file", "label"]
    has_labels = table.is_file() and {*columns} <= {*columns_of(table)}
    rows = read_rows(table, columns) if has_labels else ()
    labels: dict[object, Any] = {file: label for file, label in rows if file and label}
    places = [path.relative_to(folder) for path in files]
    return [
        labels.get(place.as_posix(), place.parts[0] if len(place.parts) > 1 else None)
        for place in places
    ]


# Tables.

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", *COLUMNAR)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_WORDS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_MOST_CHARACTERS = 2**24  # of a line
ROWS_READ = 256
_NO_TEXT = {
    b"\xff\xfe": "is text in UTF-16: declare `encoding: utf-16`",
    b"\xfe\xff": "is text in UTF-16: declare `encoding: utf-16`",
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"PK\x03\x04": "is a .zip archive or a spreadsheet: save it as CSV",
    b"PAR1": "is a Parquet file: let its name end in .parquet",
}
"""What a file is by its first bytes, if it is no text of one byte a character, and what to do."""
_SPLITS = "dataset_dict.json"  # of `datasets`, beside the folders of several splits
_CACHED = "cache-"  # of `datasets`: what it computed from a data set, in the same folder

Row = tuple[object, ...]
SomePath = TypeVar("SomePath", bound=TablePath)


def table_files(path: SomePath, suffixes: Sequence[str] = SUFFIXES) -> list[SomePath]:
    """Return the table at `path`, or the tables in this folder, sorted.

    Raises:
        BadTable: there are none, or tables of several kinds.
    """
    types = ", ".join(suffixes)
    if path.is_file():
        if path.suffix.lower() not in suffixes:
            raise BadTable(
                f"{path} is of no type that is read here: its name must end in one of {types}."
            )
        return [path]
    if not path.is_dir():
        raise BadTable(f"{path} does not exist.")
    files = tables_in(path, suffixes)
    if not files:
        if has_splits(path):
            raise BadTable(
                f"{path} holds a data set of several splits: name the folder of one of them."
            )
        raise BadTable(f"The folder {path} holds no files of these types: {types}.")
    kinds = sorted({file.suffix.lower() for file in files})
    if len(kinds) > 1:
        raise BadTable(
            f"The folder {path} holds tables of several kinds ({', '.join(kinds)}): keep one of "
            "them."
        )
    return files


def tables_in(folder: SomePath, suffixes: Sequence[str] = SUFFIXES) -> list[SomePath]:
    """Return the tables at the top of a folder, sorted.

    Hidden files, `labels.csv` and the cache of `datasets` are left out.
    """
    inside = cast(Iterator[SomePath], folder.iterdir())
    files = (file for file in inside if file.suffix.lower() in suffixes and file.is_file())
    return sorted(
        each
        for each in files
        if not (is_clutter(each.name) or each.name.startswith(_CACHED) or each.name == LABELS_CSV)
    )


def has_splits(folder: TablePath) -> bool:
    """Return True if a folder holds a DatasetDict of `datasets`: a folder for each split."""
    return any(file.name == _SPLITS for file in folder.iterdir())


def columns_of(file: TablePath, encoding: str = UTF_8) -> list[str]:
    """Return the names of a table's columns: of JSON lines, those in the first row.

    Raises:
        BadTable: the table cannot be read.
    """
    suffix = file.suffix.lower()
    if suffix in COLUMNAR:
        with open_columns(file) as content:
            return list(content.schema.names)
    with _open_text(file, encoding) as lines:
        if suffix in _SEPARATORS:
            return [name for name in _header(file, lines) if name]
        first = next(_objects(file, lines), {})
        if isinstance(first, BadSample):
            raise BadTable(str(first))
        return list(first)


def read_rows(
    file: TablePath,
    columns: Sequence[str],
    encoding: str = UTF_8,
    together: int = ROWS_READ,
) -> Iterator[Row]:
    """Yield the values of `columns`, which may be empty, as one tuple for each row.

    Values are strings from CSV and TSV, else what JSON, Parquet or Arrow hold there; None where a
    row has no value. `encoding` does not concern Parquet and Arrow, whose rows are taken in batches
    of at most `together`.

    Raises:
        BadTable: the file cannot be read.
    """
    names: set[str] = set()
    for row in read_rows_or_faults(file, columns, encoding, together, names):
        if isinstance(row, BadSample):
            raise BadTable(str(row))
        yield row
    for column in columns if names else ():
        check_column(file, column, names)


def read_rows_or_faults(
    file: TablePath,
    columns: Sequence[str],
    encoding: str = UTF_8,
    together: int = ROWS_READ,
    names: set[str] | None = None,
) -> Iterator[Row | BadSample]:
    """Yield what `read_rows` does, but a BadSample in the place of a row that cannot be read.

    It says why; no fault of one row raises an error. In JSON lines, a column that no row has is
    missing in all; `names` gets the keys that there are.
    """
    suffix = file.suffix.lower()
    if suffix in COLUMNAR:
        yield from _columnar_rows(file, columns, together)
        return
    # The first line of JSON lines is a record, which alone must not say what the file is.
    with _open_text(file, encoding, names is not None or suffix in _SEPARATORS) as lines:
        if suffix in _SEPARATORS:
            yield from _csv_rows(file, lines, columns)
            return
        for row in _objects(file, lines):
            if isinstance(row, BadSample):
                yield row
                continue
            if names is not None:
                names.update(row)
            yield tuple(row.get(column) for column in columns)


codecs.register_error("lone-surrogate", lambda error: ("\udcff", getattr(error, "end", 0)))


@contextmanager
def _open_text(
    file: TablePath,
    encoding: str,
    is_checked: bool = True,
) -> Iterator[_Lines]:
    """Open the lines of a file.

    Bytes that are not of the encoding become lone surrogates, in any encoding.
    """
    try:
        with file.open("rb") as content:
            head = content.read(4)
        what = next((what for mark, what in _NO_TEXT.items() if head.startswith(mark)), "")
        if (
            what
            and is_checked
            and not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
        ):
            raise BadTable(f"{file} {what}.")
        with file.open(encoding=with_mark(encoding), errors="lone-surrogate", newline="") as text:
            yield _Lines(file, text)
    except OSError as error:
        raise BadTable(f"{file} cannot be read: {error.strerror}.") from error


class _Lines:
    """The lines of a text.

    Lines that were taken for a row that cannot be read are given back, except the first.
    """

    def __init__(self, file: TablePath, text: IO[str]) -> None:
        self._file = file
        self._text = text
        self._taken: list[str] = []
        self._again: list[str] = []  # the next one last

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else self._text.readline(_MOST_CHARACTERS)
        if not line:
            raise StopIteration
        self._taken.append(line)
        if len(line) == _MOST_CHARACTERS:
            while line[-1:] not in ("\n", "\r", ""):
                line = self._text.readline(_MOST_CHARACTERS)
            raise BadSample(
                f"{self._file} has a line of more than {_MOST_CHARACTERS:,} characters: break it "
                "up."
            )
        return line

    def keep(self) -> None:
        """Keep what was taken: the row was read."""
        self._taken.clear()

    def give_back(self) -> None:
        """Give back what was taken after the first line."""
        self._again += reversed(self._taken[1:])
        self._taken.clear()


def _csv_rows(
    file: TablePath,
    lines: _Lines,
    columns: Sequence[str],
) -> Iterator[Row | BadSample]:
    header = _header(file, lines)
    for column in columns:
        check_column(file, column, header)
    places = [header.index(column) for column in columns]
    reader = _csv_reader(file, lines)
    count = 0
    while True:
        lines.keep()
        fault = ""
        try:
            row = next(reader)
        except StopIteration:
            return
        except (csv.Error, BadSample):
            fault = (
                "cannot be read: its quotes do not match, or a cell has more than "
                f"{csv.field_size_limit():,} characters."
            )
        else:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                fault = (
                    f"has {len(row):,} cells, and the header {len(header):,}: put cells with "
                    "separators or line breaks in double quotes."
                )
        count += 1
        if fault:
            # A quote that is never closed must not take the rows below with it.
            lines.give_back()
            reader = _csv_reader(file, lines)
            yield BadSample(f"Row {count:,} of {file} {fault}")
        else:
            yield tuple(row[place] for place in places)


def _csv_reader(file: TablePath, lines: _Lines) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=_SEPARATORS[file.suffix.lower()], strict=True)


def _header(file: TablePath, lines: _Lines) -> list[str]:
    """Return the names in the first row of a CSV or TSV file.

    A column whose name is empty cannot be named by anybody.
    """
    try:
        header = next(_csv_reader(file, lines), [])
    except (csv.Error, BadSample) as error:
        raise BadTable(
            f"The first row of {file} cannot be read: its quotes do not match."
        ) from error
    if not any(header):
        raise BadTable(f"{file} has no first row that names its columns.")
    if any(SURROGATE.search(name) for name in header):
        raise BadTable(
            f"The first row of {file} is not text in the encoding that is taken: declare "
            "`encoding`."
        )
    named = [name for name in header if name]
    if len(set(named)) < len(named):
        raise BadTable(f"{file} has two columns of the same name.")
    return header


def _objects(file: TablePath, lines: _Lines) -> Iterator[dict[str, object] | BadSample]:
    """Yield the object on each line, or in its place a BadSample that says why there is none."""
    number = 0
    while True:
        lines.keep()
        number += 1
        try:
            line = next(lines)
            row = json.loads(line, object_pairs_hook=unlike) if line.strip() else None
        except StopIteration:
            return
        except (BadSample, ValueError, RecursionError):
            yield BadSample(f"Line {number:,} of {file} is no JSON object whose keys differ.")
            continue
        if isinstance(row, dict):
            yield row
        elif line.strip():
            yield BadSample(f"Line {number:,} of {file} is no JSON object: write one in each line.")


def _columnar_rows(
    file: TablePath,
    columns: Sequence[str],
    together: int,
) -> Iterator[Row | BadSample]:
    with open_columns(file) as content:
        for column in columns:
            if content.schema.names.count(column) != 1:
                check_column(file, column, content.schema.names)
                raise BadTable(f"{file} has two columns of the same name.")
        names = {column: feature_names(content.schema.metadata, column) for column in columns}
        count = 0
        for batch, bad in content.batches([*names], together):
            start = 0
            for end in (*sorted(bad), batch.num_rows):
                rows = batch.slice(start, end - start)
                cells = [name_numbers(arrow_cells(rows.column(one)), names[one]) for one in columns]
                yield from zip(*cells, strict=True) if cells else repeat((), rows.num_rows)
                if end in bad:
                    yield BadSample(
                        f"Row {count + end + 1:,} of {file} cannot be read as Arrow: it is damaged."
                    )
                start = end + 1
            count += batch.num_rows


def check_column(
    file: TablePath,
    column: str,
    names: Sequence[str] | set[str],
) -> None:
    """Raise BadTable if a column is not among the `names`.

    The message has only the nearest of the names: in a file without a header they are a record's
    cells.
    """
    if column in names:
        return
    hint = nearest_name(column, names) if names else ""
    if not hint.startswith("did"):
        hint = "name one that it has; of CSV and TSV the first row names them."
    own = _SEPARATORS.get(file.suffix.lower())
    if own:
        others = [word for mark, word in _WORDS.items() if mark in min(names)]
        if any(name.lower().startswith("sep=") for name in names):
            hint = (
                "it begins with a line sep=: leave that line out, and save the table with "
                f"{_WORDS[own]}."
            )
        elif others and len(names) == 1:
            hint = f"its cells are separated by {others[0]}: save it with {_WORDS[own]}."
    raise BadTable(f"{file} has no column '{column}': {hint}")


# Public texts on disk.

TEXT = ".txt"
WHOLE = 2**24
"""Most bytes of a .txt file that is read as one text."""


@dataclass(frozen=True)
class PublicText:
    """A public text. Its name tells its place: a line, a row or a file."""

    name: str
    label: str | None
    utf8: bytes


@dataclass(frozen=True)
class TextFiles:
    """Public texts in a file of lines, a folder of .txt files, or tables."""

    # a .txt file, each line of it a text; a folder of .txt files, each a text, labelled by
    # `labels.csv` or the subfolders; a table (CSV, TSV, JSON lines, Parquet, Arrow), or a folder
    # with tables at its top
    path: Path
    text_column: str = "text"  # of tables
    label_column: str | None = None  # of tables; None: no labels
    encoding: str = UTF_8  # of all but Parquet and Arrow

    def check(self) -> None:
        """Raise RecipeError if there is nothing at `path`, or a file of another type.

        No text is read.
        """
        types = (TEXT, *SUFFIXES)
        if not self.path.exists():
            raise RecipeError(
                f"There are no public texts at {self.path}: name a file or a folder that is there."
            )
        if self.path.is_file() and self.path.suffix.lower() not in types:
            raise RecipeError(
                f"{self.path} is no file of public texts: its name must end in one of "
                f"{', '.join(types)}."
            )

    def read(self, longest: int, whole: bool = False) -> Iterator[PublicText]:
        """Yield the texts in order, each cut to `longest` bytes.

        Empty lines, cells and files are passed over. With `whole`, a .txt file is one text, and not
        one for each of its lines.

        Raises:
            RecipeError: there are no texts, or a file that is one text has more than `longest`
                bytes.
            PEError: BadSample, if one is not text in its encoding; BadTable, as `read_rows` raises
                it.
        """
        self.check()
        is_empty = True
        for name, label, source in self._sources(whole):
            size = source.stat().st_size if isinstance(source, Path) else len(source.strip())
            if not size:
                continue
            if isinstance(source, Path) and whole and size > longest:
                raise RecipeError(
                    f"{source} has more than {longest:,} bytes: split it into several files."
                )
            is_empty = False
            utf8 = decode_text(source, longest=longest, cut=True, encoding=self.encoding, name=name)
            yield PublicText(name, label, utf8)
        if is_empty:
            raise RecipeError(
                f"{self.path} holds no public texts ({TEXT}, or {', '.join(SUFFIXES)})."
            )

    def _sources(self, whole: bool) -> Iterator[tuple[str, str | None, str | Path]]:
        """Yield each text's name, its label, and its content or the file that holds it."""
        if self.path.is_file() and self.path.suffix.lower() == TEXT:
            if whole:
                yield str(self.path), None, self.path
            else:
                with _open_text(self.path, self.encoding) as lines:
                    for number, line in enumerate(lines, 1):
                        lines.keep()
                        yield f"line {number:,} of {self.path}", None, line
        elif self.path.is_dir() and not tables_in(self.path):
            files = files_below(self.path, (TEXT,))
            for file, label in zip(files, folder_labels(self.path, files), strict=True):
                yield str(file), label, file
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[tuple[str, str | None, str]]:
        columns = (
            [self.text_column]
            if self.label_column is None
            else [self.text_column, self.label_column]
        )
        for file in table_files(self.path):
            for number, (text, *label) in enumerate(read_rows(file, columns, self.encoding), 1):
                if text is not None and not isinstance(text, str):
                    raise RecipeError(
                        f"Row {number:,} of {file} holds no text in '{self.text_column}'."
                    )
                yield f"row {number:,} of {file}", str(label[0]) if label else None, text or ""
