"""What lies at a place, for `pe init` to propose: all of it confidential until the owner confirms it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median_low, mode
from typing import Any

import numpy as np

from pe.data.tables import COLUMNAR, LABELS_CSV, has_splits, tables_in, walk
from pe.data.tables import SUFFIXES as TABLES
from pe.data.texts import LONGEST
from pe.errors import PEError, PrivateDataError, RecipeError
from pe.private.dataset import PrivateDataset
from pe.private.folder import SUFFIXES, TextFolder, find_labels, find_units
from pe.private.folder import TEXT_SUFFIXES as TEXTS
from pe.private.naming import FoundColumns
from pe.private.npz import find_arrays
from pe.private.tables import ImageParquet, TextTable
from pe.private.webdataset import TAR, WebDataset

LOOKED_AT = 32
"""Records, at most, whose sizes and lengths are looked at."""
_FILES_LOOKED_AT = 64
_OWN_SIDE = 256  # pixels: square images of one size up to this keep it
_SIDES = (32, 64, 128)
_LENGTHS = (250, 500, 1000)  # bytes of a text; beyond them LONGEST


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

    @property
    def texts(self) -> bool:
        """Whether they are texts; else they are images."""
        return self.settings["kind"] in (TextFolder.kind, TextTable.kind)


@dataclass(frozen=True)
class SeenShape:
    """The size that suits the first records. Confidential.

    Attributes:
        side: height and width, in pixels.
        channels: 1 where most are grey, else 3.
    """

    side: int
    channels: int


def kind_at(path: Path) -> str:
    """The kind of source of images that reads what lies at `path`: folder, npz, parquet or webdataset.

    Raises:
        RecipeError: a file of another type is there.
    """
    if path.is_dir() and tables_in(path, TAR):
        return WebDataset.kind
    if path.is_dir():
        return "parquet" if tables_in(path, COLUMNAR) or has_splits(path) else "folder"
    suffix = path.suffix.lower()
    if suffix not in (".npz", *COLUMNAR, *TAR):
        known = ", ".join((".npz", *COLUMNAR, *TAR))
        raise RecipeError(f"{path} is neither a folder nor a file of these types: {known}.")
    if suffix in TAR:
        return WebDataset.kind
    return "parquet" if suffix in COLUMNAR else "npz"


def text_kind_at(path: Path) -> str:
    """The kind of source of texts that reads what lies at `path`, as its name and those in it tell."""
    return TextFolder.kind if path.is_dir() and not tables_in(path) else TextTable.kind


def look(path: Path, image_column: str | None, text_column: str | None, label_column: str | None) -> Seen:
    """What lies at `path`.

    Args:
        path: a folder or a file.
        image_column: of Parquet or Arrow files, as the owner names it; None: it is looked for.
        text_column: the same, of tables of texts.
        label_column: the same, of labels; empty: none.

    Raises:
        RecipeError: nothing is there that a starting recipe can be written for.
        PrivateDataError: it cannot be read.
        MissingDependency: a library is not installed that reads it.
    """
    _check_there(path)
    if text_column is not None or _holds_texts(path):
        return _look_at_texts(path, text_column, label_column)
    kind = kind_at(path)
    settings: dict[str, Any] = {"kind": kind, "path": path}
    if kind == "npz":
        labels, units = find_arrays(path)
        return Seen(settings, labels, units, "an array of the file")
    if kind == WebDataset.kind:
        return _seen_table(settings, "image_column", WebDataset.find(path, image_column, label_column))
    if kind == "parquet":
        found = ImageParquet.find(path, image_column, label_column)
        if found is None:
            return _look_at_texts(path, text_column, label_column)
        return _seen_table(settings, "image_column", found)
    if _holds_dicom(path):
        raise RecipeError(
            f"{path} holds DICOM files: write a recipe with private.kind: dicom, whose window you must declare "
            "(pe explain dicom; docs/data.md)."
        )
    return _seen_folder(settings)


def _look_at_texts(path: Path, text_column: str | None, label_column: str | None) -> Seen:
    """Texts at `path`; see `look`."""
    settings: dict[str, Any] = {"kind": text_kind_at(path), "path": path}
    if settings["kind"] == TextFolder.kind:
        return _seen_folder(settings)
    return _seen_table(settings, "text_column", TextTable.find(path, text_column, label_column))


def _seen_folder(settings: dict[str, Any]) -> Seen:
    path = settings["path"]
    return Seen(settings, find_labels(path), find_units(path), "subfolder, a column of labels.csv")


def _seen_table(settings: dict[str, Any], key: str, found: FoundColumns) -> Seen:
    return Seen(settings | {key: found.sample, "label_column": found.label}, found.labels, found.others, "a column")


def look_at_shape(dataset: PrivateDataset) -> SeenShape:
    """The size that suits most of the first records; those that cannot be read are passed over.

    Args:
        dataset: of a source without a resize rule, in colour.

    Raises:
        PEError: none of them can be read; the first one's error.
    """
    images = _readable(dataset)
    sizes = [(image.shape[0], image.shape[1]) for image in images]
    grey = [bool(np.all(image == image[..., :1])) for image in images]
    (height, width), usual = mode(sizes), median_low(map(min, sizes))
    side = max((one for one in _SIDES if one <= usual), default=_SIDES[0])
    if 2 * sizes.count((height, width)) > len(sizes) and height == width <= _OWN_SIDE:
        side = height
    return SeenShape(side, 1 if 2 * sum(grey) > len(grey) else 3)


def look_at_length(dataset: PrivateDataset) -> int:
    """Bytes that suit most of the first texts: twice the median, as a round number. Confidential.

    Args:
        dataset: of a source that cuts no text that `longest` might hold.

    Raises:
        PEError: none of them can be read; the first one's error.
    """
    usual = 2 * median_low(len(bytes(one)) for one in _readable(dataset))
    return next((one for one in _LENGTHS if one >= usual), LONGEST)


def _readable(dataset: PrivateDataset) -> list[Any]:
    """Those of the first records that can be read; PEError if there are none: that of the first."""
    outcomes = list(dataset.first(LOOKED_AT))
    readable = [one for one in outcomes if not isinstance(one, PEError)]
    if not readable:
        raise next((one for one in outcomes if isinstance(one, PEError)), PrivateDataError("There are no records."))
    return readable


def _check_there(path: Path) -> None:
    known = f"a folder of images or texts, an .npz or .tar file or a table ({', '.join(TABLES)})"
    if not path.exists():
        raise RecipeError(f"{path} does not exist: name {known}.")
    if path.is_file() and path.suffix.lower() not in (".npz", *TAR, *TABLES):
        raise RecipeError(f"{path} is of no type that is read here: name {known}.")


def _holds_texts(path: Path) -> bool:
    """Whether texts lie there, and no images, as names tell; Parquet and Arrow hold either."""
    if path.is_file():
        suffix = path.suffix.lower()
        return suffix in TABLES and suffix not in COLUMNAR
    return not _holds(path, (*SUFFIXES, *COLUMNAR, *TAR)) and _holds(path, (*TEXTS, *TABLES))


def _holds(folder: Path, suffixes: Collection[str]) -> bool:
    """Whether one of a folder's first files has such a name."""
    files = islice(walk(folder), _FILES_LOOKED_AT)
    return any(file.suffix.lower() in suffixes and file.name != LABELS_CSV for file in files)


def _holds_dicom(folder: Path) -> bool:
    """Whether one of a folder's first files is DICOM, by what it begins with."""
    return any(_begins_as_dicom(file) for file in islice(walk(folder), _FILES_LOOKED_AT))


def _begins_as_dicom(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(132)[128:] == b"DICM"
    except OSError:  # the source itself says so, with the file's name
        return False
