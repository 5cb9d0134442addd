"""Distances between two tables. All of them are confidential."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from pe.data.columns import BINS, Codes, cramers_v
from pe.data.samples import generator
from pe.judgement.labelled import Values

PAIRS = 1000
TRIPLES = 100
"""Most pairs and triples of columns that are compared. If there are more, this many are drawn at
random."""

_CELLS = BINS + 1


def compare_tables(sets: Mapping[str, Codes], reference: Codes, names: Sequence[str]) -> Values:
    """Compare each of `sets` with a reference table, as bins of columns of these names.

    Bins are int64 (n, d ≥ 1) in [0, BINS].

    Total variation, ½ Σ |p − q| in [0, 1], is of shares of bins: the mean over columns, PAIRS and
    TRIPLES. `association` is the mean absolute difference of the pairs' Cramér's V. As many rows of
    each set are compared, drawn at random, so that chance adds as much to each.

    Guarantee: none. The result is confidential.
    """
    count = min(len(reference), *map(len, sets.values()))
    ones, pairs, triples = (
        _groups(len(names), size, most)
        for size, most in ((1, len(names)), (2, PAIRS), (3, TRIPLES))
    )
    real = _some(reference, count, "reference")
    associations = [cramers_v(*real[:, pair].T) for pair in pairs]
    measures = {}
    for name, every in sets.items():
        bins = _some(every, count, name)
        by_column, by_pair, by_triple = (
            [total_variation(bins[:, one], real[:, one]) for one in groups]
            for groups in (ones, pairs, triples)
        )
        shifts = [
            abs(cramers_v(*bins[:, pair].T) - value)
            for pair, value in zip(pairs, associations, strict=True)
        ]
        ways = {
            "one_way": by_column,
            "two_way": by_pair,
            "three_way": by_triple,
            "association": shifts,
        }
        measures[name] = {
            way: float(np.mean(values)) if values else None for way, values in ways.items()
        } | {
            "columns": dict(zip(names, by_column, strict=True)),
            "pair": [names[i] for i in pairs[int(np.argmax(shifts))]]
            if shifts
            else None,  # of the largest difference
        }
    return {
        "rows": count,
        "bins": BINS,
        "pairs": len(pairs),
        "triples": len(triples),
        "sets": measures,
    }


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
    p, q = (
        np.bincount(rows @ weights, minlength=_CELLS ** len(weights)) / len(rows)
        for rows in (ours, theirs)
    )
    return float(np.abs(p - q).sum()) / 2
