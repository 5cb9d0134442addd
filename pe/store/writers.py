"""Ways to write the synthetic data down: each a function of the folder and the samples, by its format's name."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pe.data.conditions import CAPTION
from pe.data.samples import Samples
from pe.errors import MissingDependency
from pe.store.file_names import LABELS_CSV

PARQUET = "synthetic.parquet"
_ROWS_TOGETHER = 500
_SHARD = 200_000_000
"""Bytes of samples, about, in one shard or one of a hub's Parquet files."""


class Row(NamedTuple):
    """A sample.

    Attributes:
        file: its name in folders by label.
        label: its place among the label names.
        data: its file.
        shares: its soft label, a probability for each label; or empty.
        caption: the text that it was drawn from; or empty.
    """

    file: str
    label: int
    data: bytes
    shares: list[float]
    caption: str


@dataclass(frozen=True)
class Table:
    """All samples, to be read once.

    Attributes:
        names: of the labels.
        kind: the samples' modality.
        soft: whether they have soft labels.
        captioned: whether they have captions.
        rows: the samples.
    """

    names: list[str]
    kind: type[Samples]
    soft: bool
    captioned: bool
    rows: Iterator[Row]

    @property
    def column(self) -> str:
        """What the samples' column is called: image, say."""
        return self.kind.kind.removesuffix("s")

    @property
    def of_strings(self) -> bool:
        """Whether a sample is a string in a table, not a file."""
        return self.kind.feature.get("dtype") == "string"


def _write_folder(folder: Path, table: Table) -> None:
    """`synthetic/<label>/<index>.png`, as torchvision and Keras read it, and `synthetic/labels.csv`."""
    top = folder / "synthetic"
    top.mkdir()
    with (top / LABELS_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "label", *_further_columns(table)))
        for row in table.rows:
            path = top / row.file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(row.data)
            writer.writerow((row.file, table.names[row.label], *_further(table, row)))


def _write_csv(folder: Path, table: Table) -> None:
    """`synthetic.csv`: a column of texts, one of labels. Spreadsheets take a text that begins with = for a formula."""
    with (folder / "synthetic.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((table.column, "label", *_further_columns(table)))
        writer.writerows((row.data.decode(), table.names[row.label], *_further(table, row)) for row in table.rows)


def _write_jsonl(folder: Path, table: Table) -> None:
    """`synthetic.jsonl`: an object a line."""
    with (folder / "synthetic.jsonl").open("w", encoding="utf-8") as file:
        for row in table.rows:
            file.write(json.dumps(_entry(table, row), ensure_ascii=False) + "\n")


def _write_parquet(folder: Path, table: Table) -> None:
    """`synthetic.parquet`: the samples' column, label and, where there is one, soft_label in the label names' order."""
    _write_rows(folder / PARQUET, table, table.rows)


def _write_hub(folder: Path, table: Table) -> None:
    """`data/train-<shard>.parquet`, as Hugging Face's hub and `datasets` read them."""
    (folder / "data").mkdir()
    for index, shard in enumerate(_shards(table.rows)):
        _write_rows(folder / "data" / f"train-{index:05d}.parquet", table, shard)


def _write_webdataset(folder: Path, table: Table) -> None:
    """`synthetic/<shard>.tar`: of each sample its file, its label's number (.cls) and the rest (.json): WebDataset."""
    (folder / "synthetic").mkdir()
    key = 0
    for index, shard in enumerate(_shards(table.rows)):
        with tarfile.open(folder / "synthetic" / f"{index:05d}.tar", "w") as tar:
            for row in shard:
                entry = _described(table, row)
                _add(tar, f"{key:06d}{table.kind.suffix}", row.data)
                _add(tar, f"{key:06d}.cls", str(row.label).encode())
                _add(tar, f"{key:06d}.json", json.dumps(entry, ensure_ascii=False).encode())
                key += 1


WRITERS: Mapping[str, Callable[[Path, Table], None]] = {
    "csv": _write_csv,
    "folder": _write_folder,
    "huggingface": _write_hub,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
}


def _shards(rows: Iterator[Row]) -> Iterator[Iterator[Row]]:
    """The rows in pieces of about `_SHARD` bytes; each is to be read whole before the next."""

    def shard(first: Row) -> Iterator[Row]:
        size, row = len(first.data), first
        yield row
        while size < _SHARD and (following := next(rows, None)) is not None:
            size += len(following.data)
            yield following

    while (first := next(rows, None)) is not None:
        yield shard(first)


def _further_columns(table: Table) -> list[str]:
    """Of a table in CSV: what `_further` holds."""
    return [*(f"p({name})" for name in table.names if table.soft), *([CAPTION] if table.captioned else [])]


def _further(table: Table, row: Row) -> list[float | str]:
    return [*row.shares, *([row.caption] if table.captioned else [])]


def _entry(table: Table, row: Row) -> dict[str, Any]:
    sample = row.data.decode() if table.of_strings else {"bytes": row.data, "path": PurePosixPath(row.file).as_posix()}
    return {table.column: sample} | _described(table, row)


def _described(table: Table, row: Row) -> dict[str, Any]:
    """All of a sample but itself."""
    entry: dict[str, Any] = {"label": table.names[row.label]}
    entry |= {"soft_label": row.shares} if table.soft else {}
    return entry | ({CAPTION: row.caption} if table.captioned else {})


def _write_rows(path: Path, table: Table, rows: Iterator[Row]) -> None:
    """A Parquet file in groups of rows, with the metadata by which Hugging Face decodes the samples."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Exporting Parquet") from error
    features: dict[str, Any] = {
        table.column: dict(table.kind.feature),
        "label": {"dtype": "string", "_type": "Value"},
    }
    of_files = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {table.column: pa.string() if table.of_strings else of_files, "label": pa.string()}
    if table.soft:
        columns["soft_label"] = pa.list_(pa.float32())
        features["soft_label"] = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"}
    if table.captioned:
        columns[CAPTION] = pa.string()
        features[CAPTION] = {"dtype": "string", "_type": "Value"}
    schema = pa.schema(columns, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _ROWS_TOGETHER)):
            writer.write_table(pa.Table.from_pylist([_entry(table, row) for row in group], schema))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """A file without time or owner."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
