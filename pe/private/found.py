"""What the columns of a table seem to hold, for `pe init` to propose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe.errors import PrivateDataError
from pe.private.naming import sorted_names, text_of

_LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "topic", "sentiment", "stars", "rating")

_LIKE_LABELS = re.compile(r"((class|true|target)[ _-]?)?labels?([ _-]?(name|id))?|class(es)?|category")


@dataclass(frozen=True)
class FoundColumns:
    """What the columns of a table seem to be. Confidential.

    Attributes:
        sample: of the samples.
        label: of labels; None: there seems to be none.
        labels: their names.
        others: all other columns, one of which may be the privacy unit.
    """

    sample: str
    label: str | None
    labels: tuple[str, ...]
    others: tuple[str, ...]


def check_columns(path: Path, named: Iterable[str | None], columns: Sequence[str]) -> None:
    """Raise PrivateDataError if the table at `path` lacks a column that the owner has named."""
    for name in named:
        if name and name not in columns:
            raise PrivateDataError(f"{path} has no column '{name}': it has {listed(columns)}.")


def label_column(columns: Sequence[str], sample: str, others: Iterable[str] = ()) -> str | None:
    """The column of labels: one with a usual name, or else of the `others`; None: there seems to be none."""
    usual = (name for name in _LABEL_COLUMNS if name in columns)
    return next((name for name in (*usual, *others) if name != sample), None)


def like_labels(columns: Iterable[str]) -> str | None:
    """The column that seems to hold labels under another name than `label`; None: there is none."""
    return next((name for name in columns if _LIKE_LABELS.fullmatch(name.strip().lower())), None)


def label_names(values: Iterable[object]) -> tuple[str, ...]:
    """The names in a column of labels; values that can be none are left out."""
    return sorted_names(name for value in values if (name := text_of(value)))


def listed(columns: Sequence[str]) -> str:
    """The columns' names, for a message."""
    return "the columns " + ", ".join(f"'{name}'" for name in columns)
