"""Folders of public samples: which files are in them, and which label each has."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

from pe.errors import RecipeError

LABELS_CSV = "labels.csv"


def files_below(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of a folder, at any depth, whose names end so, sorted; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


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
