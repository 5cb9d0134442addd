"""Rows on a page: how the values of each column are spread, how columns hang together, and some of the rows.

Guarantee: post-processing of the populations; the bins follow from the columns that the recipe declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.store.formats import declarations
from pe.store.run import Run

_ROWS = 200
_MOST = 40
"""The most columns whose associations are shown."""

Spread = list[tuple[str, float]]
"""The name of each bin of a column, and its share of the rows."""


def columns_on_page(
    run: Run, populations: Sequence[Population], classes: Sequence[str], real: Mapping[str, Spread] | None = None
) -> dict[str, Any]:
    """Return the values of templates/columns.html; `columns` is None for samples that are no rows.

    `real` are the spreads of private rows, for the confidential page alone.
    """
    sets = {f"S{t}": populations[t] for t in sorted({0, len(populations) - 1})}
    last = populations[-1]
    columns, label = declarations(run.folder, last.samples)
    if columns is None:
        return {"columns": None}
    codes = {name: columns.codes(one.samples) for name, one in sets.items()}
    spreads = []
    for i, (name, column) in enumerate(columns.items()):
        each = {one: column.shares(own[:, i]) for one, own in codes.items()}
        if real is not None and name in real:
            each["real"] = real[name]
        spreads.append((name, column.note, [*each], _side_by_side([*each.values()])))
    places = np.linspace(0, len(last) - 1, min(_ROWS, len(last))).astype(np.int64)
    cells = zip(codes[f"S{len(populations) - 1}"][places].tolist(), last.labels[places].tolist(), strict=True)
    rows = [
        [*(column.value(code) for column, code in zip(columns.values(), row, strict=True)), classes[number]]
        for row, number in cells
    ]
    bins = {
        name: [*[column.bins(codes[name][:, i]) for i, column in enumerate(columns.values())][:_MOST], one.labels]
        for name, one in sets.items()
    }
    return {
        "columns": spreads,
        "names": [*[*columns][:_MOST], label],
        "associations": {name: associations(each) for name, each in bins.items()},
        "head": [*columns, label],
        "rows": rows,
    }


def _side_by_side(spreads: Sequence[Spread]) -> list[tuple[str, list[float | None], float]]:
    """Return for each bin its name, its share in each spread, and the largest share of all bins."""
    by_name = [dict(each) for each in spreads]
    names = dict.fromkeys(name for each in spreads for name, _ in each)
    largest = max(share for each in spreads for _, share in each) or 1.0
    return [(name, [each.get(name) for each in by_name], largest) for name in names]


def associations(bins: Sequence[npt.NDArray[np.int64]]) -> list[list[float]]:
    """Return Cramér's V of each pair of columns, given as bins (n,), 0 to 1, without bias (Bergsma 2013)."""
    return [[1.0 if i == j else _cramer(one, other) for j, other in enumerate(bins)] for i, one in enumerate(bins)]


def _cramer(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    (rows, one), (columns, other) = (np.unique(each, return_inverse=True) for each in (one, other))
    r, c, n = len(rows), len(columns), len(one)
    if min(r, c) < 2:
        return 0.0
    counts = np.bincount(one * c + other, minlength=r * c).reshape(r, c)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    square = float((np.square(counts - expected) / expected).sum()) / n - (r - 1) * (c - 1) / (n - 1)
    most = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(min(max(square, 0.0) / most, 1.0))) if most > 0 else 0.0
