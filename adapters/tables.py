"""Rows of tables from their declared columns alone: made up and mutated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pe.data.arrays import BoolArray, Float64Array
from pe.data.columns import Codes, Column, Columns
from pe.data.constraints import Constraints, Declared, Mask
from pe.data.rows import Rows
from pe.data.samples import uniforms
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    VariationRequest,
)
from pe.plugins.specs import plugin

Floats = Float64Array

TRIES = 8
"""Draws of a new row, before it is repaired."""


class MakesRows(Generator, ABC):
    """RANDOM_API and VARIATION_API over declared columns.

    A row is a function of its own seed, label and parent.

    A subclass says how new values of a column are drawn.
    """

    info = PluginInfo(modality="table", hosts=())
    capabilities = Capabilities(max_chunk=4096)

    def _declare(
        self, columns: Mapping[str, Column | Mapping[str, Any]], constraints: Sequence[Declared]
    ) -> None:
        self._columns = Columns(columns)
        self._constraints = Constraints(self._columns, constraints)

    def random_api(self, request: RandomRequest) -> Answer:
        """Make new rows, each value drawn for itself.

        A row that breaks a constraint is drawn again, then repaired.
        """

        def new(attempt: int) -> Codes:
            return self._new(request.labels, request.seeds, f"new{_again(attempt)}")

        return Answer(self._rows(self._obeying(new, self._spare(uniforms(request.seeds, "spare")))))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Mutate each parent.

        Each value is drawn anew at the rate `degree`, and a number moves by up to that share of its
        range. What breaks a constraint is mutated again, repaired, or left as it was.
        """
        assert isinstance(request.samples, Rows)
        parents = self._columns.codes(request.samples)

        def mutate(attempt: int) -> Codes:
            again = _again(attempt)
            new = self._new(request.labels, request.seeds, f"anew{again}")
            is_new = self._numbers(request.seeds, f"which{again}") < request.degree
            moves = self._numbers(request.seeds, f"move{again}")
            moved = self._moved(parents, moves, request.degree)
            return np.where(self._can_move(parents), moved, np.where(is_new, new, parents))

        others = self._obeying(lambda _: parents, self._spare(uniforms(request.seeds, "spare")))
        return Answer(self._rows(self._obeying(mutate, others)))

    def _spare(self, numbers: Floats) -> Codes:
        """Return rows that obey the constraints, held ready, by numbers in [0, 1), float64 (n,)."""
        spare = self._constraints.spare
        return spare[(numbers * len(spare)).astype(np.int64)]

    def _obeying(self, new: Callable[[int], Codes], others: Codes) -> Codes:
        """Return new rows that obey the constraints.

        A row comes from one of several attempts, is repaired, or is that of `others`.
        """
        codes = new(0)
        constraints = self._constraints
        for attempt in range(1, TRIES):
            does_break: Mask = np.any(constraints.breaks(codes), axis=1)
            if not does_break.any():
                return codes
            codes = np.where(does_break[:, None], new(attempt), codes)
        return constraints.obey(codes, others)

    @abstractmethod
    def _new(self, labels: Sequence[str], seeds: Seeds, purpose: str) -> Codes:
        """Return codes of new rows, int64 (n, d), drawn by the seeds."""

    def _moved(self, parents: Codes, numbers: Floats, step: float) -> Codes:
        """Return codes in which ordered values move by up to `step` of their range.

        `numbers` lie in [0, 1) and say how far.
        """
        last = self._columns.sizes - 1
        moves = np.rint((2 * numbers - 1) * step * last).astype(np.int64)
        return np.where(self._can_move(parents), np.clip(parents + moves, 0, last), parents)

    def _can_move(self, codes: Codes) -> BoolArray:
        """Mark values of ordered columns that are not missing, bool (n, d)."""
        is_ordered = np.array([column.is_ordered for column in self._columns.values()])
        return is_ordered & (codes < self._columns.sizes)

    def _numbers(self, seeds: Seeds, purpose: str) -> Floats:
        """Return numbers in [0, 1), float64 (n, d), another for each column."""
        columns = [uniforms(seeds, f"{purpose}/{j}") for j in range(len(self._columns))]
        return np.stack(columns, axis=1)

    def _rows(self, codes: Codes) -> Rows:
        return self._columns.rows(codes)


def _again(attempt: int) -> str:
    """Return the end of a purpose for which an attempt draws its numbers. The first has none."""
    return f"/{attempt}" if attempt else ""


@plugin
class Mutate(MakesRows):
    """For Private Evolution alone over a table: random rows of the declared columns, mutated.

    This is Tab-PE.

    RANDOM_API draws each value uniformly among those declared. VARIATION_API of degree d draws each
    category anew with probability d, and moves each number, date and ordinal by up to d of its
    range: 0 changes nothing.

    Attributes:
        columns: each column's kind and values; by default the private table's.
        constraints: what all rows obey; by default the private table's.
    """

    info = PluginInfo(modality="table", hosts=(), by_label=False)
    starter = ""

    columns: dict[str, Column]
    constraints: tuple[Declared, ...] = ()

    def __post_init__(self) -> None:
        self._declare(self.columns, self.constraints)

    def _new(self, labels: Sequence[str], seeds: Seeds, purpose: str) -> Codes:
        """Draw uniformly.

        Where a column may have missing values, they count as one value more.
        """
        sizes = self._columns.sizes + [column.missing for column in self._columns.values()]
        return (self._numbers(seeds, purpose) * sizes).astype(np.int64)
