"""Labels and privacy units as they stand in files, made into numbers.

Everything here handles confidential values. Error messages name the label or the place that is wrong:
they reach the data's owner before anything is released, and nobody else. They never name a unit.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pe.data.cells import LONGEST, python_scalar
from pe.errors import PrivateDataError, nearest_name
from pe.private.dataset import Labels, Units, Where

ONE_LABEL = "all"
"""The name of the only class where records have no labels."""
_SHOWN = 50
_SEPARATORS = re.compile(r"[,;|]")
_UNSEEN = re.compile(  # and those of Unicode's category Cf
    "[\\s\\x00-\\x1f\\x7f-\\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
_ZEROS, _POINT_ZERO = re.compile(r"(?<!\d)(?<!\d\.)0+(?=\d)"), re.compile(r"^(\d+)\.0+$")


def text_of(value: object) -> str | None:
    """Return a label or unit as text: whole numbers in decimal, names stripped and in Unicode form C.

    None for empty or very long text and all other values: fractions, truth values, lists, missing values, bytes that
    are not UTF-8, numbers of many hundred digits.
    """
    value = python_scalar(value)
    if isinstance(value, str | bytes) and len(value) > LONGEST:
        return None
    if isinstance(value, str) and value.isascii():  # most are, and are in form C
        return value.strip() or None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = unicodedata.normalize("NFC", str(value)).strip()
    return None if any("\ud800" <= each <= "\udfff" for each in text) else text or None


def suggestion(names: Iterable[str]) -> str:
    """Return the distinct names (at most 50), numbers first, as a YAML list for the owner to confirm."""
    distinct = sorted_names(names)
    return f"[{', '.join(distinct[:_SHOWN])}{', …' if len(distinct) > _SHOWN else ''}]"


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names: numbers first in numerical order, then the others in alphabetical order."""
    return tuple(sorted(set(names), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)))


class _Numbers(ABC):
    """Numbers that stand for the values of records, one after another.

    Attributes:
        faults: where bad records are skipped, those without a usable value, and why.
    """

    def __init__(self, where: Where, kind: str, skip: bool) -> None:
        self._where = where
        self._numbers = array(kind)
        self._skip = skip
        self._error = ""
        self._number: dict[str, int] = {}
        self.faults: dict[int, str] = {}

    def take(self, values: Iterable[object]) -> None:
        """Add the values of the next records."""
        for value in values:
            if self._error:
                return
            if self._skip and isinstance(value, float) and value.is_integer():
                value = int(value)  # a library makes all numbers fractions where one is missing
            try:
                name = text_of(value)
            except Exception:  # an array may hold characters that are none
                name = None
            self._numbers.append(self._number_of(value, name))

    def _note(self, fault: str) -> None:
        """Note that the next record has no usable value: its own fault alone if such records are skipped."""
        if self._skip:
            self.faults[len(self._numbers)] = fault
        else:
            self._error = fault

    @abstractmethod
    def _number_of(self, value: object, name: str | None) -> int:
        """Return the number that stands for a value, `name` being its text; `_note` it if no number can."""


class LabelNumbers(_Numbers):
    """The labels of records, taken one after another, as indices into the class list: 4 bytes each. Confidential.

    The first fault is raised by `finish` alone, so that a fault of the whole file is told first. With an empty class
    list all records are of one class; without a class list (None) the names are collected, for the error to propose,
    unless bad records are skipped: then no message may depend on a record.
    """

    def __init__(self, classes: Sequence[str] | None, where: Where, skip: bool) -> None:
        super().__init__(where, "i", skip)
        self._classes = classes
        self._number = {name: index for index, name in enumerate(classes or ())}
        self._names: set[str] = set()  # where there is no class list

    def _number_of(self, value: object, name: str | None) -> int:
        if self._classes is not None and not self._classes:
            return 0
        if name is None:
            self._note(f"{self._where(len(self._numbers))} has {_fault(value)}.")
        elif self._classes is None:
            self._names.add(name)
        elif name not in self._number:
            self._note(self._stranger(name, self._classes))
        return self._number.get(name or "", 0)

    def finish(self) -> tuple[tuple[str, ...], Labels]:
        """Return the class list (("all",) where labels are ignored) and each record's index into it, int32 (n,)."""
        if self._error:
            raise PrivateDataError(self._error)
        if self._classes is None:
            raise PrivateDataError(
                "The private records have labels, but the class list, which is public, is not given: confirm it with "
                f"classes: {'[…]' if self._skip else suggestion(self._names)}, or set classes: [] to ignore the labels."
            )
        return tuple(self._classes) or (ONE_LABEL,), np.asarray(self._numbers, dtype=np.int32)

    def _stranger(self, name: str, classes: Sequence[str]) -> str:
        where, parts = self._where(len(self._numbers)), [part.strip(" []{}()'\"") for part in _SEPARATORS.split(name)]
        if len(parts) > 1 and all(part in self._number for part in parts):
            return f"{where} has several labels ('{name}'): one per record."
        return f"{where} has the label '{name}', which the public class list lacks: {nearest_name(name, classes)}"


def _fault(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return "several labels: one per record"
    if value is None or (isinstance(value, str) and not value.strip()):
        return "no label"
    if isinstance(value, str | bytes):
        return "a label that is not text in UTF-8, or too long: rename it"
    return f"a label of type {type(value).__name__}: labels are names or whole numbers"


class UnitNumbers(_Numbers):
    """The privacy units of records, taken one after another, numbered by first appearance: 8 bytes each. Confidential.

    Equal text is one unit, wherever it appears. Names that only look alike are refused, and so is text beside numbers,
    since one patient could become two units. The first fault is raised by `finish` alone. Where bad records are
    skipped, no record may stop a run: names that look alike are one unit.
    """

    def __init__(self, unit_name: str, where: Where, skip: bool) -> None:
        super().__init__(where, "q", skip)
        self._unit_name = unit_name
        self._first: dict[bool, int] = {}  # is it text → the first such record

    def _number_of(self, value: object, name: str | None) -> int:
        self._first.setdefault(isinstance(value, str | bytes), len(self._numbers))
        if name is not None and self._skip:
            name = _fold(name)
        if not name:
            self._note(self._lack(len(self._numbers)))
        return self._number.setdefault(name or "", len(self._number))

    def finish(self) -> Units:
        """Return each record's unit, int64 (n,)."""
        if self._error:
            raise PrivateDataError(self._error)
        if len(self._first) > 1 and not self._skip:
            text, number = self._where(self._first[True]), self._where(self._first[False])
            raise PrivateDataError(
                f"{self._unit_name} is text in {text}, and a number in {number}: write all of them in one form, with "
                "any leading zeros."
            )
        alike: dict[str, int] = {}
        for name, unit in self._number.items() if not self._skip else ():
            if not (key := _fold(name)):
                raise PrivateDataError(self._lack(self._numbers.index(unit)))
            if (other := alike.setdefault(key, unit)) != unit:
                places = " and ".join(self._where(self._numbers.index(one)) for one in (other, unit))
                raise PrivateDataError(
                    f"{places} have ids in {self._unit_name} that look alike (they differ in leading zeros, case, "
                    "spaces, dashes, invisible characters or a final .0 alone): give one unit one id, and two units "
                    "ids that differ in more."
                )
        return np.asarray(self._numbers, dtype=np.int64)

    def _lack(self, index: int) -> str:
        where = self._where(index)
        return f"{where} has no usable {self._unit_name}: each record needs a name, as text, or a whole number there."


def _fold(name: str) -> str:
    """Return the form that look-alike ids share: without case, spaces, kinds of dashes, leading zeros or a final .0."""
    if not name.isascii():
        kinds = [(each, unicodedata.category(each)) for each in unicodedata.normalize("NFKC", name)]
        name = "".join("-" if kind == "Pd" else each for each, kind in kinds if kind != "Cf")
    name = _UNSEEN.sub("", name.lower())
    return _ZEROS.sub("", _POINT_ZERO.sub(r"\1", name))


# Columns of a table, as `pe init` proposes them.

_LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "topic", "sentiment", "stars", "rating")
_LIKE_LABELS = re.compile(r"((class|true|target)[ _-]?)?labels?([ _-]?(name|id))?|class(es)?|category")


@dataclass(frozen=True)
class FoundColumns:
    """The columns of a table: of samples, of labels (None: there seems to be none), and all others. Confidential."""

    sample: str
    label: str | None
    labels: tuple[str, ...]  # their names
    others: tuple[str, ...]  # one of which may be the privacy unit

    @classmethod
    def find(
        cls,
        path: Path,
        columns: Sequence[str],
        sample: str,
        label: str | None,
        values: Callable[[str], Iterable[object]],
        like: Iterable[str] = (),
    ) -> FoundColumns:
        """Find the label column among the `columns` of the table at `path`; `values` reads a column of it.

        `label` is the column that the owner names; empty: no labels; None: take a usual name, or else one in `like`.
        """
        if label is None:
            usual = (name for name in _LABEL_COLUMNS if name in columns)
            label = next((name for name in (*usual, *like) if name != sample), None)
        for name in (sample, label):
            if name and name not in columns:
                raise PrivateDataError(f"{path} has no column '{name}': it has {list_names(columns)}.")
        names = label_names(values(label)) if label else ()
        return cls(sample, label or None, names, tuple(name for name in columns if name not in (sample, label)))


def like_labels(columns: Iterable[str]) -> str | None:
    """Return the column that seems to hold labels under another name than `label`; None if there is none."""
    return next((name for name in columns if _LIKE_LABELS.fullmatch(name.strip().lower())), None)


def label_names(values: Iterable[object]) -> tuple[str, ...]:
    """Return the names in a column of labels; values that cannot be labels are left out."""
    return sorted_names(name for value in values if (name := text_of(value)))


def list_names(columns: Sequence[str]) -> str:
    """Return the names of the columns as a phrase for a message."""
    return "the columns " + ", ".join(f"'{name}'" for name in columns)
