"""Noisy counts of a table's rows by label: of values, pairs of values, and nearest rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from adapters.trained.fit import BELOW_ONE
from adapters.trained.ranges import Bins, Cells, Floats, Integers
from pe.data.columns import Codes, Columns
from pe.data.rows import Rows
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

# Grid steps to which the vector of one record is cut, whose L2 norm is then at most 1.
GRID = 2**22

# The groups of a column's values in pairs.
GROUPS = 8
_BLOCK = 4096


def noisy_counts(
    columns: Columns,
    records: PrivateRecords,
    cells: Cells,
    number: int,
    norm: float,
    release: Release,
    noise: Noise,
) -> Integers:
    """Return noisy counts of cells, int64 (number,).

    A record adds 1 to each cell that `cells` names for it. A count of 1 is grid / norm steps.

    Guarantee: the release's. Each record adds to at most norm² cells, which follow from it and from
    public values; a unit's n records weigh 1/n each, rounded toward zero on the grid. So adding or
    removing a unit changes the sum, over the grid, by at most 1 in L2 norm; replacing one by at
    most √2, as no number of either vector is below 0.
    """
    unit, sizes = records.by_unit()
    weights = np.trunc(release.grid * BELOW_ONE / norm / sizes[unit]).astype(np.int64)
    codes = columns.codes(Rows(records.samples))
    labels = records.labels.astype(np.int64)
    total = np.zeros(number, np.int64)
    for start in range(0, len(codes), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows, places = cells(codes[block], labels[block])
        np.add.at(total, places, weights[block][rows])
    return total + noise.discrete_gaussian(total.shape, release.scale)


def label_cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
    """Return each row's label as its cell. See `Cells`."""
    return np.arange(len(codes)), labels


@dataclass(frozen=True, eq=False)
class Groups:
    """Pairs of columns, each column's values in GROUPS groups of about equally many records."""

    bins: Bins
    group: list[Integers]  # of each bin of each column

    @classmethod
    def of(cls, columns: Columns, bins: Bins, shares: list[Floats]) -> Groups:
        """Group neighbouring bins of numbers, and the rarest categories.

        `shares`: of all labels.
        """
        group = []
        for column, share in zip(columns.values(), shares, strict=True):
            middle = (np.cumsum(share) - share / 2) / share.sum()
            rank = np.argsort(np.argsort(-share, kind="stable"), kind="stable")
            one = np.minimum(
                (GROUPS * middle).astype(np.int64) if column.is_ordered else rank,
                GROUPS - 1,
            )
            group.append(np.unique(one, return_inverse=True)[1].astype(np.int64))
        return cls(bins, group)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of columns."""
        return list(combinations(range(len(self.group)), 2))

    @property
    def number(self) -> int:
        """The number of cells of a label."""
        return len(self.pairs) * GROUPS**2

    def cells(self, codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
        """Return the cells label × pair × groups, see `Cells`."""
        places = self.bins.places(codes)
        groups = np.stack([one[places[:, j]] for j, one in enumerate(self.group)], axis=1)
        cells = [
            i * GROUPS**2 + groups[:, a] * GROUPS + groups[:, b]
            for i, (a, b) in enumerate(self.pairs)
        ]
        whole = labels[:, None] * self.number + np.stack(cells, axis=1)
        return np.repeat(np.arange(len(codes)), len(cells)), whole.ravel()


def nearest_cells(columns: Columns, candidates: Sequence[Codes]) -> Cells:
    """Return the cells label × candidate: a row adds to the candidate of its label that is nearest.

    Each label has equally many candidates.
    """
    vectors = [columns.whole_vectors(one) for one in candidates]

    def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
        places = np.empty(len(codes), np.int64)
        rows = columns.whole_vectors(codes)
        for k, one in enumerate(vectors):
            places[labels == k] = k * len(one) + nearest_rows(rows[labels == k], one)
        return np.arange(len(codes)), places

    return cells


def nearest_rows(vectors: Floats, candidates: Floats) -> Integers:
    """Return the exact nearest candidate of each vector, int64 (n,).

    Vectors and candidates hold whole numbers. Of equals, the first one is taken.
    """
    squares = np.square(candidates).sum(axis=1)
    blocks = (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))
    places = [np.argmin(squares - 2 * (block @ candidates.T), axis=1) for block in blocks]
    return np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.int64)
