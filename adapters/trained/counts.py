"""Noisy counts of a table's rows, by label: of values in ranges, of pairs of values, and of nearest rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from adapters.trained.fit import BELOW_ONE
from pe.data.columns import Codes, Columns
from pe.data.rows import Rows
from pe.fit.trainer import PrivateRecords
from pe.privacy.noise import Noise
from pe.privacy.release import Release

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Cells = Callable[[Codes, Integers], tuple[Integers, Integers]]
"""(codes, labels) → (rows, cells): the cells to which each row adds 1, int64, as pairs of equal length."""

GRID = 2**22
"""Grid steps to which the vector of one record is cut, whose L2 norm is then at most 1."""
BINS, GROUPS = 32, 8
"""The most ranges into which a number, or a range of it, is cut; the groups of a column's values in pairs."""
LEAST = 1e-9
"""Number of records in a bin that holds none."""
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
    """Return noisy counts of cells, int64 (number,), to each of which a record adds 1 if `cells` names it.

    A count of 1 is grid / norm steps.

    Guarantee: the release's. Each record adds to at most norm² cells, which follow from it and from public values; a
    unit's n records weigh 1/n each, rounded toward zero on the grid. So adding or removing a unit changes the sum, over
    the grid, by at most 1 in L2 norm; replacing one by at most √2, as no number of either vector is below 0.
    """
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    weights = np.trunc(release.grid * BELOW_ONE / norm / of_unit[unit]).astype(np.int64)
    codes, labels = columns.codes(Rows(records.samples)), records.labels.astype(np.int64)
    total = np.zeros(number, np.int64)
    for start in range(0, len(codes), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows, places = cells(codes[block], labels[block])
        np.add.at(total, places, weights[block][rows])
    return total + noise.discrete_gaussian(total.shape, release.scale)


def label_cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
    """Return each row's label as its cell; see `Cells`."""
    return np.arange(len(codes)), labels


@dataclass(frozen=True, eq=False)
class Bins:
    """Ranges of codes in each column: bin b of column j holds edges[j][b] ≤ code < edges[j][b + 1]."""

    edges: list[Integers]

    @classmethod
    def of(cls, columns: Columns) -> Bins:
        """Return a bin for each category, and at most BINS for an ordered column; missing values, if any, have one."""
        edges = []
        for one in columns.values():
            ends = cut(0, one.size, BINS) if one.is_ordered else np.arange(one.size + 1)
            edges.append(np.append(ends, one.size + 1) if one.missing else ends)
        return cls(edges)

    @cached_property
    def starts(self) -> Integers:
        """The first cell of each column, and the number of cells, int64 (d + 1,)."""
        return np.concatenate([[0], np.cumsum([len(one) - 1 for one in self.edges])])

    def places(self, codes: Codes) -> Integers:
        """Return the bin of each value, int64 (n, d)."""
        places = [np.searchsorted(one[1:-1], codes[:, j], "right") for j, one in enumerate(self.edges)]
        return np.stack(places, axis=1)

    def cells(self, columns: Sequence[int]) -> Cells:
        """Return the cells label × bins of some columns."""

        def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
            places = (labels[:, None] * self.starts[-1] + self.starts[:-1] + self.places(codes))[:, list(columns)]
            return np.repeat(np.arange(len(codes)), len(columns)), places.ravel()

        return cells

    def draw(self, shares: Sequence[Floats], count: int, rng: np.random.Generator) -> Codes:
        """Return codes, int64 (count, d): a bin by `shares`, (bins,) of each column, and a value within it evenly."""
        codes = np.empty((count, len(self.edges)), np.int64)
        for j, edges in enumerate(self.edges):
            ends = np.cumsum(shares[j])
            bins = np.minimum(np.searchsorted(ends, rng.random(count) * ends[-1], "right"), len(ends) - 1)
            codes[:, j] = edges[bins] + (rng.random(count) * np.diff(edges)[bins]).astype(np.int64)
        return codes


def occupied(counts: Floats, even: Floats, deviation: float) -> Mask:
    """Mark the run of bins outside of which counts are hardly more than noise, bool (bins,).

    It is the run with the largest sum of what each count is above half an even share of its range, or half the noise.

    Args:
        counts: noisy, float64 (bins,).
        even: what each bin would hold if its range's records were spread evenly, float64 (bins,).
        deviation: the counts' noise.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts - np.minimum(even, deviation) / 2)])
    end = int(np.argmax(sums - np.minimum.accumulate(sums)))
    places = np.arange(len(counts))
    return (places >= np.argmin(sums[: end + 1])) & (places < end)


@dataclass(frozen=True, eq=False)
class Groups:
    """Pairs of columns, each value in one of GROUPS groups of its column, with about the same number of records."""

    bins: Bins
    group: list[Integers]  # of each bin of each column

    @classmethod
    def of(cls, columns: Columns, bins: Bins, shares: list[Floats]) -> Groups:
        """Group neighbouring bins of numbers; of categories the rarest are one group. `shares`: of all labels."""
        group = []
        for column, share in zip(columns.values(), shares, strict=True):
            middle = (np.cumsum(share) - share / 2) / share.sum()
            rank = np.argsort(np.argsort(-share, kind="stable"), kind="stable")
            one = np.minimum((GROUPS * middle).astype(np.int64) if column.is_ordered else rank, GROUPS - 1)
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
        cells = [i * GROUPS**2 + groups[:, a] * GROUPS + groups[:, b] for i, (a, b) in enumerate(self.pairs)]
        whole = labels[:, None] * self.number + np.stack(cells, axis=1)
        return np.repeat(np.arange(len(codes)), len(cells)), whole.ravel()


def nearest_cells(columns: Columns, candidates: Sequence[Codes]) -> Cells:
    """Return the cells label × candidate: the nearest one of the row's label, of which each label has as many."""
    vectors = [columns.whole_vectors(one) for one in candidates]

    def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
        places, rows = np.empty(len(codes), np.int64), columns.whole_vectors(codes)
        for k, one in enumerate(vectors):
            places[labels == k] = k * len(one) + nearest(rows[labels == k], one)
        return np.arange(len(codes)), places

    return cells


def nearest(vectors: Floats, candidates: Floats) -> Integers:
    """Return the nearest candidate of each vector of whole numbers, the first of equals, int64 (n,); exact."""
    squares = np.square(candidates).sum(axis=1)
    blocks = (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))
    places = [np.argmin(squares - 2 * (block @ candidates.T), axis=1) for block in blocks]
    return np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.int64)


def split_all(noisy: Floats, totals: Floats, parents: Integers, are_held: Mask, noise: float) -> Floats:
    """Return each label's totals, float64 (labels, ranges), split by `split` into the bins that hold records.

    `parents`: the range of each bin. `noise`: the counts' standard deviation.
    """
    shares = np.full(noisy.shape, LEAST)
    for parent in range(totals.shape[1]):
        bins = np.flatnonzero((parents == parent) & are_held)
        if len(bins):
            shares[:, bins] = split(noisy[:, bins], totals[:, parent], noise)
    return shares


def split(noisy: Floats, totals: Floats, deviation: float) -> Floats:
    """Return each label's total split by its noisy counts, float64 (labels, bins), none below 0.

    A label's split is drawn to that of all labels together, the more the less it differs beyond the noise (empirical
    Bayes), then to the nearest one without numbers below 0.
    """
    pooled = _on_simplex(noisy.sum(axis=0), float(totals.sum())) / totals.sum()
    prior = totals[:, None] * pooled
    rest = noisy - prior
    beyond = np.maximum(np.square(rest).mean(axis=1) - deviation**2, 0)
    trust = beyond / (beyond + deviation**2) if deviation else np.ones(len(noisy))
    parts = [_on_simplex(one, n) for one, n in zip(prior + trust[:, None] * rest, totals.tolist(), strict=True)]
    return np.stack(parts) + LEAST


def _on_simplex(values: Floats, total: float) -> Floats:
    """Return the nearest numbers, none below 0, of this sum."""
    if total <= 0:
        return np.zeros_like(values)
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0), np.float64)


def cut(first: int, end: int, parts: int) -> Integers:
    """Return the edges of at most `parts` ranges of nearly equal length from `first` to `end`."""
    return np.unique(np.linspace(first, end, min(parts, end - first) + 1).astype(np.int64))


def finer(edges: Integers, is_large: Mask) -> Integers:
    """Return the edges with each large bin cut into at most BINS."""
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), is_large, strict=True)
    parts = [cut(a, b, BINS)[:-1] if large and b - a > 1 else np.array([a]) for a, b, large in bins]
    return np.append(np.concatenate(parts), edges[-1])
