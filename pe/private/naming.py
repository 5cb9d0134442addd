"""Labels and privacy units as they stand in files, made into numbers.

Everything here handles confidential values. Error messages name the label or the place that is wrong:
they reach the data's owner before anything is released, and nobody else. They never name a unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from pe.errors import PrivateDataError, nearest_name
from pe.private.dataset import Labels, Units, Where

ONE_LABEL = "all"
"""The name of the only class where records have no labels."""
_SHOWN = 50
_SEPARATORS = re.compile(r"[,;|]")


def text_of(value: object) -> str | None:
    """A label or unit as text: whole numbers in decimal, names stripped and in Unicode form C.

    None for what is neither, or is empty: fractions, truth values, lists, missing values.
    """
    if isinstance(value, str) and value.isascii():  # most are, and are in form C
        return value.strip() or None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, str | int | np.integer):
        return None
    return unicodedata.normalize("NFC", str(value)).strip() or None


def suggestion(names: Iterable[str]) -> str:
    """The distinct names, numbers in numerical order, as a YAML list for the owner to confirm."""
    found = sorted_names(names)
    return f"[{', '.join(found[:_SHOWN])}{', …' if len(found) > _SHOWN else ''}]"


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names: numbers first in numerical order, then the others in alphabetical order."""
    return tuple(sorted(set(names), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)))


def encode_labels(
    values: Sequence[object] | None, count: int, classes: Sequence[str] | None, where: Where
) -> tuple[tuple[str, ...], Labels]:
    """The class list and each record's index into it. The indices are confidential.

    Args:
        values: each record's label; None where the source has no labels.
        count: the number of records; confidential.
        classes: the public class list; empty: ignore labels, all records are of one class; None: not
            given, which serves only where there are no labels.
        where: names a record's place.

    Returns:
        The class list (("all",) without labels) and int32 (count,).

    Raises:
        PrivateDataError: labels without a class list, a label off the list, several labels in one
            record, a missing label, or a list of several classes for records without labels.
    """
    if (classes is not None and len(classes) == 0) or (values is None and classes is None):
        return (ONE_LABEL,), np.zeros(count, dtype=np.int32)
    if values is None:
        if classes is None or len(classes) > 1:
            raise PrivateDataError(
                "classes lists several classes, but the private records have no labels: give them labels (docs/data.md "
                "says where they stand), or leave classes out."
            )
        return tuple(classes), np.zeros(count, dtype=np.int32)
    names: list[str] = []
    for index, value in enumerate(values):
        name = text_of(value)
        if name is None:
            raise PrivateDataError(f"{where(index)} has {_fault(value)}.")
        names.append(name)
    if classes is None:
        raise PrivateDataError(
            "The private records have labels, but the class list, which is public, is not given: "
            f"confirm it with classes: {suggestion(names)}, or set classes: [] to ignore the labels."
        )
    number = {name: index for index, name in enumerate(classes)}
    for index, name in enumerate(names):
        if name not in number:
            parts = [part.strip() for part in _SEPARATORS.split(name)]
            if len(parts) > 1 and all(part in number for part in parts):
                raise PrivateDataError(f"{where(index)} has several labels ('{name}'): one per record.")
            raise PrivateDataError(
                f"{where(index)} has the label '{name}', which the public class list lacks: "
                f"{nearest_name(name, classes)}"
            )
    return tuple(classes), np.array([number[name] for name in names], dtype=np.int32)


def encode_units(values: Sequence[object] | None, count: int, unit_name: str, where: Where) -> Units:
    """Each record's privacy unit, int64 (count,), numbered by first appearance. Confidential.

    Equal text is one unit, wherever it appears. Without values, each record is its own unit.

    Raises:
        PrivateDataError: a record without a unit, or with one that is neither a name nor a whole number.
            The message names the place, not the unit.
    """
    if values is None:
        return np.arange(count, dtype=np.int64)
    number: dict[str, int] = {}
    units = np.empty(count, dtype=np.int64)
    for index, value in enumerate(values):
        name = text_of(value)
        if name is None:
            raise PrivateDataError(
                f"{where(index)} has no usable {unit_name}: each record needs a name or a whole number there."
            )
        units[index] = number.setdefault(name, len(number))
    return units


def _fault(value: object) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return "several labels: one per record"
    if value is None or value == "":
        return "no label"
    return f"a label of type {type(value).__name__}: labels are names or whole numbers"
