"""Tables in numbers: features for classifiers, and how far two tables lie apart. All of it is confidential."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.columns import Codes, Columns
from pe.data.samples import generator

BINS = 16
"""Most bins of a column, cut by its declaration; a missing value has one more."""
PAIRS, TRIPLES = 1000, 100
"""Most pairs and triples of columns that are compared; of more, so many are drawn at random."""
ONE_HOT = 64
"""Most dimensions of a category; of more values, those that are neighbours share one."""

_CELLS = BINS + 1


def one_hot(codes: Codes, columns: Columns) -> npt.NDArray[np.float32]:
    """Return features for a regression, float32 (n, ·): what has an order from 0 to 1, categories one-hot.

    A missing value has a dimension of its own.
    """
    parts = []
    for place, column in zip(codes.T, columns.values(), strict=True):
        is_missing = place == column.size
        if column.is_ordered:
            parts += [np.where(is_missing, 0.5, place / max(column.size - 1, 1))[:, None], is_missing[:, None]]
        else:
            cells = min(column.size, ONE_HOT)
            parts.append((place * cells // column.size)[:, None] == np.arange(cells + 1))
    return np.concatenate(parts, axis=1).astype(np.float32)


def ordinals(codes: Codes, columns: Columns) -> npt.NDArray[np.float32]:
    """Return features for trees, float32 (n, d): the codes, a missing value after all others."""
    return codes.astype(np.float32)


def to_bins(codes: Codes, sizes: Codes) -> Codes:
    """Return the bins of values, int64 (n, d) in [0, BINS]; a column of `sizes` has as many bins, at most BINS."""
    return codes * np.minimum(sizes, BINS) // sizes


def compare_tables(sets: Mapping[str, Codes], reference: Codes, names: Sequence[str], sizes: Codes) -> dict[str, Any]:
    """Compare each of `sets` with a reference table, as codes, int64 (n, d ≥ 1), of columns with these names and sizes.

    Total variation, ½ Σ |p − q| in [0, 1], is of shares of bins: the mean over columns, PAIRS and TRIPLES.
    `association` is the mean absolute difference of the pairs' Cramér's V. As many rows of each set are compared, drawn
    at random, so that chance adds as much to each.

    Guarantee: none. The result is confidential.
    """
    count = min(len(reference), *map(len, sets.values()))
    ones, pairs, triples = (
        _groups(len(names), size, most) for size, most in ((1, len(names)), (2, PAIRS), (3, TRIPLES))
    )
    real = _some(to_bins(reference, sizes), count, "reference")
    associations = [cramers_v(*real[:, pair].T) for pair in pairs]
    measures = {}
    for name, codes in sets.items():
        bins = _some(to_bins(codes, sizes), count, name)
        by_column, by_pair, by_triple = (
            [total_variation(bins[:, one], real[:, one]) for one in groups] for groups in (ones, pairs, triples)
        )
        shifts = [abs(cramers_v(*bins[:, pair].T) - value) for pair, value in zip(pairs, associations, strict=True)]
        ways = {"one_way": by_column, "two_way": by_pair, "three_way": by_triple, "association": shifts}
        measures[name] = {way: float(np.mean(values)) if values else None for way, values in ways.items()} | {
            "columns": dict(zip(names, by_column, strict=True)),
            "pair": [names[i] for i in pairs[int(np.argmax(shifts))]] if shifts else None,  # of the largest difference
        }
    return {"rows": count, "bins": BINS, "pairs": len(pairs), "triples": len(triples), "sets": measures}


def _groups(columns: int, size: int, most: int) -> list[tuple[int, ...]]:
    """Return all groups of so many columns, or `most` drawn at random, each once."""
    if math.comb(columns, size) <= most:
        return [*combinations(range(columns), size)]
    rng = generator(0, f"evaluation/groups/{size}")
    draws = (rng.choice(columns, size, replace=False) for _ in range(most))
    return sorted({tuple(sorted(draw.tolist())) for draw in draws})


def _some(rows: Codes, count: int, name: str) -> Codes:
    return rows[generator(0, f"evaluation/rows/{name}").permutation(len(rows))[:count]]


def total_variation(ours: Codes, theirs: Codes) -> float:
    """Return ½ Σ |p − q| of the joint shares of k columns' bins, (n, k) and (m, k)."""
    weights = _CELLS ** np.arange(ours.shape[1])
    p, q = (np.bincount(rows @ weights, minlength=_CELLS ** len(weights)) / len(rows) for rows in (ours, theirs))
    return float(np.abs(p - q).sum()) / 2


def cramers_v(one: Codes, other: Codes) -> float:
    """Return Cramér's V of two columns of bins, (n,), in [0, 1]: 0 if independent, or if one has a single value."""
    counts = np.bincount(one * _CELLS + other, minlength=_CELLS**2).reshape(_CELLS, _CELLS)
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    fewest = min(counts.shape)
    if fewest < 2:
        return 0.0
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / len(one)
    return math.sqrt(float((np.square(counts - expected) / expected).sum()) / len(one) / (fewest - 1))
