"""The columns of a finished phase: answered, lent by the lookahead, and kept from parents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pe.data.population import Population
from pe.data.samples import Array
from pe.dispatch.answers import Answers, Items
from pe.dispatch.reuse import NOBODY
from pe.dispatch.work import Work


def columns_of(answers: Answers, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
    """The members of the population that a finished phase makes, part by part: (rows, columns)."""
    missing = np.ones(len(work), dtype=bool)
    for items, columns in _made(answers, work):
        missing[items] = False
        yield items, columns
    rows = np.flatnonzero(missing)
    if rows.size and work.source is not None:
        kept = work.source.take(work.parents[rows])
        yield rows, Population.columns(kept.samples, kept.conditions)


def _made(answers: Answers, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
    yield from answers.committed(work.phase)
    if work.loan is None:
        return
    for items, columns in answers.committed(work.loan.phase):
        children = work.loan.child[items]
        lent = np.flatnonzero(children != NOBODY)
        if lent.size:
            yield children[lent], {name: column[lent] for name, column in columns.items()}
