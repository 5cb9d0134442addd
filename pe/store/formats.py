"""Formats of exported data: for the name of each format, a function that writes the samples into a folder."""

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
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import yaml

from pe.data.bounded import read_bytes
from pe.data.samples import CAPTION, SOFT_LABEL, Array, Samples, columns_of, kind_among, modality
from pe.errors import ContractError, RecipeError, RunError, printable
from pe.plugins.devices import import_library
from pe.privacy.covered import sha256
from pe.privacy.words import code, guarantee, sentence
from pe.store.certified import extensions
from pe.store.places import CERTIFICATE, RECIPE, SYNTHETIC

Format = Literal["csv", "folder", "huggingface", "jsonl", "npz", "parquet", "webdataset"]

LABELS_CSV = "labels.csv"
PARQUET = "synthetic.parquet"
DICTIONARY = "data-dictionary.json"
_LABEL = "label"
_OF_TEXTS = ("csv", "jsonl")
_TEXT = ("string", "sc:Text")
_TYPES = {
    "integer": ("int64", "sc:Integer"),
    "real": ("float64", "sc:Float"),
    "boolean": ("bool", "sc:Boolean"),
    "date": ("date32", "sc:Date"),
}
"""Kind of a column of rows → its type in Arrow and Hugging Face's data sets, and in Croissant; others are _TEXT."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_MOST_VALUES = 50
"""The most values of a column that a card lists."""
_ROWS_TOGETHER = 500
_SHARD = 200_000_000
"""The approximate bytes of samples in one shard, or in one Parquet file for a hub."""


class Part(NamedTuple):
    """Samples of a run or of an extension, as they were read; `soft` and `captions` are None where there are none."""

    labels: Array
    samples: Samples
    soft: Array | None
    captions: Array | None


class Row(NamedTuple):
    """A sample, as it is written."""

    file: str  # its file's name, in a folder for its label
    label: int  # its place among the label names
    data: bytes  # the content of its file
    cells: dict[str, Any]  # the sample's columns: one, or those of a row
    description: dict[str, Any]  # label; where there are some, soft_label and caption


@dataclass(frozen=True)
class Table:
    """All samples; the rows can be read once."""

    names: list[str]  # of the labels
    kind: type[Samples]
    soft: bool  # True if they have soft labels
    has_captions: bool  # True if they have captions
    rows: Iterator[Row]
    label: str = _LABEL  # the name of the labels' column
    columns: Any = None  # of samples that are rows, as `columns_of` returns them

    @property
    def column(self) -> str:
        """The name of the samples' column, such as image."""
        return self.kind.kind.removesuffix("s")

    @property
    def of_strings(self) -> bool:
        """True if a sample is a string in a table, not a file."""
        return self.kind.feature.get("dtype") == "string"

    def csv_head(self, *first: str) -> list[str]:
        """Return the head of a CSV file whose first columns are given."""
        soft = (f"p({name})" for name in self.names if self.soft)
        return [*first, self.label, *soft, *([CAPTION] if self.has_captions else [])]

    def csv_row(self, first: Iterable[Any], row: Row) -> list[Any]:
        """Return a row's cells, in the order of the columns that `csv_head` names."""
        about = row.description
        captions = [about[CAPTION]] if self.has_captions else []
        return [*first, about[self.label], *about.get("soft_label", ()), *captions]

    def entry(self, row: Row) -> dict[str, Any]:
        """Return a sample and its description, for a row of Parquet or JSON lines."""
        return row.cells | row.description

    def dictionary(self) -> list[dict[str, Any]]:
        """Return what is declared in public of each column of rows, and of the label."""
        entries = [{"name": name} | _declared(column) for name, column in self.columns.items()]
        return [*entries, {"name": self.label, "kind": "category", "values": self.names, "note": "the label"}]


def _declared(column: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if column.values:
        values = {"values": [column.value(code) for code in range(column.size)]}
    elif column.min is not None:
        values = {"min": column.value(0), "max": column.value(column.size - 1), "unit": column.unit}
    about = {"missing": column.missing, "declared": "in public, by the owner of the records", "note": column.note}
    return {"kind": column.kind, **values, **about}


def read_parts(folder: Path) -> tuple[list[str], list[Part]]:
    """Return the label names, the samples of a finished run or its export, and those of its extensions, in order."""
    names, first = _read_samples(folder / SYNTHETIC)
    return names, [first, *_extensions(folder, names)]


def read_table(folder: Path) -> Table:
    """Return the samples that `read_parts` returns as rows; RunError if a file is damaged."""
    names, parts = read_parts(folder)
    kind, soft, captions = type(parts[0].samples), parts[0].soft, parts[0].captions
    columns, label = declarations(folder, parts[0].samples)
    table = Table(names, kind, soft is not None, captions is not None, iter(()), label, columns)
    return replace(table, rows=_rows(parts, table))


def declarations(folder: Path, samples: Samples) -> tuple[Any, str]:
    """Return the columns of samples that are rows, None for others; and the name of the labels' column."""
    private = _private(folder)
    if (columns := columns_of(samples, private)) is None:
        return None, _LABEL
    label = private.get("label_column") or _LABEL
    while label in columns:  # the records have no column of labels
        label += "_"
    return columns, label


def _private(folder: Path) -> dict[str, Any]:
    """Return the recipe's section `private`."""
    section: dict[str, Any] = yaml.safe_load(read_bytes(folder / RECIPE))["private"]
    return section


def convert(folder: Path, form: Format, certificate: Mapping[str, Any]) -> None:
    """Replace `synthetic.npz`, and the extensions' files, in an exported `folder` by the same samples in `form`."""
    table = read_table(folder)
    if form in _OF_TEXTS and not table.of_strings:
        raise RecipeError(
            f"format: '{form}' holds texts or rows, not {table.kind.noun}: choose folder, parquet or webdataset."
        )
    WRITERS[form](folder, table)
    if form == "huggingface":
        write_card(folder, table, certificate)
    if table.columns is not None:
        declared = {"columns": table.dictionary(), "constraints": _private(folder).get("constraints") or []}
        content = json.dumps(declared, indent=1, ensure_ascii=False)
        (folder / DICTIONARY).write_text(content + "\n", encoding="utf-8")
    for path in (folder / SYNTHETIC, *folder.glob("extension-*.npz")):
        path.unlink()


def _rows(parts: list[Part], table: Table) -> Iterator[Row]:
    folders, index = file_names(table.names), count()
    for part in parts:
        rows = None if table.columns is None else _cells(table.columns, part.samples)
        for i, data in enumerate(part.samples.files()):
            label = int(part.labels[i])
            about: dict[str, Any] = {table.label: table.names[label]}
            if part.soft is not None:
                about["soft_label"] = part.soft[i].astype(float).tolist()
            if part.captions is not None:
                about[CAPTION] = str(part.captions[i])
            file = f"{folders[label]}/{next(index):06d}{part.samples.suffix}"
            one = data.decode() if table.of_strings else {"bytes": data, "path": PurePosixPath(file).as_posix()}
            yield Row(file, label, data, {table.column: one} if rows is None else next(rows), about)


def _cells(columns: Any, samples: Samples) -> Iterator[dict[str, Any]]:
    """Yield each row's values, of their columns' types; one that its column does not declare is missing."""
    codes = columns.codes(samples)
    values = [
        {code: column.cell(code) for code in {*own}}
        for column, own in zip(columns.values(), codes.T.tolist(), strict=True)
    ]
    for row in codes.tolist():
        yield {name: cells[code] for name, cells, code in zip(columns, values, row, strict=True)}


def _read_samples(path: Path) -> tuple[list[str], Part]:
    """Return the label names and the samples of a run's .npz file; they take no more memory than its size."""
    try:
        with ZipFile(path) as members:
            if any(member.compress_type != ZIP_STORED for member in members.infolist()):
                raise RunError(f"{path.name} is compressed, which this software does not do: unpack and store it.")
        with np.load(path, allow_pickle=False) as archive:
            names, kind = archive["label_names"].tolist(), kind_among(archive.files)
            columns = archive["labels"], archive[kind], archive.get("soft_labels"), archive.get("captions")
            return names, _check(path.name, names, modality(kind), columns)
    except (BadZipFile, ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
        raise RunError(f"{path.name} is damaged: restore it from a copy.") from error


def _extensions(folder: Path, names: list[str]) -> Iterator[Part]:
    try:
        more = extensions(folder)
    except (ContractError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"{folder.name}: an extension is damaged: restore it from a copy.") from error
    for place, one in more.items():
        columns = one.labels, one.samples.array, one.conditions.get(SOFT_LABEL), one.conditions.get(CAPTION)
        yield _check(place, names, type(one.samples), columns)


def _check(name: str, names: list[str], kind: type[Samples], columns: Sequence[Any]) -> Part:
    """Return labels, samples, soft labels and captions as a part; RunError if they do not fit together."""
    labels, array, soft, captions = columns
    number = len(array) if kind.check(array) else -1
    fits = (
        all(isinstance(each, str) for each in names)
        and labels.shape == (number,)
        and labels.dtype.kind in "iu"
        and 0 <= labels.min() <= labels.max() < len(names)
        and (soft is None or (soft.shape == (number, len(names)) and soft.dtype.kind == "f"))
        and (captions is None or (captions.shape == (number,) and captions.dtype.kind == "U"))
    )
    if not fits:
        raise RunError(f"{name} is damaged: restore it from a copy.")
    return Part(labels, kind(array), soft, captions)


# Labels as names of folders, on any system.

_LONGEST = 200
_BYTES_KEPT = 180  # with a hash behind it, a name that is cut is longer than any that is not
_AMBIGUOUS = re.compile(r"%(?=[0-9A-Fa-f]{2})")  # a per cent sign that would read as an escape
_NOWHERE = re.compile(r"\A[. ]|[. ]\Z|[/\\<>:\"|?*]")
_TAKEN = re.compile(r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(\..*)?|labels\.csv", re.IGNORECASE | re.DOTALL)
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, format characters, halves of characters, ends of lines
_JOINERS = "\u200c\u200d"  # which words and emoji are written with


def file_names(labels: Sequence[str]) -> list[str]:
    r"""Return a folder's name for each label: the label itself, as far as every file system allows it.

    Percent-escapes of their UTF-8 replace `/`, control characters, characters that turn the direction of writing or are
    not seen, `<>:"\|?*`, a dot or space at an end, the first letter of a name that Windows gives to a device or that
    LABELS_CSV has, and a `%` that would read as such an escape. If labels differ only in upper and lower case, their
    upper-case letters are escaped. A name of more than 200 bytes is cut, and a hash of the label stands behind it.
    Different labels get different names, also on a file system that ignores case.
    """
    lower = Counter(label.casefold() for label in labels)
    return [_file_name(label, escapes_case=lower[label.casefold()] > 1) for label in labels]


def _file_name(label: str, escapes_case: bool) -> str:
    name = _NOWHERE.sub(lambda match: _escape(match[0]), _AMBIGUOUS.sub("%25", label))
    name = "".join(
        _escape(char) if unicodedata.category(char) in _UNSEEN and char not in _JOINERS else char for char in name
    )
    if escapes_case:
        parts = re.split(r"(%[0-9A-F]{2})", name)
        parts[::2] = ["".join(c if c.casefold() == c else _escape(c) for c in part) for part in parts[::2]]
        name = "".join(parts)
    if _TAKEN.fullmatch(name):
        name = _escape(name[0]) + name[1:]
    data = name.encode()
    if len(data) <= _LONGEST:
        return name
    return f"{data[:_BYTES_KEPT].decode(errors='ignore')}%{hashlib.sha256(label.encode()).hexdigest()[:32]}"


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


# Writers.


def _write_folder(folder: Path, table: Table) -> None:
    """Write `synthetic/<label>/<index>.png`, as torchvision and Keras read it, and `synthetic/labels.csv`."""
    top = folder / "synthetic"
    top.mkdir()
    with (top / LABELS_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.csv_head("file"))
        for row in table.rows:
            path = top / row.file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(row.data)
            writer.writerow(table.csv_row([row.file], row))


def _write_csv(folder: Path, table: Table) -> None:
    """Write `synthetic.csv`: texts and labels in columns, or rows; an apostrophe keeps a cell from being a formula.

    Texts are written as they are: spreadsheets take one that begins with = for a formula.
    """
    with (folder / "synthetic.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        lines: Iterable[list[Any]] = (table.csv_row(row.cells.values(), row) for row in table.rows)
        lines = chain([table.csv_head(*(table.columns or [table.column]))], lines)
        writer.writerows(lines if table.columns is None else (map(_harmless, line) for line in lines))


def _harmless(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULAS) else cell


def _write_jsonl(folder: Path, table: Table) -> None:
    """Write `synthetic.jsonl`: one JSON object per line."""
    with (folder / "synthetic.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(table.entry(row), ensure_ascii=False, default=str) + "\n" for row in table.rows)


def _write_parquet(folder: Path, table: Table) -> None:
    """Write `synthetic.parquet`: samples, label and any soft_label (in the order of the label names) and caption."""
    _write_rows(folder / PARQUET, table, table.rows)


def _write_hub(folder: Path, table: Table) -> None:
    """Write `data/train-<shard>.parquet`, as Hugging Face's hub and `datasets` read them."""
    (folder / "data").mkdir()
    for index, shard in enumerate(_shards(table.rows)):
        _write_rows(folder / "data" / f"train-{index:05d}.parquet", table, shard)


def _write_webdataset(folder: Path, table: Table) -> None:
    """Write WebDataset's `synthetic/<shard>.tar`: each sample's file, label number (.cls) and description (.json)."""
    (folder / "synthetic").mkdir()
    key = 0
    for index, shard in enumerate(_shards(table.rows)):
        with tarfile.open(folder / "synthetic" / f"{index:05d}.tar", "w") as tar:
            for row in shard:
                description = json.dumps(row.description, ensure_ascii=False).encode()
                members = {table.kind.suffix: row.data, ".cls": str(row.label).encode(), ".json": description}
                for suffix, data in members.items():
                    entry = tarfile.TarInfo(f"{key:06d}{suffix}")  # without time or owner
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
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
    """Cut the rows into pieces of about `_SHARD` bytes; each is to be read whole before the next."""

    def shard(first: Row) -> Iterator[Row]:
        size, row = len(first.data), first
        yield row
        while size < _SHARD and (following := next(rows, None)) is not None:
            size += len(following.data)
            yield following

    while (first := next(rows, None)) is not None:
        yield shard(first)


def _write_rows(path: Path, table: Table, rows: Iterator[Row]) -> None:
    """Write a Parquet file in groups of rows, with the metadata by which Hugging Face decodes the samples."""
    pa = import_library("pyarrow", "parquet", "Exporting Parquet")
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _ROWS_TOGETHER)):
            writer.write_table(pa.Table.from_pylist([table.entry(row) for row in group], schema))


def arrow_schema(table: Table) -> Any:
    """Return pyarrow's schema of the table, with the metadata by which Hugging Face decodes the samples."""
    import pyarrow as pa

    features: dict[str, Any] = {table.column: dict(table.kind.feature)}
    as_file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {table.column: pa.string() if table.of_strings else as_file}
    if table.columns is not None:
        types = {name: _TYPES.get(column.kind, _TEXT)[0] for name, column in table.columns.items()}
        features = {name: {"dtype": dtype, "_type": "Value"} for name, dtype in types.items()}
        columns = {name: pa.type_for_alias(dtype) for name, dtype in types.items()}
    features[table.label], columns[table.label] = {"dtype": "string", "_type": "Value"}, pa.string()
    if table.soft:
        columns["soft_label"] = pa.list_(pa.float32())
        features["soft_label"] = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"}
    if table.has_captions:
        columns[CAPTION] = pa.string()
        features[CAPTION] = {"dtype": "string", "_type": "Value"}
    return pa.schema(columns, metadata={"huggingface": json.dumps({"info": {"features": features}})})


# A data-set card, as Hugging Face's hub shows it, and Croissant metadata: what they say is the certificate's.

CARD = "README.md"
CROISSANT = "croissant.json"
_CITATION = """```bibtex
@inproceedings{lin2024differentially,
  title     = {Differentially Private Synthetic Data via Foundation Model {API}s 1: Images},
  author    = {Lin, Zinan and Gopi, Sivakanth and Kulkarni, Janardhan and Nori, Harsha and Yekhanin, Sergey},
  booktitle = {International Conference on Learning Representations},
  year      = {2024}
}
```"""
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
}


def write_card(folder: Path, table: Table, certificate: Mapping[str, Any]) -> None:
    """Write a data-set card and Croissant metadata, by the `certificate`, for the Parquet files in `folder`/data."""
    import pyarrow.parquet as pq

    files = sorted((folder / "data").glob("*.parquet"))
    count = sum(pq.read_metadata(path).num_rows for path in files)
    (folder / CARD).write_text(_card(folder, table, certificate, count), encoding="utf-8")
    croissant = _croissant(folder, table, certificate, files)
    (folder / CROISSANT).write_text(json.dumps(croissant, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _card(folder: Path, table: Table, certificate: Mapping[str, Any], count: int) -> str:
    size = next((name for most, name in _SIZES if count < most), "n>10M")
    head = {
        "pretty_name": printable(certificate["run"]),
        "tags": ["synthetic", "private-evolution", *(["differential-privacy"] if certificate["holds"] else [])],
        "task_categories": [f"{table.column if table.columns is None else 'tabular'}-classification"],
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    api = yaml.safe_load(read_bytes(folder / RECIPE))["api"]["kind"]
    promise = guarantee(certificate["epsilon"], certificate["delta"]) if certificate["holds"] else "NO GUARANTEE"
    labels = ", ".join(map(code, table.names))
    facts = [
        f"- {count:,} synthetic {table.kind.noun} with the labels {labels}",
        f"- Guarantee: **{promise}**",
        f"- Protected: {sentence(certificate['unit']['words'])}",
        f"- Compared: {sentence(certificate['relation']['words'])}",
        f"- Generator: {code(api)}, evolved by Private Evolution",
    ]
    limits = [f"- {sentence(one)}" for one in certificate["not_covered"]]
    cautions = [f"- {sentence(one)}" for one in (*certificate["voided_by"], *certificate["warnings"])]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {code(certificate['run'])}",
        "\n".join(facts),
        sentence(certificate["statement"]),
        f"The certificate ([certificate.md](certificate.md), [{CERTIFICATE}]({CERTIFICATE})) lists every release and "
        "file; the software issued it itself. `pe verify FOLDER` recomputes it, with the same toolkit installed.",
        "## Warnings\n\n" + "\n".join(cautions) if cautions else "",
        "" if table.columns is None else "## Columns\n\n" + "\n".join(map(_column_line, table.dictionary())),
        "## What is not covered\n\n" + "\n".join(limits),
        "## How to cite\n\n" + _CITATION,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _column_line(entry: Mapping[str, Any]) -> str:
    """Return a line of the card on a column of rows."""
    values = entry.get("values", ())
    words = ", ".join(code(value) for value in values[:_MOST_VALUES])
    words += f" … ({len(values):,} in all)" if len(values) > _MOST_VALUES else ""
    if "min" in entry:
        words = f"{entry['min']} to {entry['max']}, unit {entry['unit']:g}{' days' * (entry['kind'] == 'date')}"
    more = ["may be missing"] if entry.get("missing") else []
    parts = [entry["kind"] + f": {words}" * bool(words), *more, *filter(None, [sentence(entry["note"])])]
    return f"- {code(entry['name'])}: {'; '.join(parts)}"


def _croissant(folder: Path, table: Table, certificate: Mapping[str, Any], files: list[Path]) -> dict[str, Any]:
    """Return Croissant 1.0 metadata: the Parquet files with their hashes, a file set of them, and its record set."""

    def node(kind: str, name: str, above: str = "", **more: Any) -> dict[str, Any]:
        return {"@type": f"cr:{kind}", "@id": above + name, "name": name, **more}

    def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
        source = {"fileSet": {"@id": "parquet"}, "extract": {"column": name}, **more}
        return node("Field", name, "train/", dataType=kind, source=source)

    if table.columns is not None:
        columns = [field(name, _TYPES.get(column.kind, _TEXT)[1]) for name, column in table.columns.items()]
    elif table.of_strings:
        columns = [field(table.column, "sc:Text")]
    else:
        columns = [field(table.column, "sc:ImageObject", transform={"jsonPath": "bytes"})]
    parquet = {"encodingFormat": "application/x-parquet"}
    objects = [
        node("FileObject", path.name, contentUrl=path.relative_to(folder).as_posix(), **parquet, sha256=sha256(path))
        for path in files
    ]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": printable(certificate["run"]),
        "description": printable(certificate["statement"]),
        "citeAs": _CITATION.removeprefix("```bibtex\n").removesuffix("\n```"),
        "distribution": [*objects, node("FileSet", "parquet", **parquet, includes="data/*.parquet")],
        "recordSet": [node("RecordSet", "train", field=[*columns, field(table.label, "sc:Text")])],
    }
