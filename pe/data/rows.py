"""Rows of tables, a modality: each row is a JSON object with a value for each column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from pe.data.arrays import Float64Array
from pe.data.samples import Array, Shape, generator
from pe.data.texts import Texts

_DIFFERENT = 16  # fractions of a made-up row, at most


@dataclass(frozen=True, eq=False)
class Rows(Texts):
    """A batch of n rows, each the UTF-8 of a JSON object on one line.

    Values are numbers, true, false and text, and null where they are missing.
    """

    kind = "table"
    noun = "rows"
    suffix = ".json"
    embedding = "mixed"
    unit = "share of the columns that differ, 0 to 1"
    counts_labels = True
    largest = 50_000
    columns = "pe.data.columns:Columns"

    @property
    def records(self) -> list[Any]:
        """The rows as mappings of names to values.

        A made-up row is a list; a blank one is an empty mapping.
        """
        return [json.loads(row) if row else {} for row in self.utf8.tolist()]

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Self:
        """Make up rows for any columns.

        Each is a list of fractions, which stand for places among the values of a column.
        """
        fractions = min(max((shape[0] - 1) // 6, 1), _DIFFERENT)
        numbers = [
            generator(i, "examples").integers(0, 1000, fractions) / 1000 for i in range(count)
        ]
        rows = [json.dumps(row.tolist(), separators=(",", ":")).encode() for row in numbers]
        return cls(np.array(rows, dtype=f"S{max(shape[0], 8)}"))

    @classmethod
    def costliest(cls, count: int, shape: Shape) -> Self:
        """Make up rows, as `examples` does.

        What values of declared columns cost is part of `RowSource.decoding`.
        """
        return cls.examples(count, shape)

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        """Return how a row differs from the declared shape, to end a sentence, or ''."""
        is_long = len(bytes(row)) > shape[0]
        return "is longer than its columns allow: declare them again" if is_long else ""

    @staticmethod
    def _is_sound(utf8: bytes) -> bool:
        return not utf8 or isinstance(json.loads(utf8), dict | list)

    def distances(self, others: Self) -> Float64Array:
        """Return the share of columns in which each row and its counterpart differ, 0 to 1."""
        pairs = zip(map(_read, self.utf8.tolist()), map(_read, others.utf8.tolist()), strict=True)
        return np.array([_difference(one, other) for one, other in pairs], np.float64)

    @property
    def strings(self) -> list[str]:
        """Each row on a line, without its missing values."""
        rows = (row.items() if isinstance(row, dict) else enumerate(row) for row in self.records)
        return [
            ", ".join(f"{name}: {value}" for name, value in row if value is not None)
            for row in rows
        ]


@lru_cache(2048)  # pages compare the same rows many times
def _read(row: bytes) -> Any:
    return json.loads(row) if row else {}


def _difference(one: Mapping[str, object], other: Mapping[str, object]) -> float:
    names = one.keys() | other.keys()
    return sum(one.get(name) != other.get(name) for name in names) / max(len(names), 1)
