"""Columns of a table as their owner declares them in public, and rows as codes.

Each column has finitely many values in an order, numbered from 0: its codes. A missing value has
the code after the last one. What a record can hold thus follows from the declaration, and from no
record.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from pe.data.arrays import Float64Array, Int64Array
from pe.data.cells import (
    UNREADABLE,
    BadCell,
    Number,
    is_like_missing,
    python_scalar,
    read_day,
    read_number,
    read_truth,
    refuse_missing_word,
    text_of_cell,
)
from pe.data.rows import Rows
from pe.data.texts import plain
from pe.errors import BadRow

Codes = Int64Array

MOST_VALUES = 2**24
"""The most values of a column."""
BINS = 16
LISTED = 50
"""The most bins of a column: of equal width for counts, or one for each share of listed values."""
COLUMNS_SHOWN = 40
"""The most columns whose associations pages show."""
OTHER = "other"
"""The value that stands for all that are not listed."""
_LISTED = ("category", "ordinal")
_MEASURED = ("integer", "real", "date")
_LARGEST = 1e300  # of a bound
_MOST_LISTED = 64  # values of a category that is proposed
_CENTURY = 36_524  # days, at least
_CODE = re.compile(r"\+|-?0\d")
"""The beginning of text that is no number as programs write it: 007, 02116, +1. As a listed value
it is a code."""


def _listed_values(values: Any) -> Any:
    """Check a list of values. Text becomes plain, and numbers stay numbers."""
    if not isinstance(values, list | tuple):
        raise ValueError("give a list of values")
    if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in values):
        raise ValueError("put values like yes, no, on in quotes: they must be text or numbers")
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise ValueError("give finite numbers")
    return tuple(plain(value).strip() if isinstance(value, str) else value for value in values)


Values = Annotated[tuple[str | int | float, ...], BeforeValidator(_listed_values)]
"""Values as text or numbers."""


class Column(BaseModel):
    """A column of a table: the values that a row may have in it.

    An empty cell is a missing value, and so is one that `missing_values` lists. Any other cell that
    cannot be read as declared is a bad cell, never a missing value.

    Attributes:
        kind: `category`; `ordinal`, whose values are listed in their order; `boolean`; `integer`;
            `real`; `date`.
        values: the values of a category or ordinal. A number stands for all cells of its value (1
            for 1.0), text for itself alone.
        other: whether a value that is not listed counts as "other"; if not, it is a bad cell.
        min: the smallest value of an integer, real or date; smaller ones become it.
        max: the largest value of an integer, real or date; larger ones become it.
        unit: the step of an integer or real, or of a date in days; values are rounded to it. A real
            must have one.
        missing: whether a row may have no value here; if not, an empty cell is a bad cell.
        missing_values: words and numbers that stand for a missing value: NA, -999. With them,
            `missing` is true.
        decimal: the mark before the fraction of a number in text.
        thousands: the mark between groups of three digits of a number in text. If it is a point,
            `decimal` is a comma.
        format: how a date is written, as for strptime: "%d.%m.%Y"; None: as ISO 8601 (2020-12-31),
            with or without a time. Two-digit years (%y) need a range of less than a hundred years.
        note: what the column holds, for the data dictionary.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["category", "ordinal", "boolean", "integer", "real", "date"]
    values: Values = ()
    other: bool = False
    min: Any = None  # a number, or a date
    max: Any = None
    unit: float = Field(1.0, gt=0, allow_inf_nan=False)
    missing: bool = False
    missing_values: Values = ()
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    format: str | None = None
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        usual: dict[str, Any] = {}
        if content.get("missing_values"):
            usual["missing"] = True
        if content.get("thousands") == ".":
            usual["decimal"] = ","
        return usual | content

    @field_validator("min", "max", mode="before")
    @classmethod
    def _is_bound(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return value
        if info.data.get("kind") == "date":
            try:
                return read_day(value, None)
            except BadCell:
                raise ValueError("give a date such as 2020-12-31") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("give a number")
        if not abs(value) <= _LARGEST:
            raise ValueError(f"give a finite number of at most {_LARGEST:g}")
        if info.data.get("kind") == "integer" and value != int(value):
            raise ValueError("give a whole number")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind in _LISTED and (not self.values or len(set(self.names)) < len(self.names)):
            raise ValueError(f"a column of the kind {self.kind} must list its `values`, each once")
        if self.kind not in _LISTED and (self.values or self.other):
            raise ValueError(f"a column of the kind {self.kind} takes neither `values` nor `other`")
        if (self.kind in _MEASURED) != (self.min is not None and self.max is not None):
            raise ValueError(
                "columns of the kinds integer, real and date need `min` and `max`, and other kinds "
                "take neither"
            )
        if self.kind == "real" and "unit" not in self.model_fields_set:
            raise ValueError(
                "a column of the kind real needs a `unit`, the step to which values are rounded, "
                "such as 0.1"
            )
        if self.kind in ("integer", "date") and not float(self.unit).is_integer():
            raise ValueError(
                f"the `unit` of a column of the kind {self.kind} must be a whole number"
            )
        if self.missing_values and not self.missing:
            raise ValueError(
                "`missing` is false, but `missing_values` lists values: remove one of them"
            )
        twice = self._absent.intersection(self.names)
        if twice:
            raise ValueError(
                f"{min(map(str, twice))!r} is in both `values` and `missing_values`: remove it "
                "from one of them"
            )
        if self.decimal == self.thousands:
            raise ValueError(f"decimal and thousands are both {self.decimal!r}: they must differ")
        # The size follows from bounds, unit and values, which are known to fit by now.
        if self.kind in _MEASURED and not self._steps < MOST_VALUES:
            raise ValueError(
                f"there are more than {MOST_VALUES:,} steps from `min` to `max`: raise `unit`"
            )
        if self.size < 1:
            raise ValueError("`min` is larger than `max`")
        if self._has_short_years and self.size * self.unit >= _CENTURY:
            raise ValueError(
                "`format` has two-digit years, so `min` and `max` must lie less than a hundred "
                "years apart"
            )
        return self

    @model_serializer(mode="wrap")
    def _with_unit(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the declaration. A real column states its `unit`, which has no default."""
        values: dict[str, Any] = dump(self)
        return values | ({"unit": self.unit} if self.kind == "real" else {})

    def __str__(self) -> str:
        """Return the declaration as YAML, in one line."""
        return yaml.safe_dump(
            self.model_dump(mode="json", exclude_defaults=True),
            default_flow_style=True,
            sort_keys=False,
            allow_unicode=True,
            width=10**9,
        ).strip()

    @classmethod
    def of(cls, cells: Iterable[object]) -> Self | None:
        """Return a declaration that holds these cells, each of them as it is. Confidential.

        Return None if no kind keeps all cells and tells them apart, or if there are too many values
        to list. Ranges are rounded outwards, so that neither end is a cell.
        """
        try:
            texts = {
                "" if cell is None else text_of_cell(cell) for cell in map(python_scalar, cells)
            }
        except BadCell:
            return None
        has_gaps = "" in texts
        texts.discard("")
        codes = {text for text in texts if is_like_missing(text)}
        for kind in ("boolean", "integer", "real", "date", "category") if texts else ():
            absent = set() if kind == "category" else codes
            with suppress(ValueError, BadCell):  # the cells are of another kind
                settings = _proposal(kind, texts - absent)
                one = cls(
                    kind=kind,
                    missing=has_gaps or bool(absent),
                    missing_values=sorted(absent),
                    **settings,
                )
                if one._keeps(texts - absent):
                    return one
        return None

    def _keeps(self, texts: Set[str]) -> bool:
        """Return True if each text is read as a value of its own that says the same."""
        codes = {text: self.code(text) for text in texts}
        if len(set(codes.values())) < len(codes):
            return False
        if self.kind not in _MEASURED:
            return True
        if self.kind == "date":  # no time of the day may be lost
            return not any(
                text.removeprefix(str(self.value(code))).strip("T 0:.Z")
                for text, code in codes.items()
            )
        return all(
            _CODE.match(text) is None and Decimal(text) == Decimal(str(self.value(code)))
            for text, code in codes.items()
        )

    @property
    def is_ordered(self) -> bool:
        """True if values that are near in order are alike."""
        return self.kind not in ("category", "boolean")

    @cached_property
    def size(self) -> int:
        """The number of values. A missing value has the code `size`."""
        if self.kind in _MEASURED:
            return math.floor(self._steps + 1e-6) + 1
        return len(self._listed)

    @property
    def names(self) -> tuple[str, ...]:
        """The listed values as text."""
        return tuple(text_of_cell(value) for value in self.values)

    @cached_property
    def _listed(self) -> tuple[str | bool, ...]:
        """The values of a category, ordinal or boolean, by code."""
        if self.kind == "boolean":
            return (False, True)
        return self.names + (OTHER,) * (self.other and OTHER not in self.names)

    @cached_property
    def _places(self) -> dict[object, int]:
        """The code of each listed value, by its text and, of a number, by its value.

        A number may also come as a float of 32 bits. Python's numbers of one value are one key: 1,
        1.0 and Decimal("1.00").
        """
        places: dict[object, int] = {name: place for place, name in enumerate(self._listed)}
        for place, value in enumerate(self.values):
            if not isinstance(value, str):
                places |= {value: place, float(np.float32(value)): place}
        return places

    @cached_property
    def _absent(self) -> frozenset[object]:
        """The texts and the numbers that stand for a missing value."""
        return frozenset({*map(text_of_cell, self.missing_values), *self.missing_values})

    def code(self, cell: object) -> int:
        """Return the code of a cell: a number, a date, or its text.

        A missing value has the code `size`, and a value out of range the nearest code. One that is
        not listed has the code of "other".

        Raises:
            BadCell: the cell cannot be read, or is not listed and the column has no "other".
        """
        return self.read(cell)[0]

    def read(self, cell: object) -> tuple[int, bool]:
        """Return the code of a cell, and whether its value was out of range. Raise as `code`."""
        cell = python_scalar(cell)
        if cell is UNREADABLE:
            raise BadCell("holds a number of many hundred digits, or a date beyond the year 9999.")
        if cell is None or self._is_missing(cell):
            return self.size, False
        if self.kind not in _MEASURED:
            is_boolean = self.kind == "boolean"
            return read_truth(cell) if is_boolean else self._listed_code(cell), False
        # Whole numbers stay whole: beyond 2^53 a float would be another value.
        number: Number = (
            self._day(cell)
            if self.kind == "date"
            else read_number(cell, self.decimal, self.thousands)
        )
        if self.kind == "integer" and not isinstance(number, int):
            raise BadCell(
                "has a fraction, which an integer has not. If . separates thousands: set "
                "`thousands: '.'`."
            )
        place = (number - self._first) / self._step
        is_out = not -0.5 <= place <= self._steps + 0.5
        return round(min(max(place, 0), self.size - 1)), is_out

    def _is_missing(self, cell: object) -> bool:
        """Return True for an empty text, or a value that `missing_values` lists."""
        if isinstance(cell, str) and not cell.strip():
            return "" not in self.names
        if not self.missing_values:
            return False
        is_word = text_of_cell(cell) in self._absent
        return is_word or not self._absent.isdisjoint(
            _number_in(cell, self.decimal, self.thousands)
        )

    def _listed_code(self, cell: object) -> int:
        """Return the code of a cell of a category or ordinal, as `code`."""
        text = text_of_cell(cell)
        forms = (
            [str(cell), text.upper()]
            if isinstance(cell, bool)
            else _number_in(cell, self.decimal, self.thousands)
        )
        for form in (text, *forms):
            if form in self._places:
                return self._places[form]
        refuse_missing_word(text)
        if text.lower() in map(str.lower, self.names):
            raise BadCell(
                "differs from a listed value in small and capital letters alone: list this form, "
                "too."
            )
        if not self.other:
            raise BadCell("is not among the listed `values`: list it, or declare `other: true`.")
        return self._places[OTHER]

    def declares(self, value: object) -> bool:
        """Return True if a row may have this value as it stands.

        A missing value is not declared, nor is one that would become another.
        """
        with suppress(BadCell):
            code = self.code(value)
            return code < self.size and (
                self.kind == "boolean"
                or text_of_cell(self.value(code)) == text_of_cell(python_scalar(value))
            )
        return False

    def value(self, code: int) -> str | int | float | bool | None:
        """Return the value with this code, as JSON has it: a date is text, a missing one None."""
        cell = self.cell(code)
        return cell.isoformat() if isinstance(cell, date) else cell

    @cached_property
    def of_rows(self) -> Column:
        """The column as rows hold its values.

        Dates are in ISO 8601, numbers are numbers, and a missing value is null.
        """
        return Column.model_validate(
            self.model_dump(exclude={"format", "missing_values", "decimal", "thousands"})
        )

    def narrowed(self, first: int, last: int) -> Column:
        """Return an integer, real or date with the values from code `first` to `last` alone.

        Columns of other kinds stay as they are.
        """
        if self.kind not in _MEASURED:
            return self
        return Column.model_validate(
            self.model_dump() | {"min": self.value(first), "max": self.value(last)}
        )

    def cell(self, code: int) -> str | int | float | bool | date | None:
        """Return the value with this code in its own type: a date as such."""
        if code >= self.size:
            return None
        if self.kind not in _MEASURED:
            return self._listed[code]
        number = self._first + code * self._step
        if self.kind == "date":
            return date.fromordinal(round(number))
        return round(number) if self.kind == "integer" else round(number, self._digits)

    @property
    def scale(self) -> tuple[float, float]:
        """The number that code 0 stands for, and the step from a code to the next.

        The values of an ordinal are numbered from 0.
        """
        return (float(self._first), self.unit) if self.kind in _MEASURED else (0.0, 1.0)

    def texts(self, codes: Codes) -> list[str]:
        """Return the values with these codes, each as JSON."""
        known = {code: _as_json(self.value(code)) for code in set(codes.tolist())}
        return [known[code] for code in codes.tolist()]

    def bins(self, codes: Codes, most: int = BINS) -> Codes:
        """Return the bin of each code.

        There are at most `most` bins of one width, and one after them for missing values.
        """
        return codes * min(self.size, most) // self.size

    def shares(self, codes: Codes) -> list[tuple[str, float]]:
        """Return each bin's name, its value or its first and last one, and its share of the codes.

        Up to LISTED values that are listed have a bin each.
        """
        most = LISTED if self.values else BINS
        count = min(self.size, most)
        starts = [-(-place * self.size // count) for place in range(count + 1)]
        ends = (
            {str(self.value(start)): 0, str(self.value(end - 1)): 0}
            for start, end in pairwise(starts)
        )
        shares = np.bincount(self.bins(codes, most), minlength=count + 1) / max(len(codes), 1)
        named = [*zip([*map(" – ".join, ends), "(missing)"], shares.tolist(), strict=True)]
        return named if self.missing or shares[-1] else named[:-1]

    @property
    def longest(self) -> int:
        """The bytes of the longest value as JSON."""
        # Of numbers the ends are longest; what is between them may have more digits.
        is_measured = self.kind in _MEASURED
        codes = [0, self.size - 1, self.size] if is_measured else range(self.size + 1)
        longest = max(len(text.encode()) for text in self.texts(np.array(codes)))
        return longest + (self._digits if self.kind == "real" else 0)

    @property
    def _digits(self) -> int:
        """The decimal places of a real number."""
        ends = (repr(float(number)) for number in (self.unit, self._first))
        return max(15 if "e" in end else len(end.partition(".")[2]) for end in ends)

    @property
    def _first(self) -> Number:
        """The number that code 0 stands for: of a date, its ordinal.

        Whole numbers are exact, however large.
        """
        return _number(self.min, self.kind)

    @property
    def _step(self) -> Number:
        return self.unit if self.kind == "real" else int(self.unit)

    @property
    def _steps(self) -> float:
        """The steps of `unit` from min to max, a whole number or not."""
        return (_number(self.max, self.kind) - self._first) / self._step

    @property
    def _has_short_years(self) -> bool:
        return self.kind == "date" and self.format is not None and "%y" in self.format

    def _day(self, cell: object) -> int:
        """Return the ordinal of a date.

        A two-digit year is taken from the declared range where that is possible.
        """
        day = read_day(cell, self.format)
        for years in (0, -100, 100) if self._has_short_years and isinstance(cell, str) else ():
            with suppress(ValueError):  # 1900 has no 29 February
                moved = day.replace(year=day.year + years)
                if self.min <= moved <= self.max:
                    return moved.toordinal()
        return day.toordinal()


def _number_in(cell: object, decimal: str, thousands: str) -> set[Number]:
    """Return the number that a cell holds, as a set of one.

    The set is empty if the cell holds no number, or text with leading zeros, which is a code.
    """
    if isinstance(cell, str) and _CODE.match(cell.strip()):
        return set()
    with suppress(BadCell):
        return {read_number(cell, decimal, thousands)}
    return set()


def _proposal(kind: str, cells: Set[str]) -> dict[str, Any]:
    """Return the settings of a column of this kind for the cells.

    Ranges are wider than the cells', so that their ends tell no cell. Raise ValueError or BadCell
    if the cells are of another kind.
    """
    if kind == "boolean":
        return {}
    if kind == "category":
        if len(cells) > _MOST_LISTED:
            raise ValueError("There are too many values.")
        return {"values": sorted(cells)}
    if kind == "date":
        days = [read_day(cell, None) for cell in cells]
        first = min(days) - timedelta(1)
        last = max(days) + timedelta(1)
        return {"min": date(first.year, 1, 1), "max": date(last.year, 12, 31)}
    numbers = [read_number(cell) for cell in cells]
    fractions = (cell.partition(".")[2].rstrip("0") for cell in cells)
    digits = 15 if any("e" in cell.lower() for cell in cells) else max(map(len, fractions))
    if kind == "integer" and digits:
        raise ValueError("A number has a fraction.")
    scale = 10**digits
    low = round(min(numbers) * scale)
    high = round(max(numbers) * scale)
    # The ends have three digits at most.
    width = 10 ** (len(str(max(high - low, abs(low) // 100, abs(high) // 100))) - 1)
    ends = {"min": (-(-low // width) - 1) * width, "max": (high // width + 1) * width}
    if digits:
        ends = {name: end / scale for name, end in ends.items()}
    return ends | {"unit": 1 / scale}


def _number(bound: Any, kind: str) -> Number:
    """Return a bound as a number: a date's ordinal, an integer exactly."""
    if isinstance(bound, date):
        return bound.toordinal()
    return int(bound) if kind == "integer" else float(bound)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Columns(dict[str, Column]):
    """The columns of a table by name, in their order.

    Attributes:
        clipped: for each column, the number of cells out of range that `read` has changed to the
            nearest value. Confidential.
    """

    def __init__(self, columns: Mapping[str, Column | Mapping[str, Any]]) -> None:
        super().__init__({name: Column.model_validate(one) for name, one in columns.items()})
        self._keys = [*map(_as_json, columns)]
        self.clipped: Counter[str] = Counter()

    @property
    def sizes(self) -> Codes:
        """The number of values of each column, without the missing one, int64 (d,)."""
        return np.array([column.size for column in self.values()], np.int64)

    @property
    def width(self) -> int:
        """The number of bytes of the longest row that the columns allow."""
        return 2 + sum(
            len(key.encode()) + 2 + one.longest
            for key, one in zip(self._keys, self.values(), strict=True)
        )

    def read(self, cells: Sequence[object], name: str) -> bytes:
        """Return a record, its cells in the order of the columns, as a row, by this record alone.

        Cells whose values are out of range, and so are changed, are counted in `clipped`.

        Raises:
            BadRow: a cell cannot be read, or is missing in a column without missing values. The
                message calls the record `name`, and tells no cell.
        """
        texts = []
        clipped = []
        faults = {}
        for key, (column_name, column), cell in zip(self._keys, self.items(), cells, strict=True):
            try:
                code, is_clipped = column.read(cell)
                if code == column.size and not column.missing:
                    raise BadCell("is empty. Declare `missing: true` if that may be.")
            except BadCell as fault:
                faults[column_name] = str(fault)
                continue
            clipped += [column_name] * is_clipped
            texts.append(f"{key}:{_as_json(column.value(code))}")
        if faults:
            column_name, why = next(iter(faults.items()))
            raise BadRow(f"{name}: column '{column_name}' {why}", faults)
        self.clipped.update(clipped)
        return f"{{{','.join(texts)}}}".encode()

    def rows(self, codes: Codes) -> Rows:
        """Return the rows with these codes, int64 (n, d)."""
        texts = [
            [f"{key}:{text}" for text in column.texts(codes[:, i])]
            for i, (key, column) in enumerate(zip(self._keys, self.values(), strict=True))
        ]
        rows = [f"{{{','.join(cells)}}}".encode() for cells in zip(*texts, strict=True)]
        return Rows(np.array(rows, dtype=f"S{self.width}").reshape(len(codes)))

    def codes(self, rows: Rows) -> Codes:
        """Return the codes of rows, int64 (n, d). A row's codes follow from that row alone.

        A value that is not there is missing. In a row that is a list of fractions
        (`Rows.examples`), a fraction stands for the value at that place.
        """
        columns = {name: column.of_rows for name, column in self.items()}
        codes = np.empty((len(rows), len(self)), np.int64)
        sizes = self.sizes.tolist()
        places: list[dict[object, int]] = [{} for _ in self]
        for i, row in enumerate(rows.records):
            if isinstance(row, list):
                codes[i] = [
                    int(row[j % len(row)] * (size + 1)) if row else size
                    for j, size in enumerate(sizes)
                ]
                continue
            for j, (name, column) in enumerate(columns.items()):
                value = row.get(name)
                key = (type(value), value)
                if key not in places[j]:
                    places[j][key] = column.code(value)
                codes[i, j] = places[j][key]
        return codes

    def bins(self, codes: Codes) -> Codes:
        """Return the bins of the rows with these codes, int64 (n, d), as `Column.bins`."""
        return np.stack(
            [column.bins(own) for column, own in zip(self.values(), codes.T, strict=True)],
            axis=1,
        )

    def associations(
        self,
        codes: Codes,
        labels: npt.NDArray[np.integer],
    ) -> tuple[list[str], list[list[float]]]:
        """Return the first COLUMNS_SHOWN columns' names, and Cramér's V of each pair.

        The labels, (n,), come last.
        """
        names = [*self][:COLUMNS_SHOWN]
        every = [*self.bins(codes).T[: len(names)], labels]
        return names, [
            [1.0 if one is other else cramers_v(one, other) for other in every] for one in every
        ]

    def vectors(
        self,
        codes: Codes,
        unit: float,
        category: float,
        most: int = MOST_VALUES,
    ) -> Float64Array:
        """Return vectors in which nearness means likeness, float64 (n, D).

        Numbers, dates and ordinals lie between 0 and `unit`. Categories are one-hot, times
        `category`, in at most `most` bins. A missing number lies in the middle and has `category`
        in a dimension of its own. A missing category also has a dimension of its own.
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

    def whole_vectors(self, codes: Codes) -> Float64Array:
        """Return `vectors` as whole numbers up to 1023.

        Sums of their products are then exact, in whatever order they are added.
        """
        return np.asarray(np.rint(self.vectors(codes, 1023, 341)), np.float64)


def cramers_v(one: Codes, other: Codes) -> float:
    """Return Cramér's V of two columns of bins, (n,).

    It is 0 if they are independent, or if one of them has a single value.
    """
    n = len(one)
    height = int(one.max(initial=0)) + 1
    width = int(other.max(initial=0)) + 1
    counts = np.bincount(one * width + other, minlength=height * width).reshape(height, width)
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    r, c = counts.shape
    if min(r, c) < 2:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    square = float((np.square(counts - expected) / expected).sum()) / n - (r - 1) * (c - 1) / (
        n - 1
    )
    most = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(min(max(square, 0.0) / most, 1.0))) if most > 0 else 0.0
