"""Private texts in tables: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Literal

from pe.data.samples import Array
from pe.data.tables import Row, read_rows, table_files
from pe.errors import BadSample, PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.faults import as_private
from pe.private.source import RECORD, SUBFOLDER, Text, source
from pe.private.text_source import TextSource


@source
class TextTable(TextSource):
    """A CSV, TSV, JSON lines or Parquet file, or a folder of one such kind, in the order of names: one text per row.

    The rows are streamed: no file is in memory as a whole. Parquet is always UTF-8.

    Attributes:
        path: the file, or the folder of files.
        text_column: the column of texts.
        label_column: the column of labels; None: no labels.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["text_table"] = "text_table"
    text_column: Text = "text"
    label_column: Text | None = None

    @property
    def place(self) -> Path | None:
        """The file or folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; texts are read later, by `check` and `blocks`.

        Raises:
            MissingDependency: pyarrow is not installed, which reads Parquet.
            PrivateDataError: no such file, columns that are missing, a row that is not as its header says, no rows,
                labels off the class list.
        """
        self._check_columns()
        labels: list[object] = []
        units: list[object] = []
        ends: list[int] = []
        count = 0
        with as_private():
            files = table_files(self.path)
        for file in files:
            for row in self._rows(file):
                count += 1
                if self.label_column is not None:
                    labels.append(row[0])
                if self._unit is not None:
                    units.append(row[-2])
            ends.append(count)
        if not count:
            raise PrivateDataError(f"{self.path} holds no rows.")

        def where(index: int) -> str:
            file = next(i for i, end in enumerate(ends) if index < end)
            return f"Row {index - (ends[file - 1] if file else 0) + 1:,} of {files[file]}"

        return self.bind(
            _Records(self, files),
            count,
            where,
            labels=None if self.label_column is None else labels,
            units=None if self._unit is None else units,
        )

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

    def _rows(self, file: Path) -> Iterator[Row]:
        """Of each row its label and unit, where there are such columns, and its text."""
        columns = [column for column in (self.label_column, self._unit, self.text_column) if column is not None]
        with as_private():
            yield from read_rows(file, columns, self.encoding)


class _Records:
    def __init__(self, source: TextTable, files: Sequence[Path]) -> None:
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
