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
    sets = {f"S{t}": populations[t] for t in sorted({0, len(populations) - 1})}
    last = populations[-1]
    columns, label = declarations(run.folder, last.samples)
    if columns is None:
        return {"columns": None}
    codes = {name: columns.codes(one.samples) for name, one in sets.items()}
    spreads = []
    for i, (name, column) in enumerate(columns.items()):
        each = {one: column.shares(own[:, i]) for one, own in codes.items()}
        if real:
            each["real"] = real["shares"][name]
        spreads.append((name, column.note, [*each], _side_by_side([*each.values()])))
    places = np.linspace(0, len(last) - 1, min(_ROWS, len(last))).astype(np.int64)
    cells = zip(
        codes[f"S{len(populations) - 1}"][places].tolist(),
        last.labels[places].tolist(),
        strict=True,
    )
    rows = [
        [
            *(column.value(code) for column, code in zip(columns.values(), row, strict=True)),
            classes[number],
        ]
        for row, number in cells
    ]
    matrices = [
        (name, *columns.associations(codes[name], one.labels)) for name, one in sets.items()
    ]
    if real:
        matrices.append(("real", *real["associations"]))
    return {
        "columns": spreads,
        "associations": matrices,
        "head": [*columns, label],
        "rows": rows,
    }


def _side_by_side(spreads: Sequence[Spread]) -> list[tuple[str, list[float | None], float]]:
    """Return for each bin its name, its share in each spread, and the largest share of all bins."""
    by_name = [dict(each) for each in spreads]
    names = dict.fromkeys(name for each in spreads for name, _ in each)
    largest = max(share for each in spreads for _, share in each) or 1.0
    return [(name, [each.get(name) for each in by_name], largest) for name in names]
