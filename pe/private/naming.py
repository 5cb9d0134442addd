"""Labels and privacy units as they stand in files, made into numbers.

Everything here handles confidential values. Error messages name the label or the place that is
wrong. They reach the data's owner before anything is released, and nobody else. They never name a
unit.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pe.data.cells import BadCell, python_scalar, text_of_cell
from pe.errors import BadSample, PEError, PrivateDataError, nearest_name
from pe.plugins.registry import load
from pe.private.dataset import Labels, Units, Where

ONE_LABEL = "all"
"""The name of the only class where records have no labels."""
_SHOWN = 50
_SEPARATORS = re.compile(r"[,;|]")
_UNSEEN = re.compile(  # and those of Unicode's category Cf
    "[\\s\\x00-\\x1f\\x7f-\\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
_ZEROS = re.compile(r"(?<!\d)(?<!\d\.)0+(?=\d)")
_POINT_ZERO = re.compile(r"^(\d+)\.0+$")


def text_of(value: object) -> str | None:
    """Return a label or unit as text, stripped and in Unicode form C, or None.

    Whole numbers are in decimal. None stands for empty or very long text and for all other values:
    fractions, truth values, lists, missing values, bytes that are not UTF-8, numbers of many
    hundred digits.
    """
    value = python_scalar(value)
    if isinstance(value, bool) or not isinstance(value, str | bytes | int):
        return None
    try:
        return text_of_cell(value) or None
    except BadCell:
        return None


def suggestion(names: Iterable[str]) -> str:
    """Return the distinct names (at most 50), numbers first, as a YAML list.

    The owner is to confirm it.
    """
    distinct = sorted_names(names)
    return f"[{', '.join(distinct[:_SHOWN])}{', …' if len(distinct) > _SHOWN else ''}]"


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names: numbers first, in numerical order, then the others by alphabet."""
    return tuple(
        sorted(
            set(names),
            key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name),
        )
    )


class Keys:
    """The labels and privacy units of records as numbers, taken one by one. Confidential.

    A record takes 12 bytes. A label becomes its index in the class list. With an empty class list
    all records are of one class. Without a class list (None) the names are collected, so that the
    error can propose them, unless bad records are skipped: then no message may depend on a record.

    Units are numbered by first appearance. Equal text is one unit, wherever it appears. Names that
    only look alike are refused, and so is text beside numbers, since one patient could become two
    units. Where bad records are skipped, no record may stop a run: names that look alike are one
    unit.

    `finish` alone raises the first fault, so that a fault of the whole file is told first.

    Attributes:
        faults: where bad records are skipped, those without a usable label or unit, and why.
    """

    def __init__(
        self,
        classes: Sequence[str] | None,
        unit_name: str | None,
        where: Where,
        skips: bool,
    ) -> None:
        self._classes = classes
        self._unit_name = unit_name  # None: each record is its own unit
        self._where = where
        self._skips = skips
        self._labels = array("i")
        self._units = array("q")
        self._class_numbers = {name: index for index, name in enumerate(classes or ())}
        self._unit_numbers: dict[str, int] = {}
        self._names: set[str] = set()  # where there is no class list
        self._first: dict[bool, int] = {}  # is a unit text → the first such record
        self._errors: dict[str, str] = {}  # the first fault of a label, and that of a unit
        self.faults: dict[int, str] = {}

    def take(self, label: object, unit: object) -> None:
        """Add the next record.

        If its label or its unit is an error, that is the reason why the record is bad.
        """
        error = next((one for one in (label, unit) if isinstance(one, PEError)), None)
        if error is None:
            self._labels.append(self._label_number(label))
            self._units.append(self._unit_number(unit))
            return
        if not (self._skips or isinstance(error, BadSample)):
            raise error
        self.faults[len(self._labels)] = str(error)
        self._labels.append(0)
        self._units.append(self._unit_numbers.setdefault("", len(self._unit_numbers)))

    def finish(self) -> tuple[Labels, Units]:
        """Return each record's label, int32 (n,), and its unit, int64 (n,)."""
        if "label" in self._errors:
            raise PrivateDataError(self._errors["label"])
        if self._classes is None:
            raise PrivateDataError(
                "The private records have labels, but the class list, which is public, is not "
                "given: confirm it with classes: "
                f"{'[…]' if self._skips else suggestion(self._names)}, or set classes: [] to "
                "ignore labels."
            )
        labels = np.asarray(self._labels, dtype=np.int32)
        if self._unit_name is None:
            return labels, np.arange(len(labels))
        if "unit" in self._errors:
            raise PrivateDataError(self._errors["unit"])
        if not self._skips:
            self._refuse_look_alikes()
        return labels, np.asarray(self._units, dtype=np.int64)

    def _note(self, kind: str, index: int, fault: str) -> None:
        if self._skips:
            self.faults[index] = fault
        else:
            self._errors.setdefault(kind, fault)

    def _text(self, value: object) -> str | None:
        if self._skips and isinstance(value, float) and value.is_integer():
            value = int(value)  # a library makes all numbers fractions where one is missing
        try:
            # An array may hold characters that are none, which cannot be joined.
            return "".join(text_of(value) or "") or None
        except Exception:
            return None

    def _label_number(self, value: object) -> int:
        if self._classes is not None and not self._classes:
            return 0
        index = len(self._labels)
        name = self._text(value)
        if name is None:
            self._note("label", index, f"{self._where(index)} has {_fault(value)}.")
        elif self._classes is None:
            self._names.add(name)
        elif name not in self._class_numbers:
            self._note("label", index, self._stranger(index, name, self._classes))
        return self._class_numbers.get(name or "", 0)

    def _stranger(self, index: int, name: str, classes: Sequence[str]) -> str:
        where = self._where(index)
        parts = [part.strip(" []{}()'\"") for part in _SEPARATORS.split(name)]
        if len(parts) > 1 and all(part in self._class_numbers for part in parts):
            return f"{where} has several labels ('{name}'): one per record."
        return (
            f"{where} has the label '{name}', which the public class list lacks: "
            f"{nearest_name(name, classes)}"
        )

    def _unit_number(self, value: object) -> int:
        if self._unit_name is None:
            return 0
        index = len(self._units)
        self._first.setdefault(isinstance(value, str | bytes), index)
        name = self._text(value) or ""
        if self._skips:
            name = _fold(name)
        if not name:
            self._note("unit", index, self._lack(index))
        return self._unit_numbers.setdefault(name, len(self._unit_numbers))

    def _refuse_look_alikes(self) -> None:
        if len(self._first) > 1:
            text = self._where(self._first[True])
            number = self._where(self._first[False])
            raise PrivateDataError(
                f"{self._unit_name} is text in {text}, and a number in {number}: write all of them "
                "in one form, with any leading zeros."
            )
        alike: dict[str, int] = {}
        for name, unit in self._unit_numbers.items():
            if not name:  # of bad records
                continue
            key = _fold(name)
            if not key:
                raise PrivateDataError(self._lack(self._units.index(unit)))
            other = alike.setdefault(key, unit)
            if other != unit:
                places = " and ".join(self._where(self._units.index(one)) for one in (other, unit))
                raise PrivateDataError(
                    f"{places} have ids in {self._unit_name} that look alike (they differ in "
                    "leading zeros, case, spaces, dashes, invisible characters or a final .0 "
                    "alone): give one unit one id, and two units ids that differ in more."
                )

    def _lack(self, index: int) -> str:
        where = self._where(index)
        return (
            f"{where} has no usable {self._unit_name}: each record needs a name, as text, or a "
            "whole number there."
        )


def _fault(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return "several labels: one per record"
    if value is None or (isinstance(value, str) and not value.strip()):
        return "no label"
    if isinstance(value, str | bytes):
        return "a label that is not text in UTF-8, or too long: rename it"
    return f"a label of type {type(value).__name__}: labels are names or whole numbers"


def _fold(name: str) -> str:
    """Return the form that look-alike ids share.

    It lacks case, spaces, kinds of dashes, leading zeros and a final .0.
    """
    if not name.isascii():
        kinds = [(each, unicodedata.category(each)) for each in unicodedata.normalize("NFKC", name)]
        name = "".join("-" if kind == "Pd" else each for each, kind in kinds if kind != "Cf")
    name = _UNSEEN.sub("", name.lower())
    return _ZEROS.sub("", _POINT_ZERO.sub(r"\1", name))


# Columns of a table, as `pe init` proposes them.

_LABEL_COLUMNS = (
    "label",
    "labels",
    "class",
    "category",
    "target",
    "topic",
    "sentiment",
    "stars",
    "rating",
)
_LIKE_LABELS = re.compile(
    r"((class|true|target)[ _-]?)?labels?([ _-]?(name|id))?|class(es)?|category"
)


@dataclass(frozen=True)
class Seen:
    """Private records at a place, as `pe init` sees them. Confidential."""

    settings: dict[str, Any]  # kind, path and columns, as the recipe's section `private` has them
    labels: tuple[str, ...]  # the label names; empty: no labels
    units: tuple[str, ...]  # possible privacy units, besides `record`
    where: str  # the unit's place in words: "a column of labels.csv"

    @property
    def noun(self) -> str:
        """The records' modality: images, texts or rows."""
        noun: str = load("pe.sources", self.settings["kind"]).modality.noun
        return noun


def see_columns(
    settings: dict[str, Any],
    columns: Sequence[str],
    label: str | None,
    values: Callable[[str], Iterable[object]],
    like: Iterable[str] = (),
) -> Seen:
    """Find the label column among the `columns` of a table. Confidential.

    Args:
        settings: the table's kind, its path, and its column of samples if there is one.
        columns: the names of its columns.
        label: the column that the owner names. Empty: no labels. None: take a usual name, or else
            one in `like`.
        values: reads a column.
        like: columns that seem to hold labels.
    """
    path = settings["path"]
    samples = [name for key, name in settings.items() if key.endswith("_column")]
    if label is None:
        usual = (name for name in _LABEL_COLUMNS if name in columns)
        label = next((name for name in (*usual, *like) if name not in samples), None)
    for name in (*samples, label):
        if name and name not in columns:
            raise PrivateDataError(f"{path} has no column '{name}': it has {list_names(columns)}.")
    names = label_names(values(label)) if label else ()
    others = tuple(name for name in columns if name not in (*samples, label))
    return Seen(settings | {"label_column": label or None}, names, others, "a column")


def like_labels(columns: Iterable[str]) -> str | None:
    """Return the column, if any, that seems to hold labels under another name than `label`."""
    return next((name for name in columns if _LIKE_LABELS.fullmatch(name.strip().lower())), None)


def check_labels(
    name: str,
    columns: Iterable[str],
    place: object,
    noun: str = "column",
) -> None:
    """Refuse data without the column `name` that seem to have labels in another one."""
    near = like_labels(columns)
    if name not in columns and near:
        raise PrivateDataError(
            f"{place} has no {noun} '{name}', but '{near}': rename it, or set classes: [] if it "
            "holds no labels."
        )


def label_names(values: Iterable[object]) -> tuple[str, ...]:
    """Return the names in a column of labels. Values that cannot be labels are left out."""
    return sorted_names(filter(None, map(text_of, values)))


def list_names(columns: Sequence[str]) -> str:
    """Return the names of the columns as a phrase for a message."""
    return f"the columns {in_quotes(columns)}"


def in_quotes(names: Iterable[str]) -> str:
    """Return names in quotes, for a message."""
    return ", ".join(f"'{name}'" for name in names)
