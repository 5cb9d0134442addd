"""Rows on a page: how each column's values are spread, how columns depend, and some rows.

Guarantee: post-processing of the populations; the bins follow from the columns that the recipe
declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pe.data.population import Population
from pe.store.formats import declarations
from pe.store.run import Run

_ROWS = 200

Spread = list[tuple[str, float]]
"""The name of each bin of a column, and its share of the rows."""


def columns_on_page(
    run: Run,
    populations: Sequence[Population],
    classes: Sequence[str],
    real: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the values of templates/columns.html. `columns` is None for samples that are no rows.

    `real` has the same of private rows, for the confidential page alone: see
    `TableMethods.contents`.
    """
    last = populations[-1]
    columns, label = declarations(run.folder, last.samples)
    if columns is None:
        return {"columns": None}
    sets = {f"S{t}": _contents(columns, populations[t]) for t in sorted({0, len(populations) - 1})}
    if real:
        sets["real"] = real
    spreads = [
        (name, column.note, [*sets], _side_by_side([one["shares"][name] for one in sets.values()]))
        for name, column in columns.items()
    ]
    # evenly spread over the population, so that none is picked
    shown = last.take(np.linspace(0, len(last) - 1, min(_ROWS, len(last))).astype(np.int64))
    rows = []
    for codes, number in zip(columns.codes(shown.samples), shown.labels, strict=True):
        cells = zip(columns.values(), codes.tolist(), strict=True)
        rows.append([*(column.value(code) for column, code in cells), classes[number]])
    return {
        "columns": spreads,
        "associations": [(name, *one["associations"]) for name, one in sets.items()],
        "head": [*columns, label],
        "rows": rows,
    }


def _contents(columns: Any, population: Population) -> Mapping[str, Any]:
    """Return of a population what `TableMethods.contents` returns of private rows."""
    codes = columns.codes(population.samples)
    shares = {
        name: column.shares(own)
        for (name, column), own in zip(columns.items(), codes.T, strict=True)
    }
    return {"shares": shares, "associations": columns.associations(codes, population.labels)}


def _side_by_side(spreads: Sequence[Spread]) -> list[tuple[str, list[float | None], float]]:
    """Return for each bin its name, its share in each spread, and the largest share of all bins."""
    by_name = [dict(each) for each in spreads]
    names = dict.fromkeys(name for each in spreads for name, _ in each)
    largest = max(share for each in spreads for _, share in each) or 1.0
    return [(name, [each.get(name) for each in by_name], largest) for name in names]
