"""Pairs of which a search computes the distance whole, and what it returns of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pe.nearest.decide import Found
from pe.nearest.exact import merge
from pe.nearest.margin import Integers, Reals, Vectors

Pairwise = Callable[[Vectors, Vectors, Integers, Integers], npt.NDArray[np.float32]]
"""(queries, candidates, rows, columns) ↦ the squared distance of each pair, a float32 sum in any order."""


class Pairs:
    """Pairs whose distances were computed.

    Attributes:
        near: the q smallest distances of each query, n×q, in order; infinite where there are fewer.
    """

    def __init__(self, n: int, q: int) -> None:
        self.near = np.full((n, q), np.inf)
        self._rows = [np.empty(0, np.int64)]
        self._columns = [np.empty(0, np.int64)]
        self._distances = [np.empty(0)]

    def add(self, rows: Integers, columns: Integers, distances: Reals) -> None:
        """These as well."""
        self._rows.append(rows)
        self._columns.append(columns)
        self._distances.append(distances)
        self.near = merge(self.near, np.zeros(self.near.shape, np.int64), rows, columns, distances)[0]

    def found(self, k: int, last: Reals) -> Found:
        """For each query the k nearest of those at most `last` away, if the others' sketches are no nearer."""
        rows, columns, distances = (np.concatenate(each) for each in (self._rows, self._columns, self._distances))
        kept, shape = distances <= last[rows], (len(last), k)
        best, chosen = merge(
            np.full(shape, np.inf), np.full(shape, -1, np.int64), rows[kept], columns[kept], distances[kept]
        )
        return Found(best.astype(np.float32), chosen, np.minimum(last, best[:, -1]))
