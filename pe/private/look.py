"""Proposals for `pe init` from the files at a place.

Every proposal is confidential until the owner confirms it.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import median_low, mode
from typing import Any

import numpy as np

from pe.data.cells import looks_like_value
from pe.data.decoding import Channels
from pe.data.tables import COLUMNAR, LABELS_CSV, columns_of, has_splits, tables_in, walk
from pe.data.tables import SUFFIXES as TABLES
from pe.data.texts import LONGEST
from pe.errors import PEError, PrivateDataError, RecipeError
from pe.private.dataset import PrivateDataset
from pe.private.folder import SUFFIXES, ImageFolder, TextFolder
from pe.private.folder import TEXT_SUFFIXES as TEXTS
from pe.private.naming import Seen
from pe.private.npz import ImageNpz
from pe.private.tables import ImageParquet, TextTable
from pe.private.webdataset import TAR, WebDataset

LOOKED_AT = 32
"""The largest number of records whose sizes or lengths are looked at."""
_FILES_LOOKED_AT = 64
_OWN_SIDE = 256  # pixels: square images of one size up to this keep it
_SIDES = (32, 64, 128)
_LENGTHS = (250, 500, 1000)  # bytes of a text; beyond them LONGEST


def kind_at(path: Path) -> str:
    """Return the kind of source of images at `path`: folder, npz, parquet or webdataset."""
    if path.is_dir():
        if tables_in(path, TAR):
            return WebDataset.kind
        return "parquet" if tables_in(path, COLUMNAR) or has_splits(path) else "folder"
    kinds = {
        ".npz": "npz",
        **dict.fromkeys(COLUMNAR, "parquet"),
        **dict.fromkeys(TAR, WebDataset.kind),
    }
    if path.suffix.lower() not in kinds:
        raise RecipeError(
            f"{path} is neither a folder nor a file of these types: {', '.join(kinds)}."
        )
    return kinds[path.suffix.lower()]


def text_kind_at(path: Path) -> str:
    """Return the kind of source of texts at `path`.

    It is text_folder for a folder without tables, and else text_table.
    """
    return TextFolder.kind if path.is_dir() and not tables_in(path) else TextTable.kind


def look(
    path: Path,
    image_column: str | None,
    text_column: str | None,
    label_column: str | None,
) -> Seen:
    """Find out what lies at `path`, a folder or a file.

    The owner may name columns of a table. A column that is None is looked for; an empty label
    column means that there are no labels.
    """
    choices = f"a folder of images or texts, an .npz or .tar file or a table ({', '.join(TABLES)})"
    if not path.exists():
        raise RecipeError(f"{path} does not exist: name {choices}.")
    if path.is_file() and path.suffix.lower() not in (".npz", *TAR, *TABLES):
        raise RecipeError(f"{path} is of no type that is read here: name {choices}.")
    kind = text_kind_at(path) if text_column is not None or _holds_texts(path) else kind_at(path)
    if kind == "npz":
        return ImageNpz.find(path)
    if kind == WebDataset.kind:
        return WebDataset.find(path, image_column, label_column)
    # A Parquet file without a column of bytes may still hold texts.
    if kind == "parquet":
        seen = ImageParquet.find(path, image_column, label_column)
        if seen is not None:
            return seen
        kind = text_kind_at(path)
    if kind == TextTable.kind:
        return TextTable.find(path, text_column, label_column)
    if kind == "folder" and any(map(_is_dicom, islice(walk(path), _FILES_LOOKED_AT))):
        raise RecipeError(
            f"{path} holds DICOM files: write a recipe with private.kind: dicom, whose window you "
            "must declare (pe explain dicom; docs/data.md)."
        )
    return (TextFolder if kind == TextFolder.kind else ImageFolder).find(path)


def cells_in_header(path: Path) -> int:
    """Return how many names in the first row of a CSV or TSV file look like values of a record.

    They are only counted: without a header they are a record's cells.
    """
    files = [path] if path.is_file() else tables_in(path) if path.is_dir() else []
    if not files or files[0].suffix.lower() not in (".csv", ".tsv"):
        return 0
    return sum(map(looks_like_value, columns_of(files[0])))


def look_at_shape(dataset: PrivateDataset) -> tuple[int, Channels]:
    """Return the side and channels that suit most of the first images, which must not be resized.

    Confidential.
    """
    images = _readable(dataset)
    sizes = [(image.shape[0], image.shape[1]) for image in images]
    grey = [bool(np.all(image == image[..., :1])) for image in images]
    (height, width), usual = mode(sizes), median_low(map(min, sizes))
    side = max((one for one in _SIDES if one <= usual), default=_SIDES[0])
    if 2 * sizes.count((height, width)) > len(sizes) and height == width <= _OWN_SIDE:
        side = height
    return side, 1 if 2 * sum(grey) > len(grey) else 3


def look_at_length(dataset: PrivateDataset) -> int:
    """Return twice the median length of the first texts in bytes, as a round number. Confidential.

    The source must hand over each text whole, or cut at no fewer than LONGEST bytes.
    """
    usual = 2 * median_low(len(bytes(one)) for one in _readable(dataset))
    return next((one for one in _LENGTHS if one >= usual), LONGEST)


def _readable(dataset: PrivateDataset) -> list[Any]:
    """Return those of the first records that can be read.

    If none can, raise the first one's error.
    """
    outcomes = list(dataset.first(LOOKED_AT))
    readable = [one for one in outcomes if not isinstance(one, PEError)]
    if not readable:
        raise next(
            (one for one in outcomes if isinstance(one, PEError)),
            PrivateDataError("There are no records."),
        )
    return readable


def _holds_texts(path: Path) -> bool:
    """Return True if names of files are of texts or of tables of texts.

    None may be of images, Parquet, Arrow or .tar.
    """
    if path.is_file():
        suffix = path.suffix.lower()
        return suffix in TABLES and suffix not in COLUMNAR

    files = islice(walk(path), _FILES_LOOKED_AT)
    suffixes = {file.suffix.lower() for file in files if file.name != LABELS_CSV}
    return suffixes.isdisjoint((*SUFFIXES, *COLUMNAR, *TAR)) and bool(suffixes & {*TEXTS, *TABLES})


def _is_dicom(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(132)[128:] == b"DICM"
    except OSError:  # the source itself says so, with the file's name
        return False
