"""Constraints between the columns of a table, as its owner declares them in public.

A constraint is a comparison of sums of columns and numbers (`admitted <= discharged`, `net + tax =
gross`), or a list of the combinations of values that some columns may have. A row that lacks one of
the values obeys it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pe.data.arrays import BoolArray, Float64Array
from pe.data.columns import Codes, Column, Columns
from pe.data.samples import generator
from pe.errors import RecipeError, nearest_name

Mask = BoolArray
Floats = Float64Array

PASSES = 4
SPARE = 512
"""Passes of a repair over all constraints, and rows that are tried so that some are ready that
obey."""
_ROUNDING = 1e-6  # of a step
_CELLS = 2**22  # comparisons in memory at once
_SIGN = re.compile(r"(<=|>=|==|=|<|>)(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # not between backquotes
_TERM = re.compile(r"\s*([+-]?)\s*(?:`([^`]+)`|(\d{4}-\d\d-\d\d)|(\d+(?:\.\d+)?)|([^\W\d]\w*))\s*")


class Allowed(BaseModel):
    """The combinations of values that some columns may have.

    Where one value follows from another, each stands beside what follows from it.

    Attributes:
        columns: the names of the columns. A repair prefers to keep the value of an earlier one.
        allowed: the combinations, with a value for each column.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: tuple[str, ...] = Field(min_length=2)
    allowed: tuple[tuple[Any, ...], ...] = Field(min_length=1)


Declared = str | Allowed


@dataclass(eq=False)
class _Sum:
    """A sum of codes that is at most 0, or is 0: Σ factor · code + constant.

    Rows are given by the codes of the columns at `places`, int64 (n, k), none of them missing.
    """

    name: str
    places: Codes
    factors: Floats  # by how much one step of each code changes the sum
    constant: float
    sizes: Codes
    is_equality: bool

    @property
    def rounding(self) -> float:
        """The most that a sum may be off."""
        return _ROUNDING * float(np.abs(self.factors).min())

    def obeys(self, codes: Codes) -> Mask:
        """Mark the rows that obey, bool (n,)."""
        sums = codes @ self.factors + self.constant
        return np.asarray((np.abs(sums) if self.is_equality else sums) <= self.rounding, np.bool_)

    def repair(self, codes: Codes) -> Codes:
        """Move the last column as far as it takes and its range allows, then the one before."""
        for j in range(len(self.factors))[::-1]:
            whole = np.rint if self.is_equality else np.ceil if self.factors[j] > 0 else np.floor
            rest = codes @ self.factors + self.constant - (0 if self.is_equality else self.rounding)
            moved = codes.copy()
            moved[:, j] = np.clip(
                codes[:, j] - whole(rest / self.factors[j]).astype(np.int64),
                0,
                self.sizes[j] - 1,
            )
            codes = np.where(self.obeys(codes)[:, None], codes, moved)
        return codes


@dataclass(eq=False)
class _Combinations:
    """A list of allowed combinations of codes, int64 (m, k)."""

    name: str
    places: Codes
    allowed: Codes

    def obeys(self, codes: Codes) -> Mask:
        rows, allowed = (
            np.ascontiguousarray(one).view(f"S{8 * one.shape[1]}").ravel()
            for one in (codes, self.allowed)
        )
        return np.isin(rows, allowed)

    def repair(self, codes: Codes) -> Codes:
        """Take the combination that keeps most values, the first of several.

        An earlier column counts more than all later ones.
        """
        repaired = codes.copy()
        block = max(_CELLS // len(self.allowed), 1)
        for start in range(0, len(codes), block):
            some = codes[start : start + block]
            likeness = np.zeros((len(some), len(self.allowed)), np.int64)
            for j in range(codes.shape[1]):
                likeness = 2 * likeness + (some[:, j, None] == self.allowed[:, j])
            repaired[start : start + block] = self.allowed[likeness.argmax(axis=1)]
        return repaired


class Constraints:
    """Constraints between declared columns.

    Args:
        columns: of the table.
        declared: comparisons as text, and allowed combinations.

    Raises:
        RecipeError: a constraint cannot be read, names no column, or cannot be met, alone or with
            the others.
    """

    def __init__(self, columns: Columns, declared: Sequence[Declared]) -> None:
        self._columns = columns
        self._all = [
            _combinations(columns, one) if isinstance(one, Allowed) else _comparison(columns, one)
            for one in declared
        ]
        self.spare = self._spare()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> list[str]:
        """Each constraint as text."""
        return [one.name for one in self._all]

    @property
    def places(self) -> set[int]:
        """The places of the columns that a constraint names."""
        return {place for one in self._all for place in one.places.tolist()}

    def breaks(self, codes: Codes) -> Mask:
        """Mark which rows, int64 (n, d), break which constraints, bool (n, constraints)."""
        marks = np.zeros((len(codes), len(self._all)), np.bool_)
        for i, one in enumerate(self._all):
            marks[self._breaking(one, codes), i] = True
        return marks

    def break_shares(self, codes: Codes) -> dict[str, float]:
        """Return the share of the rows, int64 (n ≥ 1, d), that break each constraint.

        Constraints are named by their text.
        """
        return dict(zip(self.names, self.breaks(codes).mean(axis=0).tolist(), strict=True))

    def obey(self, codes: Codes, others: Codes) -> Codes:
        """Return rows that obey, int64 (n, d), each made from one row alone.

        A row is repaired. Where that fails, its counterpart in `others` takes its place.
        """
        if not self._all:
            return codes
        codes = codes.copy()
        for _ in range(PASSES):
            for one in self._all:
                part = np.ix_(self._breaking(one, codes), one.places)
                codes[part] = one.repair(codes[part])
        does_break: Mask = np.any(self.breaks(codes), axis=1)
        return np.where(does_break[:, None], others, codes)

    def _breaking(self, one: _Sum | _Combinations, codes: Codes) -> Codes:
        """Return the rows that break a constraint, in order."""
        some = codes[:, one.places]
        rows = np.flatnonzero((some < self._columns.sizes[one.places]).all(axis=1))
        return rows[~one.obeys(some[rows])]

    def _spare(self) -> Codes:
        """Return rows that obey, int64 (·, d), for places where a repair fails.

        Raises:
            RecipeError: no such row is found.
        """
        sizes = enumerate(self._columns.sizes.tolist())
        # each column by itself: where other columns are narrowed, the same rows obey
        codes = np.stack(
            [generator(0, f"constraints/{j}").integers(0, size, SPARE) for j, size in sizes],
            axis=1,
        )
        obeying = self.obey(codes, np.full(codes.shape[1], -1))
        obeying = obeying[(obeying >= 0).all(axis=1)]
        if not len(obeying):
            most = self.names[int(self.breaks(codes).sum(axis=0).argmax())]
            raise RecipeError(
                f"constraints: no row was found that obeys all, and '{most}' is broken most often. "
                "Check the ranges of its columns."
            )
        return obeying


def _place(columns: Columns, name: str, where: str) -> int:
    if name not in columns:
        raise RecipeError(
            f"constraints: '{where}' names no column '{name}'; {nearest_name(name, columns)}"
        )
    return [*columns].index(name)


def _comparison(columns: Columns, text: str) -> _Sum:
    """Read a comparison of two sums."""
    sides = _SIGN.split(text)
    if len(sides) != 3:
        raise RecipeError(
            f"constraints: '{text}' is no comparison: write two sums with <, <=, =, >= or > "
            "between."
        )
    factors: dict[int, float] = {}
    constant = 0.0
    sign = -1.0 if ">" in sides[1] else 1.0
    for side, of_side in ((sides[0], sign), (sides[2], -sign)):
        end = 0
        while not end or end < len(side):
            term = _TERM.match(side, end)
            if term is None or (end and not term[1]):
                raise RecipeError(
                    f"constraints: '{text}' cannot be read at '{side[end:].strip()}': write names "
                    "(in backquotes, if they are more than a word), numbers and dates such as "
                    "2020-12-31 with + or - between."
                )
            end = term.end()
            value = -of_side if term[1] == "-" else of_side
            if term[3] or term[4]:
                constant += value * (float(term[4]) if term[4] else _day(term[3], text))
                continue
            place = _place(columns, term[2] or term[5], text)
            column = [*columns.values()][place]
            if not column.is_ordered:
                raise RecipeError(
                    f"constraints: '{text}' compares a column of the kind {column.kind}: list the "
                    "allowed combinations instead."
                )
            # Rows are codes, so a column counts as its first value and its code times the step.
            first, step = column.scale
            factors[place] = factors.get(place, 0.0) + value * step
            constant += value * first
    factors = {place: factor for place, factor in factors.items() if factor}
    if not factors:
        raise RecipeError(f"constraints: '{text}' compares no columns: name one at least.")
    places = np.array([*factors], np.int64)
    steps = np.array([*factors.values()])
    one = _Sum(text, places, steps, constant, columns.sizes[places], sides[1].strip("=") == "")
    return replace(one, constant=constant + 2 * one.rounding) if sides[1] in "<>" else one


def _day(text: str, where: str) -> int:
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        raise RecipeError(f"constraints: {text} in '{where}' is not a date: correct it.") from None


def _combinations(columns: Columns, declared: Allowed) -> _Combinations:
    """Read allowed combinations."""
    name = f"{', '.join(declared.columns)} among {len(declared.allowed):,} combinations"
    places = np.array([_place(columns, one, name) for one in declared.columns], np.int64)
    some = [columns[one].of_rows for one in declared.columns]
    for row in declared.allowed:
        if len(row) != len(some) or not all(map(Column.declares, some, row)):
            raise RecipeError(
                f"constraints: {list(row)} does not have a declared value for each of "
                f"{', '.join(declared.columns)}."
            )
    codes = np.array(
        [[one.code(x) for one, x in zip(some, row, strict=True)] for row in declared.allowed],
        np.int64,
    )
    return _Combinations(name, places, codes)
