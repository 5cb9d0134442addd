"""Ranges of a table's columns, and the noisy number of records in each range.

Ranges are finer where there are many records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pe.data.arrays import BoolArray, Float64Array, Int64Array
from pe.data.columns import Codes, Columns

Floats = Float64Array
Integers = Int64Array
Mask = BoolArray

# (codes, labels) → (rows, cells): the cells to which each row adds 1, int64, as pairs of equal
# length.
Cells = Callable[[Codes, Integers], tuple[Integers, Integers]]

# (name, cells, number of a label's cells) → noisy counts, float64 (labels, number), and their
# standard deviation.
Draw = Callable[[str, Cells, int], tuple[Floats, float]]

# (name, arrays) → these arrays, or those of that name that were kept before.
Keep = Callable[[str, list[Integers]], list[Integers]]

# The most ranges into which a number, or a range of it, is cut.
BINS = 32

# Number of records in a bin that holds none.
LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class Bins:
    """Ranges of codes: bin b of column j holds edges[j][b] ≤ code < edges[j][b + 1]."""

    edges: list[Integers]

    @classmethod
    def of(cls, columns: Columns) -> Bins:
        """Return a bin for each category and for missing values.

        An ordered column has at most BINS bins, and one for missing values.
        """
        edges = []
        for one in columns.values():
            ends = cut_range(0, one.size) if one.is_ordered else np.arange(one.size + 1)
            edges.append(np.append(ends, one.size + 1) if one.missing else ends)
        return cls(edges)

    @cached_property
    def starts(self) -> Integers:
        """The first cell of each column, and the number of cells, int64 (d + 1,)."""
        return np.concatenate([[0], np.cumsum([len(one) - 1 for one in self.edges])])

    def places(self, codes: Codes) -> Integers:
        """Return the bin of each value, int64 (n, d)."""
        places = [
            np.searchsorted(one[1:-1], codes[:, j], "right") for j, one in enumerate(self.edges)
        ]
        return np.stack(places, axis=1)

    def cells(self, columns: Sequence[int]) -> Cells:
        """Return the cells label × bins of some columns."""

        def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
            places = (labels[:, None] * self.starts[-1] + self.starts[:-1] + self.places(codes))[
                :, list(columns)
            ]
            return np.repeat(np.arange(len(codes)), len(columns)), places.ravel()

        return cells

    def draw(
        self,
        shares: Sequence[Floats],
        count: int,
        rng: np.random.Generator,
    ) -> Codes:
        """Return codes, int64 (count, d): a bin by its share, and a value evenly within it.

        `shares` has the bins' shares for each column, (bins,).
        """
        bins, numbers = np.empty((2, count, len(self.edges)))
        for j, share in enumerate(shares):
            ends = np.cumsum(share)
            bins[:, j] = np.minimum(
                np.searchsorted(ends, rng.random(count) * ends[-1], "right"),
                len(ends) - 1,
            )
            numbers[:, j] = rng.random(count)
        return self.codes(bins.astype(np.int64), numbers)

    def codes(self, bins: Integers, numbers: Floats) -> Codes:
        """Return codes of these bins, int64 (n, d).

        `numbers` in [0, 1) give each value's place within its bin.
        """
        columns = zip(self.edges, bins.T, numbers.T, strict=True)
        codes = [
            edges[own] + (places * np.diff(edges)[own]).astype(np.int64)
            for edges, own, places in columns
        ]
        return np.stack(codes, axis=1)


def count_values(
    columns: Columns, levels: list[list[int]], sizes: Floats, draw: Draw, keep: Keep
) -> tuple[Bins, list[Floats]]:
    """Return the ranges of each column, and each label's number of records in them.

    The numbers are float64 (labels, bins) for each column.

    Guarantee: post-processing of the counts that `draw` releases.

    Args:
        columns: of the table.
        levels: the places of the columns that are counted at each level; a number's large ranges
            are cut in between.
        sizes: each label's noisy number of records, float64 (labels, 1), ≥ 1.
        draw: releases the counts of cells.
        keep: keeps ranges, so that stored counts are of the same ones when the fit goes on.
    """
    edges = Bins.of(columns).edges
    parents = [np.zeros(len(one) - 1, np.int64) for one in edges]  # the coarser bin of each bin
    shares = [sizes for _ in edges]
    for level, some in enumerate(levels, 1):
        bins = Bins(edges)
        counts, deviation = draw(f"values/{level}", bins.cells(some), int(bins.starts[-1]))
        for j in some:
            noisy = counts[:, bins.starts[j] : bins.starts[j + 1]]
            totals = np.maximum(noisy.sum(axis=1), deviation)[:, None] if level == 1 else shares[j]
            even = (totals.sum(axis=0) / np.bincount(parents[j]))[parents[j]]
            are_held = _are_held(columns, j, noisy.sum(axis=0), even, deviation * len(sizes) ** 0.5)
            shares[j] = split_all(noisy, totals, parents[j], are_held, deviation)
        if level < len(levels):
            are_large = [
                (share.sum(axis=0) > BINS * deviation) & (j in levels[level])
                for j, share in enumerate(shares)
            ]
            edges = keep(f"ranges-{level}", [*map(finer, edges, are_large)])
            parents = [
                np.searchsorted(old, new[:-1], "right") - 1
                for old, new in zip(bins.edges, edges, strict=True)
            ]
    return Bins(edges), shares


def _are_held(
    columns: Columns,
    j: int,
    counts: Floats,
    even: Floats,
    noise: float,
) -> Mask:
    """Mark the bins of column j that hold records, bool (bins,).

    Numbers and dates are marked by `occupied`; of other columns all bins are.
    """
    column = [*columns.values()][j]
    marks = np.ones(len(counts), bool)
    if column.min is not None:
        number = len(counts) - column.missing
        marks[:number] = occupied(counts[:number], even[:number], noise)
    return marks


def narrow(
    columns: Columns,
    bins: Bins,
    shares: list[Floats],
    whole: Collection[int],
    keep: Keep,
) -> tuple[Bins, list[Floats], Integers]:
    """Return bins and shares without the ends that hold no records, and the new ends.

    Numbers and dates are restricted.

    The columns at `whole` stay as they are. The ends are each column's first and last code, int64
    (d, 2); in the bins, codes begin anew at the first one.
    """
    values = [
        len(one) - 1 - column.missing
        for one, column in zip(bins.edges, columns.values(), strict=True)
    ]
    ends = []
    for j, (share, number, column) in enumerate(zip(shares, values, columns.values(), strict=True)):
        held = np.flatnonzero(share[:, :number].sum(axis=0) > 2 * LEAST * len(share))
        is_cut = column.min is not None and j not in whole and len(held) > 0
        ends.append((held[0], held[-1] + 1) if is_cut else (0, number))
    (places,) = keep("held", [np.array(ends)])
    edges = []
    rest = []
    codes = []
    for one, share, number, (first, end) in zip(bins.edges, shares, values, places, strict=True):
        some = one[first : end + 1] - one[first]
        # The bin of missing values, if there is one, follows the last value's.
        edges.append(np.append(some, some[-1] + one[number + 1 :] - one[number]))
        rest.append(np.concatenate([share[:, first:end], share[:, number:]], axis=1))
        codes.append((one[first], one[end] - 1))
    return Bins(edges), rest, np.array(codes)


def occupied(counts: Floats, even: Floats, deviation: float) -> Mask:
    """Mark the run of bins that hold more than noise, bool (bins,).

    It is the run with the largest sum of what each count is above half an even share of its range,
    or half the noise.

    Args:
        counts: noisy, float64 (bins,).
        even: what each bin would hold if its range's records were spread evenly, float64 (bins,).
        deviation: the counts' noise.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts - np.minimum(even, deviation) / 2)])
    end = int(np.argmax(sums - np.minimum.accumulate(sums)))
    places = np.arange(len(counts))
    return (places >= np.argmin(sums[: end + 1])) & (places < end)


def split_all(
    noisy: Floats, totals: Floats, parents: Integers, are_held: Mask, noise: float
) -> Floats:
    """Return each label's totals, float64 (labels, ranges), split into the bins that hold records.

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

    A label's split is drawn to that of all labels together, the more the less it differs beyond the
    noise (empirical Bayes), then to the nearest one without numbers below 0.
    """
    pooled = _on_simplex(noisy.sum(axis=0), float(totals.sum())) / totals.sum()
    prior = totals[:, None] * pooled
    rest = noisy - prior
    beyond = np.maximum(np.square(rest).mean(axis=1) - deviation**2, 0)
    trust = beyond / (beyond + deviation**2) if deviation else np.ones(len(noisy))
    parts = [
        _on_simplex(one, n)
        for one, n in zip(prior + trust[:, None] * rest, totals.tolist(), strict=True)
    ]
    return np.stack(parts) + LEAST


def _on_simplex(values: Floats, total: float) -> Floats:
    """Return the nearest numbers, none below 0, of this sum."""
    if total <= 0:
        return np.zeros_like(values)
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0), np.float64)


def cut_range(first: int, end: int) -> Integers:
    """Return the edges of at most BINS ranges of nearly equal length from `first` to `end`."""
    return np.unique(np.linspace(first, end, min(BINS, end - first) + 1).astype(np.int64))


def finer(edges: Integers, is_large: Mask) -> Integers:
    """Return the edges with each large bin cut into at most BINS."""
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), is_large, strict=True)
    parts = [cut_range(a, b)[:-1] if large and b - a > 1 else np.array([a]) for a, b, large in bins]
    return np.append(np.concatenate(parts), edges[-1])
