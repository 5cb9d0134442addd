"""Private texts in tables: CSV, TSV, JSON lines, Parquet or Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from pe.data.remote import Place, TablePath
from pe.data.samples import Array
from pe.data.tables import Row, columns_of, read_rows, table_files
from pe.errors import BadSample, PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.faults import as_private, place_in
from pe.private.found import FoundColumns, check_columns, label_column, label_names, listed
from pe.private.naming import LabelNumbers, UnitNumbers
from pe.private.source import RECORD, SUBFOLDER, Text, source
from pe.private.text_source import TextSource

_ROWS_LOOKED_AT = 32


@source
class TextTable(TextSource):
    """A CSV, TSV, JSON lines, Parquet or Arrow file, or a folder of one such kind, by name: one text per row.

    The rows are streamed: no file is in memory as a whole. Parquet and Arrow are always UTF-8.

    Attributes:
        path: the file, or the folder of files; or an address of theirs, such as s3://bucket/folder (extra `remote`).
        text_column: the column of texts.
        label_column: the column of labels; None: no labels.
    """

    path: Place
    _: KW_ONLY
    kind: Literal["text_table"] = "text_table"
    text_column: Text = "text"
    label_column: Text | None = None

    @property
    def place(self) -> TablePath | None:
        """The file or folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; texts are read later, by `check` and `blocks`.

        Raises:
            MissingDependency: pyarrow is not installed, which reads Parquet and Arrow.
            PrivateDataError: no such file, columns that are missing, a row that is not as its header says, no rows,
                labels off the class list.
        """
        self._check_columns()
        with as_private():
            files: Sequence[TablePath] = table_files(self.path)
        ends: list[int] = []  # of the files that were read
        count = 0
        where = place_in(files, ends)
        labels = None if self.label_column is None else LabelNumbers(self.class_names, where)
        units = None if self._unit is None else UnitNumbers(self.privacy_unit, where)
        for file in files:
            for row in self._rows(file):
                count += 1
                if labels is not None:
                    labels.take(row[:1])
                if units is not None:
                    units.take(row[-2:-1])
            ends.append(count)
        return self.bind(_Records(self, files), count, where, labels=labels, units=units)

    @classmethod
    def find(cls, path: Path, text_column: str | None, label: str | None) -> FoundColumns:
        """The columns that `pe init` proposes, and the names in that of labels. Confidential.

        Args:
            path: the file or folder.
            text_column: as the owner names it; None: that of this name, or the one with the most text.
            label: the column of labels as the owner names it; empty: none; None: one with a usual name.

        Raises:
            MissingDependency: pyarrow is not installed, which reads Parquet and Arrow.
            PrivateDataError: no such file; a column that is named is not there, or there is none with text.
        """
        with as_private():
            files = table_files(path)
            columns = columns_of(files[0])
            check_columns(path, (text_column, label), columns)
            text = text_column or (cls.text_column if cls.text_column in columns else _wordiest(files[0], columns))
            if not text:
                raise PrivateDataError(f"{path} has no column of texts: it has {listed(columns)}.")
            if label is None:
                label = label_column(columns, text)
            others = tuple(name for name in columns if name not in (text, label))
            if not label:
                return FoundColumns(text, None, (), others)
            names = label_names(row[0] for file in files for row in read_rows(file, [label]))
            return FoundColumns(text, label, names, others)

    def _check_columns(self) -> None:
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(f"privacy_unit: a table has no subfolders: name a column of {self.path}.")
        if self.text_column in (self.label_column, self.privacy_unit):
            raise PrivateDataError(f"text_column is '{self.text_column}', as another column is: name the texts' own.")
        if self.label_column is None and len(self.class_names or ()) > 1:
            raise PrivateDataError(
                f"label_column is not set, and classes lists {len(self.class_names or ())} classes: name the column of "
                f"{self.path} that holds the labels."
            )

    @property
    def _unit(self) -> str | None:
        """The column of units; None: each record is its own."""
        return None if self.privacy_unit == RECORD else self.privacy_unit

    def _rows(self, file: TablePath) -> Iterator[Row]:
        """Of each row its label and unit, where there are such columns, and its text."""
        columns = [column for column in (self.label_column, self._unit, self.text_column) if column is not None]
        with as_private():
            yield from read_rows(file, columns, self.encoding)


class _Records:
    def __init__(self, source: TextTable, files: Sequence[TablePath]) -> None:
        self._source, self._files = source, files

    def __iter__(self) -> Iterator[Outcome]:
        for file in self._files:
            for number, row in enumerate(self._source._rows(file), 1):
                yield outcome_of(partial(self._read, row[-1], f"The text in row {number:,} of {file}"))

    def _read(self, text: object, name: str) -> Array:
        if text is None:
            raise BadSample(f"{name} is missing.")
        if not isinstance(text, str):
            raise BadSample(f"{name} is of type {type(text).__name__}, and no text.")
        return self._source.read(text, name)


def _wordiest(file: Path, columns: Sequence[str]) -> str:
    """The column whose first cells hold the most text; empty: none holds any."""
    rows = list(islice(read_rows(file, columns), _ROWS_LOOKED_AT))
    text = [sum(len(cell) for cell in column if isinstance(cell, str)) for column in zip(*rows, strict=True)]
    return columns[text.index(max(text))] if any(text) else ""
