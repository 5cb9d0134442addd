"""The synthetic data in another form than .npz: read here, written by writers.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from pe.data.conditions import CAPTION, SOFT_LABEL
from pe.data.samples import Array, Samples, kind_among, modality
from pe.errors import ContractError, RecipeError, RunError
from pe.store.card import write_card
from pe.store.certified import extensions
from pe.store.file_names import file_names
from pe.store.places import SYNTHETIC
from pe.store.writers import WRITERS, Row, Table

Format = Literal["csv", "folder", "huggingface", "jsonl", "npz", "parquet", "webdataset"]
Part = tuple[Array, Samples, Array | None, Array | None]
"""Labels, samples, soft labels and captions, if any."""

_SOFT, _CAPTIONS = "soft_labels", "captions"
_OF_TEXTS = ("csv", "jsonl")


def convert(folder: Path, form: Format, certificate: Mapping[str, Any]) -> None:
    """Replace `synthetic.npz`, and the extensions' .npz files, in the exported `folder` by the same samples in `form`.

    Raises:
        RunError: they are not as this software writes them.
        RecipeError: the form holds texts alone, and these are none.
        MissingDependency: Parquet without pyarrow.
    """
    names, first = _read_samples(folder / SYNTHETIC)
    parts, (_, samples, soft, captions) = [first, *_extensions(folder, names)], first
    labelled = chain.from_iterable(
        zip(
            labels,
            samples.files(),
            np.zeros((len(labels), 0)) if soft is None else soft,
            np.zeros(len(labels), "U") if captions is None else captions,
            strict=True,
        )
        for labels, samples, soft, captions in parts
    )
    if form in _OF_TEXTS and samples.suffix != ".txt":
        raise RecipeError(f"format: '{form}' holds texts, not {samples.noun}: choose folder, parquet or webdataset.")
    folders = file_names(names)
    rows = (
        Row(f"{folders[label]}/{index:06d}{samples.suffix}", int(label), data, list(map(float, shares)), str(caption))
        for index, (label, data, shares, caption) in enumerate(labelled)
    )
    table = Table(names, type(samples), soft is not None, captions is not None, rows)
    WRITERS[form](folder, table)
    if form == "huggingface":
        write_card(folder, table, certificate)
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
            part = archive["labels"], archive[kind], archive.get(_SOFT), archive.get(_CAPTIONS)
            return names, _check(path.name, names, modality(kind), *part)
    except (BadZipFile, ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
        raise RunError(f"{path.name} is damaged: restore it from a copy.") from error


def _extensions(folder: Path, names: list[str]) -> Iterator[Part]:
    """What `pe extend` added, checked."""
    try:
        more = extensions(folder)
    except (ContractError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"{folder.name}: an extension is damaged: restore it from a copy.") from error
    for place, one in more.items():
        part = one.labels, one.samples.array, one.conditions.get(SOFT_LABEL), one.conditions.get(CAPTION)
        yield _check(place, names, type(one.samples), *part)


def _check(
    name: str,
    names: list[str],
    kind: type[Samples],
    labels: Array,
    array: Array,
    soft: Array | None,
    captions: Array | None,
) -> Part:
    """Labels, samples, soft labels and captions, as they can be written.

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
        and (captions is None or (captions.shape == (count,) and captions.dtype.kind == "U"))
    )
    if not fits:
        raise RunError(f"{name} is damaged: restore it from a copy.")
    return labels, kind(array), soft, captions
