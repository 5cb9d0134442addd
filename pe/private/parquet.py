"""Private images in Parquet files with a column of encoded images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pe.data.decoding import UInt8Array, decode_image
from pe.data.remote import Place
from pe.data.tables import TablePath, feature_names, open_parquet
from pe.errors import BadImage, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.faults import as_private
from pe.private.found import FoundColumns, check_columns, label_column, label_names
from pe.private.image_source import ImageSource
from pe.private.source import RECORD, SUBFOLDER, source

_IMAGES_READ = 64
_VALUES_READ = 65_536


@source
class ImageParquet(ImageSource):
    """A Parquet file, or a folder of them (read in the order of their names): one image per row.

    The image column holds encoded images (PNG, JPEG, …) as bytes, or as Hugging Face's struct
    {bytes, path}, of which only the bytes are read. Rows are streamed: one page of the file is in memory
    (pyarrow by default writes up to 1,024 rows into one). Where the file's Hugging Face
    metadata name the label column's numbers, labels are those names.

    Attributes:
        path: the file, or the folder of files `*.parquet`; or an address of theirs, such as s3://bucket/folder (extra
            `remote`).
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
        paths = self._paths()
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(f"privacy_unit: a Parquet file has no subfolders: name a column of {self.path}.")
        counts = [self._inspect(path) for path in paths]
        count = sum(counts)
        if count == 0:
            raise PrivateDataError(f"{self.path} holds no rows.")
        self._check_labelled(paths[0])

        def where(index: int) -> str:
            for path, rows in zip(paths, counts, strict=True):
                if index < rows:
                    return f"Row {index + 1} of {path}"
                index -= rows
            raise IndexError(index)

        labels = (
            None if self.label_column is None else chain.from_iterable(_labels(p, self.label_column) for p in paths)
        )
        of_units = (_column(path, self.privacy_unit, _VALUES_READ) for path in paths)
        units = None if self.privacy_unit == RECORD else chain.from_iterable(of_units)
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
        schema, types = _schema(paths[0])
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
            if self.path.is_file():
                return [self.path]
            if not self.path.is_dir():
                raise PrivateDataError(f"{self.path} does not exist.")
            paths = [path for path in self.path.iterdir() if path.suffix == ".parquet" and path.is_file()]
        if not paths:
            raise PrivateDataError(f"The folder {self.path} holds no .parquet files.")
        return sorted(paths)

    def _check_labelled(self, path: TablePath) -> None:
        """Refuse several classes where no column is named that tells a record's."""
        if self.label_column is None and len(self.class_names or ()) > 1:
            with _open(path) as (file, _):
                columns = ", ".join(f"'{name}'" for name in file.schema_arrow.names)
            raise PrivateDataError(
                f"label_column is not set, and classes lists {len(self.class_names or ())} classes: name the column of "
                f"{path} that holds the labels; it has {columns}."
            )

    def _inspect(self, path: TablePath) -> int:
        """The number of rows, once all columns are there and the images are bytes. Confidential."""
        with _open(path) as (file, arrow):
            schema = file.schema_arrow
            for column in (self.image_column, self.label_column, self.privacy_unit):
                if column is not None and column != RECORD and schema.names.count(column) != 1:
                    raise PrivateDataError(f"{path} has no column '{column}': {nearest_name(column, schema.names)}")
            kind = schema.field(self.image_column).type
            if not _is_bytes(kind, arrow.types):
                raise PrivateDataError(
                    f"Column '{self.image_column}' of {path} is of type {kind}, not bytes or a struct with bytes: "
                    "name another image_column."
                )
            return int(file.metadata.num_rows)


class _Rows:
    def __init__(self, source: ImageParquet, paths: Sequence[TablePath]) -> None:
        self._source, self._paths = source, paths

    def __iter__(self) -> Iterator[Outcome]:
        for path in self._paths:
            for row, value in enumerate(_column(path, self._source.image_column, _IMAGES_READ)):
                yield outcome_of(partial(self._decode, value, f"The image in row {row + 1} of {path}"))

    def _decode(self, value: object, name: str) -> UInt8Array:
        source = self._source
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise BadImage(f"{name} is missing: its bytes are null.")
        size = source.height_width if source.resize else None
        return decode_image(data, size=size, resize=source.resize, channels=source.channels, name=name)


@contextmanager
def _open(path: TablePath) -> Iterator[tuple[Any, Any]]:
    """The Parquet file and pyarrow; pyarrow's errors inside become PrivateDataError."""
    with as_private(), open_parquet(path) as opened:
        yield opened


def _schema(path: TablePath) -> tuple[Any, Any]:
    """A file's columns, and pyarrow's words for types."""
    with _open(path) as (file, arrow):
        return file.schema_arrow, arrow.types


def _is_bytes(kind: Any, types: Any) -> bool:
    """Whether a column's type is bytes, or a struct with bytes."""
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _column(path: TablePath, column: str, together: int) -> Iterator[object]:
    """A column's values, one after another, `together` in memory. Confidential."""
    with _open(path) as (file, _):
        for batch in file.iter_batches(together, columns=[column], use_threads=False):
            for value in batch.column(0):
                yield value.as_py()


def _labels(path: TablePath, column: str) -> Iterator[object]:
    with _open(path) as (file, _):
        names = feature_names(file.schema_arrow.metadata, column)
    for value in _column(path, column, _VALUES_READ):
        yield names[value] if isinstance(value, int) and 0 <= value < len(names) else value
