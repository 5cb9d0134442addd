"""Columns of a table, as its owner declares them in public; and rows as codes: numbers of values.

Each column has finitely many values, in an order, numbered from 0: its codes. A missing value has the code after the
last one. So a column's declaration, and no record, says what a record can hold.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from pe.data.rows import Rows
from pe.data.texts import plain
from pe.errors import BadSample

Codes = npt.NDArray[np.int64]

MOST_VALUES = 2**24
"""The most values of a column."""
BINS, LISTED = 16, 50
"""The most bins of a column, of one width, where its values are counted; and where shares of listed values are."""
COLUMNS_SHOWN = 40
"""The most columns whose associations pages show."""
OTHER = "other"
"""The value that stands for all that are not listed."""
_LISTED, _MEASURED = ("category", "ordinal"), ("integer", "real", "date")
_MISSING = {"", "?", "na", "n/a", "nan", "nat", "none", "null", "<na>"}
_TRUTH = {word: i // 5 for i, word in enumerate(["false", "f", "no", "n", "0", "true", "t", "yes", "y", "1"])}
_MOST_LISTED = 64  # values of a category that is proposed
_FROM_MEMORY = 256  # columns of up to so many values hold them as JSON


class Column(BaseModel):
    """A column: the values that a row may have in it.

    Attributes:
        kind: `category`; `ordinal`, whose values are listed in their order; `boolean`; `integer`; `real`; `date`.
        values: of a category or ordinal.
        other: whether a value that is not listed counts as "other"; if not, it counts as missing.
        min: the smallest value of an integer, real or date; smaller ones become it.
        max: the largest one, likewise.
        unit: the step of an integer or real, or of a date in days; values are rounded to it.
        missing: whether a row may have no value here; if not, a row without one is a bad record.
        format: how a date is written, as for strptime: "%d.%m.%Y"; None: 2020-12-31, with or without a time.
        note: what the column holds, for the data dictionary.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["category", "ordinal", "boolean", "integer", "real", "date"]
    values: tuple[str, ...] = ()
    other: bool = False
    min: Any = None  # a number, or a date
    max: Any = None
    unit: float = Field(1.0, gt=0, allow_inf_nan=False)
    missing: bool = False
    format: str | None = None
    note: str = ""

    @field_validator("values", mode="before")
    @classmethod
    def _values_are_text(cls, values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise ValueError("give a list of values")
        if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in values):
            raise ValueError("put values like yes, no, on in quotes: they must be text or numbers")
        return tuple(_text(value) for value in values)

    @field_validator("min", "max", mode="before")
    @classmethod
    def _is_bound(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("kind") == "date":
            try:
                return value if isinstance(value, date) or value is None else date.fromisoformat(str(value))
            except ValueError:
                raise ValueError("give a date such as 2020-12-31") from None
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError("give a number")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind in _LISTED and (not self.values or len(set(self.values)) < len(self.values)):
            raise ValueError(f"a column of the kind {self.kind} lists its values, each once")
        if self.kind not in _LISTED and (self.values or self.other):
            raise ValueError(f"a column of the kind {self.kind} has no values, and no other")
        if (self.kind in _MEASURED) != (self.min is not None and self.max is not None):
            raise ValueError("columns of the kinds integer, real and date have min and max, and no others have them")
        if self.kind in ("integer", "date") and not float(self.unit).is_integer():
            raise ValueError(f"the unit of a column of the kind {self.kind} is a whole number")
        if not 1 <= self.size <= MOST_VALUES:
            raise ValueError(f"from min to max there are {self.size:,} steps of unit: 1 to {MOST_VALUES:,} can be")
        return self

    def __str__(self) -> str:
        """Return the declaration as YAML, in one line."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()

    @classmethod
    def of(cls, values: Iterable[object]) -> Self | None:
        """Return a declaration that holds these values; None if there are none, or too many to list. Confidential."""
        texts = {"" if value is None else _text(value) for value in map(python_scalar, values)}
        cells = {text for text in texts if text.lower() not in _MISSING}
        for kind in ("boolean", "integer", "real", "date", "category") if cells else ():
            try:
                return cls(kind=kind, missing=len(cells) < len(texts), **_proposal(kind, cells))
            except ValueError:  # they are of another kind
                continue
        return None

    @property
    def is_ordered(self) -> bool:
        """True if values that are near in order are alike."""
        return self.kind not in ("category", "boolean")

    @cached_property
    def size(self) -> int:
        """The number of values; a missing value has the code `size`."""
        if self.kind in _MEASURED:
            return math.floor((_number(self.max) - _number(self.min)) / self.unit + 1e-6) + 1
        return 2 if self.kind == "boolean" else len(self.values) + (self.other and OTHER not in self.values)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value: place for place, value in enumerate((*self.values, *([OTHER] if self.other else [])))}

    def code(self, value: object) -> int:
        """Return the code of a value, which may be a number or a date, or text that says it; `size` if it is missing.

        A value out of range gets the nearest code, one that is not listed the code of "other". A value that cannot be
        read, or is not listed where there is no "other", counts as missing.
        """
        value = python_scalar(value)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return self.size
        if self.kind in _LISTED:
            text = _text(value)
            if text not in self._places and text.lower() in _MISSING:
                return self.size
            return self._places.get(text, self._places.get(OTHER, self.size) if self.other else self.size)
        if self.kind == "boolean":
            return _TRUTH.get(_text(value).lower(), self.size)
        try:
            number = self._day(value) if self.kind == "date" else float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError, OverflowError):
            return self.size
        if math.isnan(number):
            return self.size
        place = (number - _number(self.min)) / self.unit
        return round(min(max(place, 0), self.size - 1))

    def declares(self, value: object) -> bool:
        """True if a row may have this value as it stands: it is no missing one, nor becomes another."""
        code = self.code(value)
        return code < self.size and (self.kind == "boolean" or _text(self.value(code)) == _text(python_scalar(value)))

    def value(self, code: int) -> str | int | float | bool | None:
        """Return the value with this code, as JSON has it: a date as text; None for a missing one."""
        if code >= self.size:
            return None
        if self.kind in _LISTED:
            return [*self._places][code]
        if self.kind == "boolean":
            return bool(code)
        number = _number(self.min) + code * self.unit
        if self.kind == "date":
            return date.fromordinal(round(number)).isoformat()
        return round(number) if self.kind == "integer" else round(number, self._digits)

    def narrowed(self, first: int, last: int) -> Column:
        """Return the column with the values from code `first` to `last` alone, if it is an integer, real or date."""
        if self.kind not in _MEASURED:
            return self
        return Column.model_validate(self.model_dump() | {"min": self.value(first), "max": self.value(last)})

    def cell(self, code: int) -> str | int | float | bool | date | None:
        """Return the value with this code in its own type: a date as such."""
        value = self.value(code)
        return date.fromisoformat(value) if self.kind == "date" and isinstance(value, str) else value

    @property
    def scale(self) -> tuple[float, float]:
        """The number that code 0 stands for, and the step from a code to the next; of an ordinal, places from 0 on."""
        return (_number(self.min), self.unit) if self.kind in _MEASURED else (0.0, 1.0)

    def texts(self, codes: Codes) -> list[str]:
        """Return the values with these codes, each as JSON."""
        if self.size < max(_FROM_MEMORY, len(codes)):
            texts = [json.dumps(self.value(code), ensure_ascii=False) for code in range(self.size + 1)]
            return [texts[code] for code in codes.tolist()]
        return [json.dumps(self.value(code)) for code in codes.tolist()]

    def bins(self, codes: Codes, most: int = BINS) -> Codes:
        """Return the bin of each code: `most` bins of one width at most, and after them one of missing values."""
        return codes * min(self.size, most) // self.size

    def shares(self, codes: Codes) -> list[tuple[str, float]]:
        """Return each bin's name, its value or its first and last one, and its share of the codes.

        Up to LISTED values that are listed have each a bin of its own.
        """
        most = LISTED if self.values else BINS
        count = min(self.size, most)
        starts = [-(-place * self.size // count) for place in range(count + 1)]
        ends = ({str(self.value(start)): 0, str(self.value(end - 1)): 0} for start, end in pairwise(starts))
        shares = np.bincount(self.bins(codes, most), minlength=count + 1) / max(len(codes), 1)
        named = [*zip([*map(" – ".join, ends), "(missing)"], shares.tolist(), strict=True)]
        return named if self.missing or shares[-1] else named[:-1]

    @property
    def longest(self) -> int:
        """The bytes of the longest value as JSON."""
        if self.kind in _LISTED:
            return max(len(text.encode()) for text in self.texts(np.arange(self.size + 1)))
        ends = (json.dumps(self.value(code)) for code in (0, self.size - 1, self.size))
        return max(map(len, ends)) + (self._digits if self.kind == "real" else 0)

    @property
    def _digits(self) -> int:
        """The decimal places of a real number."""
        return max(len(repr(float(x)).partition(".")[2]) if "e" not in repr(float(x)) else 15 for x in self._steps)

    @property
    def _steps(self) -> tuple[float, float]:
        return self.unit, _number(self.min)

    def _day(self, value: object) -> float:
        if isinstance(value, date):
            return value.toordinal()
        if hasattr(value, "toordinal"):
            return float(value.toordinal())
        text = str(value).strip()
        return (datetime.strptime(text, self.format) if self.format else date.fromisoformat(text[:10])).toordinal()


def _proposal(kind: str, cells: Set[str]) -> dict[str, Any]:
    """Return the settings of a column of this kind that holds the cells; raise ValueError if none does."""
    if kind == "category" and len(cells) <= _MOST_LISTED:
        return {"values": sorted(cells)}
    if kind == "boolean" and all(cell.lower() in _TRUTH for cell in cells):
        return {}
    if kind in ("category", "boolean"):
        raise ValueError(f"The cells are not of the kind {kind}.")
    read: Any = {"integer": int, "real": float, "date": lambda cell: date.fromisoformat(cell[:10])}[kind]
    numbers = [read(cell) for cell in cells]
    ends = {"min": min(numbers), "max": max(numbers)}
    if kind == "date":
        return ends
    steps = max(len(cell.partition(".")[2]) if "e" not in cell.lower() else 15 for cell in cells)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("A number is infinite.")
    while (ends["max"] - ends["min"]) * 10.0**steps >= MOST_VALUES:
        steps -= 1
    return ends | {"unit": float(f"1e{-steps}")}


def _number(bound: Any) -> float:
    return bound.toordinal() if isinstance(bound, date) else float(bound)


def python_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch as Python's, a time as its date; anything else as it is."""
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[D]").item()
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _text(value: object) -> str:
    """Return a value as it is listed: whole numbers without a point; text in normal form C, no space at its ends."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", plain(str(value))).strip()


class Columns(Mapping[str, Column]):
    """The columns of a table by name, in their order."""

    def __init__(self, columns: Mapping[str, Column | Mapping[str, Any]]) -> None:
        self._columns = {name: Column.model_validate(one) for name, one in columns.items()}
        self._keys = [json.dumps(name, ensure_ascii=False) for name in self._columns]

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def sizes(self) -> Codes:
        """The number of values of each column, without the missing one, int64 (d,)."""
        return np.array([column.size for column in self.values()], np.int64)

    @property
    def width(self) -> int:
        """The bytes of the longest row."""
        return 2 + sum(len(key.encode()) + 2 + one.longest for key, one in zip(self._keys, self.values(), strict=True))

    def read(self, values: Sequence[object], name: str) -> bytes:
        """Return a record, its values in the order of the columns, as a row; a function of this record alone.

        Raises:
            BadSample: a value is missing, or cannot be read, in a column without missing values; the message calls the
                record `name`, and tells no value.
        """
        codes = [column.code(value) for column, value in zip(self.values(), values, strict=True)]
        for (key, column), code in zip(self.items(), codes, strict=True):
            if code == column.size and not column.missing:
                what = "no value that is declared" if column.values else f"no {column.kind}"
                raise BadSample(f"{name} has {what} in column '{key}': declare missing: true there, if that may be.")
        pairs = zip(self.values(), codes, strict=True)
        cells = (json.dumps(column.value(code), ensure_ascii=False) for column, code in pairs)
        return f"{{{','.join(map(':'.join, zip(self._keys, cells, strict=True)))}}}".encode()

    def rows(self, codes: Codes) -> Rows:
        """Return the rows with these codes, int64 (n, d)."""
        texts = [
            [f"{key}:{text}" for text in column.texts(codes[:, i])]
            for i, (key, column) in enumerate(zip(self._keys, self.values(), strict=True))
        ]
        rows = [f"{{{','.join(cells)}}}".encode() for cells in zip(*texts, strict=True)]
        return Rows(np.array(rows, dtype=f"S{self.width}").reshape(len(codes)))

    def codes(self, rows: Rows) -> Codes:
        """Return the codes of rows, int64 (n, d), a row's by that row alone; a value that is not there is missing.

        In a row that is a list of fractions (`Rows.examples`), a fraction stands for the value at that place.
        """
        columns = {name: one.model_copy(update={"format": None}) for name, one in self.items()}  # rows have ISO dates
        codes = np.empty((len(rows), len(self)), np.int64)
        sizes = self.sizes.tolist()
        places: list[dict[Any, int]] = [{} for _ in self]
        for i, row in enumerate(rows.records):
            if isinstance(row, list):
                codes[i] = [int(row[j % len(row)] * (size + 1)) if row else size for j, size in enumerate(sizes)]
                continue
            for j, (name, column) in enumerate(columns.items()):
                value, known = row.get(name), places[j]
                if (code := known.get((type(value), value))) is None:
                    code = known[type(value), value] = column.code(value)
                codes[i, j] = code
        return codes

    def bins(self, codes: Codes) -> Codes:
        """Return the bins of the rows with these codes, int64 (n, d), as `Column.bins`."""
        return np.stack([column.bins(own) for column, own in zip(self.values(), codes.T, strict=True)], axis=1)

    def associations(self, codes: Codes, labels: npt.NDArray[np.integer]) -> tuple[list[str], list[list[float]]]:
        """Return the first COLUMNS_SHOWN columns' names, and Cramér's V of each pair; the labels, (n,), come last."""
        names = [*self][:COLUMNS_SHOWN]
        every = [*self.bins(codes).T[: len(names)], labels]
        return names, [[1.0 if one is other else cramers_v(one, other) for other in every] for one in every]

    def vectors(self, codes: Codes, unit: float, category: float, most: int = MOST_VALUES) -> npt.NDArray[np.float64]:
        """Return vectors in which nearness means likeness, float64 (n, D).

        Numbers, dates and ordinals lie from 0 to `unit`; categories are one-hot, times `category`, in at most `most`
        bins. A missing number is in the middle, and `category` in a dimension of its own; a missing category has a
        dimension of its own.
        """
        parts = []
        for column, values in zip(self.values(), codes.T, strict=True):
            is_missing = values == column.size
            if column.is_ordered:
                places = np.where(is_missing, 0.5, values / max(column.size - 1, 1))
                parts += [unit * places[:, None], category * is_missing[:, None]]
            else:
                cells = np.arange(min(column.size, most) + 1)
                parts.append(category * (column.bins(values, most)[:, None] == cells))
        return np.concatenate(parts, axis=1)

    def whole_vectors(self, codes: Codes) -> npt.NDArray[np.float64]:
        """Return `vectors` as whole numbers up to 1023, so that sums of their products are exact in any order."""
        return np.asarray(np.rint(self.vectors(codes, 1023, 341)), np.float64)


def cramers_v(one: Codes, other: Codes) -> float:
    """Return Cramér's V of two columns of bins, (n,): 0 if they are independent, or if one has a single value."""
    n, height, width = len(one), int(one.max(initial=0)) + 1, int(other.max(initial=0)) + 1
    counts = np.bincount(one * width + other, minlength=height * width).reshape(height, width)
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    r, c = counts.shape
    if min(r, c) < 2:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    square = float((np.square(counts - expected) / expected).sum()) / n - (r - 1) * (c - 1) / (n - 1)
    most = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(min(max(square, 0.0) / most, 1.0))) if most > 0 else 0.0
