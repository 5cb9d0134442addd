"""Private images in Parquet files with a column of encoded images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pe.data.decoding import UInt8Array, decode_image
from pe.errors import BadImage, MissingDependency, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
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
        path: the file, or the folder of *.parquet files.
        image_column: the column of images.
        label_column: the column of labels; None: no labels.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["parquet"] = "parquet"
    image_column: str = "image"
    label_column: str | None = None

    @property
    def place(self) -> Path | None:
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
        labels: list[object] | None = None
        if self.label_column is not None:
            labels = [label for path in paths for label in _labels(path, self.label_column)]
        units: list[object] | None = None
        if self.privacy_unit != RECORD:
            units = [unit for path in paths for unit in _column(path, self.privacy_unit, _VALUES_READ)]

        def where(index: int) -> str:
            for path, rows in zip(paths, counts, strict=True):
                if index < rows:
                    return f"Row {index + 1} of {path}"
                index -= rows
            raise IndexError(index)

        return self.bind(_Rows(self, paths), count, where, labels=labels, units=units)

    def _paths(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        if not self.path.is_dir():
            raise PrivateDataError(f"{self.path} does not exist.")
        paths = sorted(path for path in self.path.glob("*.parquet") if path.is_file())
        if not paths:
            raise PrivateDataError(f"The folder {self.path} holds no .parquet files.")
        return paths

    def _check_labelled(self, path: Path) -> None:
        """Refuse several classes where no column is named that tells a record's."""
        if self.label_column is None and len(self.class_names or ()) > 1:
            with _open(path) as (file, _):
                columns = ", ".join(f"'{name}'" for name in file.schema_arrow.names)
            raise PrivateDataError(
                f"label_column is not set, and classes lists {len(self.class_names or ())} classes: name the column of "
                f"{path} that holds the labels; it has {columns}."
            )

    def _inspect(self, path: Path) -> int:
        """The number of rows, once all columns are there and the images are bytes. Confidential."""
        with _open(path) as (file, arrow):
            schema = file.schema_arrow
            for column in (self.image_column, self.label_column, self.privacy_unit):
                if column is not None and column != RECORD and schema.names.count(column) != 1:
                    raise PrivateDataError(f"{path} has no column '{column}': {nearest_name(column, schema.names)}")
            kind, types = schema.field(self.image_column).type, arrow.types
            if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                kind = kind.field("bytes").type
            if not (types.is_binary(kind) or types.is_large_binary(kind)):
                raise PrivateDataError(
                    f"Column '{self.image_column}' of {path} is of type {kind}, not bytes or a struct with bytes."
                )
            return int(file.metadata.num_rows)


class _Rows:
    def __init__(self, source: ImageParquet, paths: Sequence[Path]) -> None:
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
def _open(path: Path) -> Iterator[tuple[Any, Any]]:
    """The Parquet file and pyarrow; pyarrow's errors inside become PrivateDataError."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Reading Parquet files") from error
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            yield file, arrow
    except (arrow.ArrowException, OSError) as error:
        raise PrivateDataError(f"{path} cannot be read as Parquet: it is damaged or of another format.") from error


def _column(path: Path, column: str, together: int) -> Iterator[object]:
    """A column's values, one after another, `together` in memory. Confidential."""
    with _open(path) as (file, _):
        for batch in file.iter_batches(together, columns=[column], use_threads=False):
            for value in batch.column(0):
                yield value.as_py()


def _labels(path: Path, column: str) -> Iterator[object]:
    with _open(path) as (file, _):
        names = _feature_names(file.schema_arrow.metadata or {}, column)
    for value in _column(path, column, _VALUES_READ):
        yield names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _feature_names(metadata: dict[bytes, bytes], column: str) -> list[str]:
    """The names that Hugging Face's metadata give to the numbers of a label column; none, mostly."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
