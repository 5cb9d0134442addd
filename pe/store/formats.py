"""Formats of exported data: one function for each, which writes the samples into a folder."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import yaml

from pe.data.bounded import read_bytes
from pe.data.population import NO_PARENT, Population
from pe.data.samples import (
    CAPTION,
    SOFT_LABEL,
    Conditions,
    Samples,
    columns_of,
    kind_among,
    modality,
)
from pe.errors import ContractError, RecipeError, RunError
from pe.plugins.devices import import_library
from pe.store.card import write_card
from pe.store.certified import extensions
from pe.store.places import RECIPE, SYNTHETIC

Format = Literal["csv", "folder", "huggingface", "jsonl", "npz", "parquet", "webdataset"]

PARQUET = "synthetic.parquet"
DICTIONARY = "data-dictionary.json"
_LABEL = "label"
_OF_TEXTS = ("csv", "jsonl")
_TEXT: dict[str, Any] = {"dtype": "string", "_type": "Value"}
_DTYPES = {"integer": "int64", "real": "float64", "boolean": "bool", "date": "date32"}
"""Kind of a column of rows → its type in Arrow and in Hugging Face's data sets. Others are
strings."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_ROWS_TOGETHER = 500
_SHARD = 200_000_000
"""The approximate bytes of samples in one shard, or in one Parquet file for a hub."""


class Row(NamedTuple):
    """A sample, as it is written."""

    file: str  # its file's name, in a folder for its label
    label: int  # its place among the label names
    data: bytes  # the content of its file
    cells: dict[str, Any]  # the sample's columns: one, or those of a row
    about: dict[str, Any]  # label; where there are some, soft_label and caption


@dataclass(frozen=True)
class Table:
    """All samples of a run and of its extensions."""

    names: list[str]  # of the labels
    parts: list[
        Population
    ]  # of the run, then of each extension; soft labels and captions are conditions
    label: str  # the name of the labels' column
    columns: Any  # of samples that are rows, as `columns_of` returns them; None for others

    @property
    def kind(self) -> type[Samples]:
        """The samples' modality."""
        return type(self.parts[0].samples)

    @property
    def column(self) -> str:
        """The name of the samples' column, such as image."""
        return self.kind.kind.removesuffix("s")

    @property
    def of_strings(self) -> bool:
        """True if a sample is a string in a table, not a file."""
        return self.kind.feature.get("dtype") == "string"

    def sample_features(self) -> dict[str, dict[str, Any]]:
        """Return the type of each of the sample's columns and of the label's.

        The types are those of Hugging Face's data sets.
        """
        if self.columns is None:
            features = {self.column: dict(self.kind.feature)}
        else:
            features = {
                name: _TEXT | {"dtype": _dtype(column)} for name, column in self.columns.items()
            }
        return features | {self.label: _TEXT}

    def features(self) -> dict[str, dict[str, Any]]:
        """Return the type of every column, as Hugging Face's data sets have it."""
        features = self.sample_features()
        if SOFT_LABEL in self.parts[0].conditions:
            features["soft_label"] = {
                "feature": {"dtype": "float32", "_type": "Value"},
                "_type": "Sequence",
            }
        if CAPTION in self.parts[0].conditions:
            features[CAPTION] = _TEXT
        return features

    def rows(self) -> Iterator[Row]:
        """Yield all samples, part after part, in their order."""
        folders = file_names(self.names)
        index = count()
        for part in self.parts:
            rows = None if self.columns is None else _cells(self.columns, part.samples)
            for i, data in enumerate(part.samples.files()):
                label = int(part.labels[i])
                about: dict[str, Any] = {self.label: self.names[label]}
                if SOFT_LABEL in part.conditions:
                    about["soft_label"] = part.conditions[SOFT_LABEL][i].astype(float).tolist()
                if CAPTION in part.conditions:
                    about[CAPTION] = str(part.conditions[CAPTION][i])
                file = f"{folders[label]}/{next(index):06d}{part.samples.suffix}"
                cell = data.decode() if self.of_strings else {"bytes": data, "path": file}
                yield Row(
                    file, label, data, {self.column: cell} if rows is None else next(rows), about
                )

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield each sample with its label and more, for a row of Parquet or JSON lines."""
        return (row.cells | row.about for row in self.rows())

    def flat(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is said about a sample, for a row of CSV.

        Each label's probability has a column.
        """
        columns: dict[str, Any] = {}
        for key, value in about.items():
            if key == "soft_label":
                columns |= zip((f"p({name})" for name in self.names), value, strict=True)
            else:
                columns[key] = value
        return columns

    def dictionary(self) -> list[dict[str, Any]]:
        """Return what is declared in public of each column of rows, and of the label.

        The result is empty for other samples.
        """
        if self.columns is None:
            return []
        entries = [{"name": name} | _declared(column) for name, column in self.columns.items()]
        return [
            *entries,
            {"name": self.label, "kind": "category", "values": self.names, "note": "the label"},
        ]


def _dtype(column: Any) -> str:
    return _DTYPES.get(column.kind, "string")


def _declared(column: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if column.values:
        values = {"values": [column.value(code) for code in range(column.size)]}
    elif column.min is not None:
        values = {"min": column.value(0), "max": column.value(column.size - 1), "unit": column.unit}
    about = {
        "missing": column.missing,
        "declared": "in public, by the owner of the records",
        "note": column.note,
    }
    return {"kind": column.kind, **values, **about}


def _cells(columns: Any, samples: Samples) -> Iterator[dict[str, Any]]:
    """Yield each row's values, of their columns' types.

    A value that its column does not declare is missing.
    """
    codes = columns.codes(samples)
    values = [
        {code: column.cell(code) for code in {*own}}
        for column, own in zip(columns.values(), codes.T.tolist(), strict=True)
    ]
    for row in codes.tolist():
        yield {name: cells[code] for name, cells, code in zip(columns, values, row, strict=True)}


# Reading.


def read_table(folder: Path) -> Table:
    """Return the samples of a finished run or of its export.

    Raises:
        RunError: a file is damaged.
    """
    names, first = _read_samples(folder / SYNTHETIC)
    parts = {SYNTHETIC: first} | extensions(folder)
    for place, part in parts.items():
        _check(place, part, type(first.samples), names)
    columns, label = declarations(folder, first.samples)
    return Table(names, list(parts.values()), label, columns)


def declarations(folder: Path, samples: Samples) -> tuple[Any, str]:
    """Return the columns of samples that are rows (otherwise None) and the labels' column."""
    private = _private(folder)
    columns = columns_of(samples, private)
    if columns is None:
        return None, _LABEL
    label = private.get("label_column") or _LABEL
    while label in columns:  # the records have no column of labels
        label += "_"
    return columns, label


def _private(folder: Path) -> dict[str, Any]:
    """Return the recipe's section `private`."""
    section: dict[str, Any] = yaml.safe_load(read_bytes(folder / RECIPE))["private"]
    return section


def _read_samples(path: Path) -> tuple[list[str], Population]:
    """Return the label names and the samples of a run's .npz file.

    They take no more memory than its size.
    """
    try:
        with ZipFile(path) as members:
            if any(member.compress_type != ZIP_STORED for member in members.infolist()):
                # what is compressed may take more memory than the file's size tells
                raise RunError(
                    f"{path.name} is compressed, but a run stores it uncompressed. Restore it from "
                    "a copy."
                )
        with np.load(path, allow_pickle=False) as archive:
            samples = modality(kind_among(archive.files))(archive[kind_among(archive.files)])
            more = {SOFT_LABEL: archive.get("soft_labels"), CAPTION: archive.get("captions")}
            conditions = Conditions(
                {name: column for name, column in more.items() if column is not None}
            )
            parents = np.full(len(samples), NO_PARENT)
            return archive["label_names"].tolist(), Population(
                samples, archive["labels"], conditions, parents
            )
    except (
        ArithmeticError,
        BadZipFile,
        ContractError,
        EOFError,
        KeyError,
        MemoryError,
        TypeError,
        ValueError,
    ) as error:
        raise RunError(f"{path.name} is damaged: restore it from a copy.") from error


def _check(place: str, part: Population, kind: type[Samples], names: Sequence[object]) -> None:
    """Raise RunError if a part's samples, labels and conditions do not fit together."""
    labels = part.labels
    soft = part.conditions.get(SOFT_LABEL)
    captions = part.conditions.get(CAPTION)
    fits = (
        all(isinstance(each, str) for each in names)
        and type(part.samples) is kind
        and kind.check(part.samples.array)
        and labels.ndim == 1
        and labels.dtype.kind in "iu"
        and labels.size > 0
        and 0 <= labels.min() <= labels.max() < len(names)
        and (soft is None or (soft.shape[1:] == (len(names),) and soft.dtype.kind == "f"))
        and (captions is None or (captions.ndim == 1 and captions.dtype.kind == "U"))
    )
    if not fits:
        raise RunError(f"{place} is damaged: restore it from a copy.")


# Labels as names of folders, on any system.

_LONGEST = 200
_BYTES_KEPT = 180  # with a hash behind it, a name that is cut is longer than any that is not
_NOWHERE = re.compile(
    r"%(?=[0-9A-Fa-f]{2})|\A[. ]|[. ]\Z|[/\\<>:\"|?*]"
)  # and a % that would read as an escape
_TAKEN = re.compile(
    r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(\..*)?|labels\.csv", re.IGNORECASE | re.DOTALL
)
_UNSEEN = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # controls, format characters, halves of characters, ends of lines
_JOINERS = "\u200c\u200d"  # which words and emoji are written with


def file_names(labels: Sequence[str]) -> list[str]:
    r"""Return a folder's name for each label: the label, as far as every file system allows it.

    Percent-escapes of their UTF-8 replace `/`, control characters, characters that turn the
    direction of writing or are not seen, `<>:"\|?*`, a dot or space at an end, the first letter of
    a name that Windows gives to a device or that labels.csv has, and a `%` that would read as such
    an escape. If labels differ only in upper and lower case, their upper-case letters are escaped.
    A name of more than 200 bytes is cut, and a hash of the label stands behind it. Different labels
    get different names, also on a file system that ignores case.
    """
    lower = Counter(label.casefold() for label in labels)
    return [_file_name(label, escapes_case=lower[label.casefold()] > 1) for label in labels]


def _file_name(label: str, escapes_case: bool) -> str:
    name = _NOWHERE.sub(lambda match: _escape(match[0]), label)
    name = "".join(
        _escape(char) if unicodedata.category(char) in _UNSEEN and char not in _JOINERS else char
        for char in name
    )
    if escapes_case:
        pieces = re.findall("%[0-9A-F]{2}|.", name)  # escapes, and single characters
        name = "".join(
            one if len(one) > 1 or one.casefold() == one else _escape(one) for one in pieces
        )
    if _TAKEN.fullmatch(name):
        name = _escape(name[0]) + name[1:]
    data = name.encode()
    if len(data) <= _LONGEST:
        return name
    kept = data[:_BYTES_KEPT].decode(errors="ignore")
    return f"{kept}%{hashlib.sha256(label.encode()).hexdigest()[:32]}"


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


# Writing.


def convert(folder: Path, form: Format, certificate: Mapping[str, Any]) -> None:
    """Replace `synthetic.npz` in an exported `folder` by the same samples in `form`.

    The files of extensions are replaced, too.
    """
    table = read_table(folder)
    if form in _OF_TEXTS and not table.of_strings:
        raise RecipeError(
            f"The format '{form}' holds texts or rows, not {table.kind.noun}. Choose folder, "
            "parquet or webdataset."
        )
    _WRITERS[form](folder, table)
    # the card names the files of the samples by their hashes, so it comes after them
    if form == "huggingface":
        write_card(
            folder,
            certificate,
            noun=table.kind.noun,
            task=f"{table.column if table.columns is None else 'tabular'}-classification",
            labels=table.names,
            features=table.sample_features(),
            columns=table.dictionary(),
        )
    if table.columns is not None:
        declared = {
            "columns": table.dictionary(),
            "constraints": _private(folder).get("constraints") or [],
        }
        content = json.dumps(declared, indent=1, ensure_ascii=False)
        (folder / DICTIONARY).write_text(content + "\n", encoding="utf-8")
    for path in (folder / SYNTHETIC, *folder.glob("extension-*.npz")):
        path.unlink()


def _write_folder(folder: Path, table: Table) -> None:
    """Write `synthetic/<label>/<index>.png`, as torchvision and Keras read it, and labels.csv."""
    top = folder / "synthetic"
    top.mkdir()

    def lines() -> Iterator[dict[str, Any]]:
        for row in table.rows():
            path = top / row.file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(row.data)
            yield {"file": row.file, **table.flat(row.about)}

    _write_lines(top / "labels.csv", lines())


def _write_csv(folder: Path, table: Table) -> None:
    """Write `synthetic.csv`: texts and labels in columns, or rows.

    An apostrophe keeps a cell of a row from being a formula. Texts are written as they are:
    spreadsheets take one that begins with = for a formula.
    """
    lines = (row.cells | table.flat(row.about) for row in table.rows())
    if table.columns is not None:
        lines = (
            {_harmless(name): _harmless(cell) for name, cell in line.items()} for line in lines
        )
    _write_lines(folder / "synthetic.csv", lines)


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write a CSV file of dictionaries with the same keys, which are its head."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for i, line in enumerate(lines):
            if not i:
                writer.writerow(line)
            writer.writerow(line.values())


def _harmless(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULAS) else cell


def _write_jsonl(folder: Path, table: Table) -> None:
    """Write `synthetic.jsonl`: one JSON object per line."""
    with (folder / "synthetic.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(entry, ensure_ascii=False, default=str) + "\n" for entry in table.entries()
        )


def _write_parquet(folder: Path, table: Table) -> None:
    """Write `synthetic.parquet`: samples, labels, and any soft labels and captions.

    Soft labels are in the order of the label names.
    """
    _write_rows(folder / PARQUET, table, table.rows())


def _write_hub(folder: Path, table: Table) -> None:
    """Write `data/train-<shard>.parquet`, as Hugging Face's hub and `datasets` read them."""
    (folder / "data").mkdir()
    for index, shard in enumerate(_shards(table.rows())):
        _write_rows(folder / "data" / f"train-{index:05d}.parquet", table, shard)


def _write_webdataset(folder: Path, table: Table) -> None:
    """Write WebDataset's `synthetic/<shard>.tar`.

    Each sample has its file, its label number (.cls) and its description (.json).
    """
    (folder / "synthetic").mkdir()
    keys = count()
    for index, shard in enumerate(_shards(table.rows())):
        with tarfile.open(folder / "synthetic" / f"{index:05d}.tar", "w") as tar:
            for row, key in zip(shard, keys, strict=False):
                description = json.dumps(row.about, ensure_ascii=False).encode()
                members = {
                    table.kind.suffix: row.data,
                    ".cls": str(row.label).encode(),
                    ".json": description,
                }
                for suffix, data in members.items():
                    entry = tarfile.TarInfo(f"{key:06d}{suffix}")  # without time or owner
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


_WRITERS: Mapping[str, Callable[[Path, Table], None]] = {
    "csv": _write_csv,
    "folder": _write_folder,
    "huggingface": _write_hub,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
}


def _shards(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Cut the rows into pieces of about `_SHARD` bytes."""
    shard: list[Row] = []
    size = 0
    for row in rows:
        shard.append(row)
        size += len(row.data)
        if size >= _SHARD:
            yield shard
            shard = []
            size = 0
    if shard:
        yield shard


def _write_rows(path: Path, table: Table, rows: Iterable[Row]) -> None:
    """Write a Parquet file in groups of rows, from which Hugging Face can decode the samples."""
    pa = import_library("pyarrow", "parquet", "Exporting Parquet")
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    rows = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        for group in iter(lambda: list(islice(rows, _ROWS_TOGETHER)), []):
            entries = [row.cells | row.about for row in group]
            writer.write_table(pa.Table.from_pylist(entries, schema))


def arrow_schema(table: Table) -> Any:
    """Return pyarrow's schema of the table, from which Hugging Face can decode the samples."""
    import pyarrow as pa

    features = table.features()
    columns = {}
    for name, feature in features.items():
        if feature["_type"] == "Sequence":
            columns[name] = pa.list_(pa.float32())
        elif "dtype" in feature:
            columns[name] = pa.type_for_alias(feature["dtype"])
        else:  # files, such as images
            columns[name] = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.schema(
        columns, metadata={"huggingface": json.dumps({"info": {"features": features}})}
    )
