"""Private records in tables: images in Parquet or Arrow, texts and rows in tables of any kind."""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from pe.data.arrays import UInt8Array
from pe.data.columns import Column
from pe.data.remote import Place, TablePath
from pe.data.tables import (
    COLUMNAR,
    ROWS_READ,
    Row,
    check_column,
    columns_of,
    feature_names,
    open_columns,
    read_rows,
    read_rows_or_faults,
    table_files,
)
from pe.data.texts import UTF_8, check_encoding
from pe.errors import BadImage, BadSample, PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, Reread, as_private, outcome_of, place_in
from pe.private.modalities import ImageSource, RowSource, TextSource
from pe.private.naming import Seen, list_names, see_columns
from pe.private.source import RECORD, SUBFOLDER, PrivateSource, Text, source

_IMAGES_READ = 64
_VALUES_READ = 65_536
_ROWS_LOOKED_AT = 32
Key = tuple[object, object]
"""The label and the unit of a record."""


_SPOILING = ("utf-16", "utf-32", "utf-7", "hz", "iso2022")
"""Beginnings of the names of encodings in which one damaged character can spoil all that
follows."""


@source
class TableSource(PrivateSource):
    """A file in which records follow one another, or a folder of such files.

    Files are read in the order of their names.

    Attributes:
        path: the file, or the folder of files; either may be remote, such as s3://bucket/folder
            (extra `remote`).
        label_column: the column of labels; None: no labels.
    """

    path: Place
    _: KW_ONLY
    label_column: Text | None = None

    noun: ClassVar[str] = "Row"
    sample: ClassVar[str] = "Row"
    """The beginning of a sample's name in messages, before its number."""
    together: ClassVar[int] = ROWS_READ
    """The most samples that are read at a time."""
    unit_hint: ClassVar[str] = "a table has no subfolders: name a column of {path}"

    @as_private()
    def open(self) -> PrivateDataset:
        """List the records. Raise as `PrivateSource.open`.

        Samples are read later, by `check` and `blocks`.
        """
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(f"privacy_unit: {self.unit_hint.format(path=self.path)}.")
        encoding = codecs.lookup(getattr(self, "encoding", UTF_8)).name
        if self.skips and encoding.startswith(_SPOILING):
            raise PrivateDataError(
                f"`encoding: {encoding}` does not go with `on_bad_record: skip`, because one "
                "damaged character can spoil the records that follow. Convert the file to UTF-8, "
                "or set `on_bad_record: fail`."
            )
        files = self._files()
        classes = self.class_names or ()
        if self.label_column is None and len(classes) > 1:
            hint = self._label_hint(files[0])
            raise PrivateDataError(
                f"`label_column` is not set, but `classes` lists {len(classes)} classes: {hint}."
            )
        ends: list[int] = []  # of the files that were read
        return self.bind(
            Reread(self._outcomes, files),
            self._keys_of_all(files, ends),
            place_in(files, ends, self.noun),
            is_labelled=self.label_column is not None,
            has_units=self._unit is not None,
        )

    def _keys_of_all(
        self,
        files: Sequence[TablePath],
        ends: list[int],
    ) -> Iterator[Key]:
        """Yield the keys of all records.

        Add to `ends` the number of records up to the end of each file.
        """
        count = 0
        for file in files:
            for key in self._keys(file):
                count += 1
                yield key
            ends.append(count)

    @property
    def _unit(self) -> str | None:
        """The column of units. None: each record is its own unit."""
        return None if self.privacy_unit == RECORD else self.privacy_unit

    def _rows(
        self,
        file: TablePath,
        columns: Sequence[str],
        together: int,
    ) -> Iterator[Row | BadSample]:
        """Yield rows as `read_rows` does.

        Where bad records are skipped, a BadSample stands in the place of each faulty row.
        """
        read = read_rows_or_faults if self.skips else read_rows
        return read(file, columns, getattr(self, "encoding", UTF_8), together)

    def _label_hint(self, file: TablePath) -> str:
        # No column is listed: without a header they are a record's cells.
        return f"name the column of {self.path} that holds the labels"

    @abstractmethod
    def _files(self) -> Sequence[TablePath]:
        """Return the files, one at least."""

    def _keys(self, file: TablePath) -> Iterator[Key]:
        """Yield each record's label and unit."""
        columns = [name for name in (self.label_column, self._unit) if name is not None]
        for row in self._rows(file, columns, _VALUES_READ):
            # A bad row is bad by its outcome; it needs no reason here, and without columns it has a
            # unit.
            yield (None, None) if isinstance(row, BadSample) or not row else (row[0], row[-1])

    def _outcomes(self, files: Sequence[TablePath]) -> Iterator[Outcome]:
        """Yield all samples in order, or their errors."""
        for file in files:
            for number, row in enumerate(self._rows(file, self._columns, self.together), 1):
                if isinstance(row, BadSample):
                    yield row
                else:
                    yield outcome_of(
                        self.read,
                        self._value(row),
                        f"{self.sample} {number:,} of {file}",
                    )

    @property
    def _columns(self) -> Sequence[str]:
        """The columns of samples."""
        raise NotImplementedError

    def _value(self, row: Row) -> object:
        """Return what `read` takes of a row of these columns."""
        return row[0]


@source
class ImageParquet(TableSource, ImageSource):
    """A Parquet or Arrow file, or a folder of files of one kind, with one image per row.

    Files are read in the order of their names. The image column holds encoded images (PNG, JPEG, …)
    as bytes, or as Hugging Face's struct {bytes, path}, of which only the bytes are read. One page
    of Parquet, or one record batch of Arrow, is in memory at a time. If the file's Hugging Face
    metadata give names to the label column's numbers, these are the labels. A folder that
    `save_to_disk` of `datasets` wrote is such a folder of Arrow files.

    Attributes:
        path: the file (.arrow, or else Parquet), or the folder of files `*.parquet` or `*.arrow`;
            either may be remote, such as s3://bucket/folder (extra `remote`).
        image_column: the column of images.
    """

    _: KW_ONLY
    kind: Literal["parquet"] = "parquet"
    sample = "The image in row"
    together = _IMAGES_READ
    image_column: str = "image"

    @classmethod
    def find(
        cls,
        path: Path,
        image_column: str | None,
        label: str | None,
    ) -> Seen | None:
        """Propose columns to `pe init`, or return None if no column holds bytes. See `see_columns`.

        Confidential.
        """
        files = cls(path, size=1)._files()
        with open_columns(files[0]) as file:
            schema = file.schema
        images = [name for name in schema.names if _is_bytes(schema.field(name).type)]
        if image_column is None and not images:
            return None
        image = image_column or (cls.image_column if cls.image_column in images else images[0])
        names = {name: feature_names(schema.metadata, name) for name in schema.names}
        read = _reader(files)
        settings = {"kind": cls.kind, "path": path, "image_column": image}
        return see_columns(
            settings,
            schema.names,
            label,
            lambda name: names.get(name) or read(name),
            filter(names.get, names),
        )

    def _files(self) -> Sequence[TablePath]:
        return [self.path] if self.path.is_file() else table_files(self.path, COLUMNAR)

    def _label_hint(self, file: TablePath) -> str:
        columns = list_names(columns_of(file))
        return f"name the column of {file} that holds the labels; it has {columns}"

    def _keys(self, file: TablePath) -> Iterator[Key]:
        with open_columns(file) as table:
            for column in (self.image_column, self.label_column, self._unit):
                check_column(file, column or self.image_column, table.schema.names)
            # By its place: a name that two columns have is refused where the rows are read.
            kind = table.schema.types[table.schema.names.index(self.image_column)]
        if not _is_bytes(kind):
            raise PrivateDataError(
                f"Column '{self.image_column}' of {file} is of type {kind}, not bytes or a struct "
                "with bytes: name another image_column."
            )
        return super()._keys(file)

    @property
    def _columns(self) -> Sequence[str]:
        return [self.image_column]

    def read(self, value: Any, name: str) -> UInt8Array:
        """Return the image in a cell.

        Raises:
            BadImage: there is none.
        """
        data = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(value, dict) and data is None and value.get("path"):
            raise BadImage(
                f"{name} is missing: its bytes are null, and there is only a path, which is not "
                "read: embed the files (Hugging Face's datasets does so in push_to_hub, or by "
                "datasets.table.embed_table_storage)."
            )
        if not isinstance(data, bytes):
            raise BadImage(f"{name} is missing: its bytes are null.")
        return super().read(data, name)


def _is_bytes(kind: Any) -> bool:
    """Return True if a column's type is bytes, or a struct with bytes."""
    from pyarrow import types

    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _reader(files: Sequence[TablePath]) -> Callable[[str], Iterator[object]]:
    """Return a function that reads a column of all files."""
    return lambda column: (
        row[0] for file in files for row in read_rows(file, [column], together=_VALUES_READ)
    )


@source
class TextTable(TableSource, TextSource):
    """A CSV, TSV, JSON lines, Parquet or Arrow file, or a folder of them, with one text per row.

    The files of a folder are of one kind and are read in the order of their names, by rows: none is
    in memory whole. Parquet and Arrow are always UTF-8.

    Attributes:
        text_column: the column of texts.
    """

    _: KW_ONLY
    kind: Literal["text_table"] = "text_table"
    sample = "The text in row"
    text_column: Text = "text"

    @classmethod
    def find(cls, path: Path, text_column: str | None, label: str | None) -> Seen:
        """Propose columns to `pe init`: `text`, or the column with most text. See `see_columns`.

        Confidential.
        """
        files = table_files(path)
        columns = columns_of(files[0])
        text = text_column or (
            cls.text_column if cls.text_column in columns else _wordiest(files[0], columns)
        )
        if not text:
            raise PrivateDataError(
                f"{path} has no column of words, but {list_names(columns)}: name one by "
                "--text-column, or add --table if each row is a record of several columns."
            )
        return see_columns(
            {"kind": cls.kind, "path": path, "text_column": text},
            columns,
            label,
            _reader(files),
        )

    def _files(self) -> Sequence[TablePath]:
        if self.text_column in (self.label_column, self.privacy_unit):
            raise PrivateDataError(
                f"`text_column` is '{self.text_column}', which another setting names, too. Name "
                "the column of texts."
            )
        return table_files(self.path)

    @property
    def _columns(self) -> Sequence[str]:
        return [self.text_column]


def _wordiest(file: Path, columns: Sequence[str]) -> str:
    """Return the column whose first cells hold the most text.

    The name is empty if no cell holds two words beside one another.
    """
    rows = list(islice(read_rows(file, columns), _ROWS_LOOKED_AT))
    text = [
        sum(len(cell) for cell in column if isinstance(cell, str) and len(cell.split()) > 1)
        for column in zip(*rows, strict=True)
    ]
    return columns[text.index(max(text))] if any(text) else ""


@source
class RowTable(TableSource, RowSource):
    """A table, or a folder of tables of one kind, whose rows are the records.

    Tables are CSV, TSV, JSON lines, Parquet and Arrow files.

    Attributes:
        label_column: the column of labels; None: no labels. It is not among `columns`.
        encoding: the encoding of text files, as Python names it.
    """

    _: KW_ONLY
    kind: Literal["table"] = "table"
    encoding: Annotated[str, AfterValidator(check_encoding)] = UTF_8

    @classmethod
    def find(cls, path: Path, label_column: str | None, is_looking: bool) -> Seen:
        """Propose columns to `pe init` by their names, and labels if it `is_looking`.

        See `see_columns`.
        """
        files = table_files(path)
        read = _reader(files) if is_looking else lambda _: ()
        return see_columns(
            {"kind": cls.kind, "path": path},
            columns_of(files[0]),
            label_column,
            read,
        )

    @classmethod
    def propose(cls, path: Path, names: Iterable[str]) -> dict[str, Column | None]:
        """Propose declarations of columns to `pe init` from all values, or None for a column.

        Confidential.
        """
        return {name: Column.of(_reader(table_files(path))(name)) for name in names}

    def _files(self) -> Sequence[TablePath]:
        if self.label_column in self.columns:
            raise PrivateDataError(
                f"`label_column` is '{self.label_column}', which is also among `columns`. Remove "
                "it there."
            )
        return table_files(self.path)

    @property
    def _columns(self) -> Sequence[str]:
        return [*self.columns]

    def _value(self, row: Row) -> object:
        return row
