"""Folders: which files in them are samples; of public ones, which label each has."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pe.errors import RecipeError

LABELS_CSV = "labels.csv"
# fmt: off
_CLUTTER = frozenset({
    "@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@snapshot", "@sharesnap", "@__thumb",
    "@transcode", "~snapshot", "lost+found", "$recycle.bin", "found.000", "system volume information", "thumbs.db",
    "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "__macosx", "network trash folder", "temporary items", "icon\r",
    "dicomdir",
})
# fmt: on


def is_clutter(name: str) -> bool:
    """True for names of hidden and system files and folders: copies and deleted files are no samples."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _CLUTTER


def walk(folder: Path) -> Iterator[Path]:
    """The files of a folder, at any depth, but for clutter."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_clutter(name)]
        yield from (Path(parent, name) for name in names if not is_clutter(name))


def files_below(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of a folder, at any depth, whose names end so, sorted; clutter is left out."""
    return sorted(path for path in walk(folder) if path.suffix.lower() in suffixes)


def folder_labels(folder: Path, files: Sequence[Path]) -> list[str | None]:
    """The label of each of the `files` in `folder`, as `labels.csv` at its top has it, such as `pe export` writes.

    A file that is not there has the name of the subfolder of `folder` that it lies in; None: it lies in none.

    Raises:
        RecipeError: labels.csv is no such file.
    """
    places, listed = [path.relative_to(folder) for path in files], _listed_labels(folder / LABELS_CSV)
    return [listed.get(place.as_posix(), place.parts[0] if len(place.parts) > 1 else None) for place in places]


def _listed_labels(table: Path) -> dict[str, str]:
    """File → label, by the columns `file` and `label` of a CSV file; empty: there is none, or no such column."""
    if not table.is_file():
        return {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise RecipeError(f"path: '{table}' is not a CSV file in UTF-8 with commas.") from error
    return {row["file"]: row["label"] for row in rows if row.get("file") and row.get("label")}
