"""What lies at a place, for `pe init` to propose: all of it confidential until the owner confirms it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pe.errors import PEError, PrivateDataError, RecipeError
from pe.private.dataset import PrivateDataset
from pe.private.files import LABELS_CSV, find_labels, find_units
from pe.private.folder import SUFFIXES
from pe.private.npz import find_arrays
from pe.private.parquet import ImageParquet

_LOOKED_AT = 32
_TEXTS = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".txt"})
_FILES_LOOKED_AT = 64
_OWN_SIDE = 256  # pixels: square images of one size up to this keep it
_SIDES = (32, 64, 128)


@dataclass(frozen=True)
class Seen:
    """Private records at a place.

    Attributes:
        settings: kind, path and columns, as the recipe's section `private` has them.
        labels: their names; empty where there are none.
        units: what the privacy unit may be, besides `record`.
        where: the unit's place in words: "a column of labels.csv".
    """

    settings: dict[str, Any]
    labels: tuple[str, ...]
    units: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class SeenShape:
    """The size that suits the first records.

    Attributes:
        side: height and width, in pixels.
        channels: 1 where all are grey, else 3.
        words: what they are like.
    """

    side: int
    channels: int
    words: str


def kind_at(path: Path) -> str:
    """The kind of source that reads what lies at `path`: folder, npz or parquet.

    Raises:
        RecipeError: nothing is there, or nothing of the kind.
    """
    if not path.exists():
        raise RecipeError(f"{path} does not exist: name a folder of images, an .npz or a .parquet file.")
    if path.is_dir():
        return "parquet" if any(path.glob("*.parquet")) else "folder"
    kind = path.suffix.lower().removeprefix(".")
    if path.suffix.lower() in _TEXTS:
        raise _holds_texts(path, "text_table")
    if kind not in ("npz", "parquet"):
        raise RecipeError(f"{path} is neither a folder nor an .npz or .parquet file.")
    return kind


def look(path: Path, image_column: str | None, label_column: str | None) -> Seen:
    """What lies at `path`.

    Args:
        path: a folder or a file.
        image_column: of Parquet files, as the owner names it; None: it is looked for.
        label_column: the same, of labels; empty: none.

    Raises:
        RecipeError: nothing is there that a starting recipe can be written for.
        PrivateDataError: it cannot be read.
        MissingDependency: a library is not installed that reads it.
    """
    kind = kind_at(path)
    settings: dict[str, Any] = {"kind": kind, "path": path}
    if kind == "npz":
        labels, units = find_arrays(path)
        return Seen(settings, labels, units, "an array of the file")
    if kind == "parquet":
        found = ImageParquet.find(path, image_column, label_column)
        settings |= {"image_column": found.image, "label_column": found.label}
        return Seen(settings, found.labels, found.others, "a column")
    if _holds_dicom(path):
        raise RecipeError(
            f"{path} holds DICOM files: write a recipe with private.kind: dicom, whose window you must declare "
            "(pe explain dicom; docs/data.md)."
        )
    if not _holds(path, SUFFIXES) and _holds(path, _TEXTS):
        raise _holds_texts(path, "text_folder, or text_table")
    return Seen(settings, find_labels(path), find_units(path), "subfolder, a column of labels.csv")


def look_at_shape(dataset: PrivateDataset) -> SeenShape:
    """The size that suits the first records; those that cannot be read are passed over.

    Args:
        dataset: of a source without a resize rule, in colour.

    Raises:
        PEError: none of them can be read; the first one's error.
    """
    sizes: list[tuple[int, int]] = []
    grey, error = True, None
    for outcome in dataset.first(_LOOKED_AT):
        if isinstance(outcome, PEError):
            error = error or outcome
            continue
        sizes.append((outcome.shape[0], outcome.shape[1]))
        grey = grey and bool(np.all(outcome == outcome[..., :1]))
    if not sizes:
        raise error or PrivateDataError("There are no records.")
    (height, width), one = min(sizes), len(set(sizes)) == 1
    shortest = min(min(size) for size in sizes)
    side = max((one for one in _SIDES if one <= shortest), default=_SIDES[0])
    if one and height == width <= _OWN_SIDE:
        side = height
    size = f"{height}×{width} pixels" if one else f"of different sizes, the smallest {height}×{width} pixels,"
    return SeenShape(side, 1 if grey else 3, f"{size} and {'grey' if grey else 'in colour'}")


def _holds_texts(path: Path, kind: str) -> RecipeError:
    return RecipeError(
        f"{path} holds texts: write a recipe with private.kind: {kind} (examples/texts.yaml, docs/text.md)."
    )


def _holds(folder: Path, suffixes: Collection[str]) -> bool:
    """Whether one of a folder's first files has such a name."""
    found = islice(_files(folder), _FILES_LOOKED_AT)
    return any(file.suffix.lower() in suffixes and file.name != LABELS_CSV for file in found)


def _holds_dicom(folder: Path) -> bool:
    """Whether one of a folder's first files is DICOM, by what it begins with."""
    return any(_begins_as_dicom(file) for file in islice(_files(folder), _FILES_LOOKED_AT))


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _begins_as_dicom(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:  # the source itself says so, with the file's name
        return False
