"""The synthetic data in another form: a file per sample in folders by label, or one Parquet file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from pe.data.conditions import SOFT_LABEL
from pe.data.samples import Array, Samples, kind_among, modality
from pe.errors import ContractError, MissingDependency, RunError
from pe.store.certified import extensions
from pe.store.file_names import LABELS_CSV, file_names
from pe.store.places import SYNTHETIC, extension_place

Format = Literal["folder", "npz", "parquet"]
Row = tuple[str, str, bytes, list[float]]
"""A sample's file name, its label, its file, and its soft label: a probability for each label, or none at all."""

Part = tuple[Array, Samples, Array | None]
"""Labels, samples and soft labels, if any."""

_SOFT = "soft_labels"
_ROWS_TOGETHER = 500


def convert(folder: Path, form: Format) -> None:
    """Replace `synthetic.npz`, and the extensions' .npz files, in the exported `folder` by the same samples in `form`.

    Raises:
        RunError: they are not as this software writes them.
        MissingDependency: Parquet without pyarrow.
    """
    names, first = _read_samples(folder / SYNTHETIC)
    parts, (_, samples, soft) = [first, *_extensions(folder, names)], first
    labelled = chain.from_iterable(
        zip(labels, samples.files(), np.zeros((len(labels), 0)) if soft is None else soft, strict=True)
        for labels, samples, soft in parts
    )
    folders = file_names(names)
    rows = (
        (f"{folders[label]}/{index:06d}{samples.suffix}", names[label], data, list(map(float, shares)))
        for index, (label, data, shares) in enumerate(labelled)
    )
    columns = names if soft is not None else []
    if form == "folder":
        _write_folder(folder / "synthetic", rows, columns)
    else:
        _write_parquet(folder / "synthetic.parquet", rows, type(samples), columns)
    for path in (folder / SYNTHETIC, *folder.glob("extension-*.npz")):
        path.unlink()


def _read_samples(path: Path) -> tuple[list[str], Part]:
    """Label names, and all else, of a run's .npz file: no more than its own size in memory.

    Raises:
        RunError: it is not as this software writes it.
    """
    try:
        with ZipFile(path) as members:
            if any(member.compress_type != ZIP_STORED for member in members.infolist()):
                raise RunError(f"{path.name} is compressed, which this software does not do: unpack and store it.")
        with np.load(path, allow_pickle=False) as archive:
            names, kind = archive["label_names"].tolist(), kind_among(archive.files)
            part = archive["labels"], archive[kind], archive.get(_SOFT)
            return names, _check(path.name, names, modality(kind), *part)
    except (BadZipFile, ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
        raise RunError(f"{path.name} is damaged: restore it from a copy.") from error


def _extensions(folder: Path, names: list[str]) -> Iterator[Part]:
    """What `pe extend` added, checked."""
    try:
        more = extensions(folder)
    except (ContractError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"{folder.name}: an extension is damaged: restore it from a copy.") from error
    for index, one in enumerate(more, start=1):
        part = one.labels, one.samples.array, one.conditions.get(SOFT_LABEL)
        yield _check(extension_place(index), names, type(one.samples), *part)


def _check(name: str, names: list[str], kind: type[Samples], labels: Array, array: Array, soft: Array | None) -> Part:
    """Labels, samples and soft labels, as they can be written.

    Raises:
        RunError: they are not as this software writes them.
    """
    count = len(array) if kind.check(array) else -1
    fits = (
        all(isinstance(each, str) for each in names)
        and labels.shape == (count,)
        and labels.dtype.kind in "iu"
        and 0 <= labels.min() <= labels.max() < len(names)
        and (soft is None or (soft.shape == (count, len(names)) and soft.dtype.kind == "f"))
    )
    if not fits:
        raise RunError(f"{name} is damaged: restore it from a copy.")
    return labels, kind(array), soft


def _write_folder(folder: Path, rows: Iterator[Row], soft: Sequence[str]) -> None:
    folder.mkdir()
    with (folder / LABELS_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "label", *(f"p({label})" for label in soft)))
        for name, label, data, shares in rows:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            writer.writerow((name, label, *shares))


def _write_parquet(path: Path, rows: Iterator[Row], kind: type[Samples], soft: Sequence[str]) -> None:
    """The samples' column, label and, where there are some, soft_label, in the order of the label names.

    In groups of rows, with the metadata by which Hugging Face decodes the samples.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Exporting Parquet") from error
    text, name = kind.feature.get("dtype") == "string", kind.kind.removesuffix("s")
    features = {name: dict(kind.feature), "label": {"dtype": "string", "_type": "Value"}}
    of_files = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {name: pa.string() if text else of_files, "label": pa.string()}
    if soft:
        columns["soft_label"] = pa.list_(pa.float32())
    schema = pa.schema(
        columns,
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _ROWS_TOGETHER)):
            entries = [
                {name: data.decode() if text else {"bytes": data, "path": file}, "label": label}
                | ({"soft_label": shares} if soft else {})
                for file, label, data, shares in group
            ]
            writer.write_table(pa.Table.from_pylist(entries, schema))
