"""Private images in Parquet or Arrow files with a column of encoded images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from pe.data.decoding import UInt8Array
from pe.data.remote import Place, TablePath
from pe.data.samples import Array
from pe.data.tables import COLUMNAR, ColumnFile, Row, columns_of, feature_names, open_columns, read_rows, table_files
from pe.errors import BadImage, BadSample, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, as_private, outcome_of, place_in
from pe.private.modalities import ImageSource, TextSource
from pe.private.naming import FoundColumns, LabelNumbers, UnitNumbers, check_columns, label_column, label_names, listed
from pe.private.source import RECORD, SUBFOLDER, Text, source

_IMAGES_READ = 64
_VALUES_READ = 65_536


@source
class ImageParquet(ImageSource):
    """A Parquet or Arrow file, or a folder of one such kind (read in the order of their names): one image per row.

    The image column holds encoded images (PNG, JPEG, …) as bytes, or as Hugging Face's struct
    {bytes, path}, of which only the bytes are read. Rows are streamed: one page of Parquet is in memory
    (pyarrow by default writes up to 1,024 rows into one), or one record batch of Arrow. Where the file's Hugging Face
    metadata name the label column's numbers, labels are those names. A folder that `datasets` wrote by
    `save_to_disk` is such a folder of Arrow files.

    Attributes:
        path: the file (.arrow, or else Parquet), or the folder of files `*.parquet` or `*.arrow`; or an address of
            theirs, such as s3://bucket/folder (extra `remote`).
        image_column: the column of images.
        label_column: the column of labels; None: no labels.
    """

    path: Place
    _: KW_ONLY
    kind: Literal["parquet"] = "parquet"
    image_column: str = "image"
    label_column: str | None = None

    @property
    def place(self) -> TablePath | None:
        """The file or folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; images are read later, by `check` and `blocks`.

        Raises:
            MissingDependency: pyarrow is not installed.
            PrivateDataError: no such file, columns that are missing or of another type, no rows, labels
                off the class list.
        """
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(f"privacy_unit: a table has no subfolders: name a column of {self.path}.")
        paths, count = self._paths(), 0
        self._check_labelled(paths[0])
        ends: list[int] = []  # of the files that were read
        where = place_in(paths, ends)
        labels = None if self.label_column is None else LabelNumbers(self.class_names, where)
        units = None if self.privacy_unit == RECORD else UnitNumbers(self.privacy_unit, where)
        named = [self.label_column, None if units is None else self.privacy_unit]
        columns = list(dict.fromkeys(name for name in named if name is not None))
        for path in paths:
            with _open(path) as file:
                self._check_columns(path, file)
                for batch in file.batches(columns, _VALUES_READ):
                    count += batch.num_rows
                    if labels is not None and self.label_column is not None:
                        labels.take(file.cells(batch, self.label_column))
                    if units is not None:
                        units.take(file.cells(batch, self.privacy_unit))
            ends.append(count)
        return self.bind(_Rows(self, paths), count, where, labels=labels, units=units)

    @classmethod
    def find(cls, path: Path, image_column: str | None, label: str | None) -> FoundColumns | None:
        """The columns that `pe init` proposes, and the names in that of labels. Confidential.

        Args:
            path: the file or folder.
            image_column: as the owner names it; None: that of this name, or the first with bytes.
            label: the column of labels as the owner names it; empty: none; None: one with a usual name, or of class
                names.

        Returns:
            None: no column is named, and none holds bytes.

        Raises:
            MissingDependency: pyarrow is not installed.
            PrivateDataError: no such file; a column that is named is not there.
        """
        paths = cls(path, size=1)._paths()
        with _open(paths[0]) as file:
            schema, types = file.schema, file.arrow.types
        images = [name for name in schema.names if _is_bytes(schema.field(name).type, types)]
        if image_column is None and not images:
            return None
        image = image_column or (cls.image_column if cls.image_column in images else images[0])
        if label is None:
            named = [name for name in schema.names if feature_names(schema.metadata, name)]
            label = label_column(schema.names, image, named)
        check_columns(path, (image, label), schema.names)
        others = tuple(name for name in schema.names if name not in (image, label))
        if not label:
            return FoundColumns(image, None, (), others)
        found = label_names(value for each in paths for value in _labels(each, label))
        return FoundColumns(image, label, tuple(feature_names(schema.metadata, label)) or found, others)

    def _paths(self) -> Sequence[TablePath]:
        with as_private():
            return [self.path] if self.path.is_file() else table_files(self.path, COLUMNAR)

    def _check_labelled(self, path: TablePath) -> None:
        """Refuse several classes where no column is named that tells a record's."""
        if self.label_column is None and len(self.class_names or ()) > 1:
            with _open(path) as file:
                columns = ", ".join(f"'{name}'" for name in file.schema.names)
            raise PrivateDataError(
                f"label_column is not set, and classes lists {len(self.class_names or ())} classes: name the column of "
                f"{path} that holds the labels; it has {columns}."
            )

    def _check_columns(self, path: TablePath, file: ColumnFile) -> None:
        """Refuse a file without one of the columns, or whose images are no bytes."""
        for column in (self.image_column, self.label_column, self.privacy_unit):
            if column is not None and column != RECORD and file.schema.names.count(column) != 1:
                raise PrivateDataError(f"{path} has no column '{column}': {nearest_name(column, file.schema.names)}")
        kind = file.schema.field(self.image_column).type
        if not _is_bytes(kind, file.arrow.types):
            raise PrivateDataError(
                f"Column '{self.image_column}' of {path} is of type {kind}, not bytes or a struct with bytes: "
                "name another image_column."
            )


class _Rows:
    def __init__(self, source: ImageParquet, paths: Sequence[TablePath]) -> None:
        self._source, self._paths = source, paths

    def __iter__(self) -> Iterator[Outcome]:
        for path in self._paths:
            with _open(path) as file:
                cells = chain.from_iterable(
                    b.column(0) for b in file.batches([self._source.image_column], _IMAGES_READ)
                )
                for row, cell in enumerate(cells, 1):
                    yield outcome_of(partial(self._decode, cell.as_py(), f"The image in row {row} of {path}"))

    def _decode(self, value: object, name: str) -> UInt8Array:
        data = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(value, dict) and data is None and value.get("path"):
            raise BadImage(
                f"{name} is missing: its bytes are null, and there is only a path, which is not read: embed the files "
                "(Hugging Face's datasets does so in push_to_hub, or by datasets.table.embed_table_storage)."
            )
        if not isinstance(data, bytes):
            raise BadImage(f"{name} is missing: its bytes are null.")
        return self._source.decode(data, name)


@contextmanager
def _open(path: TablePath) -> Iterator[ColumnFile]:
    """The file; errors inside become PrivateDataError."""
    with as_private(), open_columns(path) as opened:
        yield opened


def _is_bytes(kind: Any, types: Any) -> bool:
    """Whether a column's type is bytes, or a struct with bytes."""
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _labels(path: TablePath, column: str) -> Iterator[object]:
    """All values in a file's column of labels."""
    with _open(path) as file:
        for batch in file.batches([column], _VALUES_READ):
            yield from file.cells(batch, column)


# Private texts in tables: CSV, TSV, JSON lines, Parquet or Arrow.


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
