"""Files of columns, Parquet and Arrow's IPC, opened alike and streamed batch by batch."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pe.data.remote import RemotePath, TablePath
from pe.errors import BadTable, MissingDependency

ARROW = ".arrow"
COLUMNAR = (".parquet", ARROW)
_MOST_BYTES = 2**22  # that are read of a text
_ARROW_FILE, _ARROW_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class ColumnFile:
    """An open Parquet or Arrow file.

    Attributes:
        schema: pyarrow's; its metadata may hold Hugging Face's.
        batches: some columns as record batches of at most so many rows; to be called once.
        arrow: pyarrow.
    """

    schema: Any
    batches: Callable[[Sequence[str], int], Iterator[Any]]
    arrow: Any

    def cells(self, batch: Any, name: str) -> Iterator[object]:
        """A batch's values in a column: for numbers that have names these; for bytes that are no text surrogates."""
        column, names, types = batch.column(name), feature_names(self.schema.metadata, name), self.arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        is_text = any(kind(column.type) for kind in (types.is_string, types.is_large_string, types.is_string_view))
        for value in column:
            if is_text:
                yield _text(value.as_buffer()) if value.is_valid else None
            else:
                plain = value.as_py()
                yield names[plain] if isinstance(plain, int) and 0 <= plain < len(names) else plain


def feature_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """The names that Hugging Face's metadata give to the numbers of a column in Parquet or Arrow; none, mostly."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _text(data: Any) -> str:
    """The beginning of a cell's text; bytes that are none become lone surrogates."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return decoder.decode(bytes(memoryview(data)[:_MOST_BYTES]), data.size <= _MOST_BYTES)


@contextmanager
def open_columns(path: TablePath) -> Iterator[ColumnFile]:
    """A file of columns: Arrow by its suffix (IPC, as a stream or a file), else Parquet.

    One page of Parquet is in memory, one record batch of Arrow; no file is mapped: one that is cut off while it is read
    would end the process.

    Raises:
        BadTable: in place of what pyarrow raises inside.
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Reading Parquet and Arrow files") from error
    is_arrow = path.suffix.lower() == ARROW
    try:
        with ExitStack() as stack:
            opened = stack.enter_context(path.open_bytes() if isinstance(path, RemotePath) else path.open("rb"))
            if is_arrow:
                yield _arrow_file(stack.enter_context(arrow.PythonFile(opened, "r")), arrow)
                return
            file = stack.enter_context(parquet.ParquetFile(opened, pre_buffer=False, buffer_size=2**20))

            def batches(columns: Sequence[str], together: int) -> Iterator[Any]:
                yield from file.iter_batches(together, columns=columns, use_threads=False)

            yield ColumnFile(file.schema_arrow, batches, arrow)
    except UnicodeDecodeError as error:
        raise BadTable(f"{path} has a column's name, or a text in a list, that is not UTF-8: write it anew.") from error
    except (arrow.ArrowException, OSError) as error:
        kind = "Arrow" if is_arrow else "Parquet"
        raise BadTable(f"{path} cannot be read as {kind}: it is damaged or of another format.") from error


def _arrow_file(opened: Any, arrow: Any) -> ColumnFile:
    """Arrow's IPC. A stream that breaks off between two batches reads as a whole one, so its end is looked at."""
    if opened.size() < len(_ARROW_END):
        raise arrow.ArrowInvalid("too short")
    if opened.read(len(_ARROW_FILE)) == _ARROW_FILE:
        reader = arrow.ipc.open_file(opened)
        found = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        opened.seek(opened.size() - len(_ARROW_END))
        if opened.read() != _ARROW_END:
            raise arrow.ArrowInvalid("no end")
        opened.seek(0)
        found = reader = arrow.ipc.open_stream(opened)

    plain = {arrow.string(): arrow.binary(), arrow.large_string(): arrow.large_binary()}  # a bad text is one record's

    def batches(columns: Sequence[str], together: int) -> Iterator[Any]:
        for batch in found:
            chosen = batch.select(columns)
            for column in chosen.columns:  # of a damaged file they may point anywhere
                (column.view(plain[column.type]) if column.type in plain else column).validate(full=True)
            yield from (chosen.slice(start, together) for start in range(0, batch.num_rows, together))

    return ColumnFile(reader.schema, batches, arrow)
