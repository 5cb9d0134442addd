"""The search that computes few distances whole: only where a lower bound, from sketches, leaves the answer open."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pe.nearest.decide import Found
from pe.nearest.margin import FLOAT32, Arithmetic, Integers, Mask, Reals, Vectors
from pe.nearest.pairs import Pairs, Pairwise
from pe.nearest.sketch import GIVE_UP, Sketch
from pe.nearest.threads import ALONE, Threads

_BLOCK = 2**22  # products computed together
_COLUMNS = 2**14  # most candidates among them
_GROUP = 64  # candidates of which only the smallest product is looked at when likely ones are picked
_LIKELY = 7  # candidates, beyond q, whose distances are computed to learn which others come into question
_LARGEST = float(np.finfo(np.float32).max)  # below what stands for pairs taken before


class SieveSearch:
    """A few distances tell how near the q nearest are at most; all that by their sketches may be as near follow.

    A query that leaves too many gets none, with −∞ as the bound on the others: it is left to the next search.

    Attributes:
        returned: float32.
        sieve: of the sketches.
        threads: as given.
    """

    returned = Arithmetic(FLOAT32)

    def __init__(
        self, candidates: Vectors, sketch: Sketch, q: int, pairwise: Pairwise, threads: Threads = ALONE
    ) -> None:
        """Search these candidates, m×d, for the q nearest; the threads given keep NumPy and `pairwise` to one core."""
        self.threads = threads
        self._candidates, self._sketch, self._q, self._pairwise = candidates, sketch, q, pairwise
        self.sieve = sketch.arithmetic
        count = threads.count()
        sketches = np.concatenate(threads.map(sketch, np.array_split(candidates, count), count))
        halves = np.square(sketches, dtype=np.float64).sum(axis=1, keepdims=True) / 2
        self._factors = np.hstack([-sketches, halves.astype(np.float32)])

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The candidates that come into question, at most k of them: places are left empty."""
        sketches, columns = self._sketch(queries), min(len(self._factors), _COLUMNS)
        step = max(64, min(1024, _BLOCK // columns))
        room = np.empty(columns * step, np.float32), np.empty(columns * step, bool)
        starts = range(0, len(queries), step)
        parts = [self._some(queries[i : i + step], sketches[i : i + step], k, *room) for i in starts]
        return Found(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _some(self, queries: Vectors, sketches: Vectors, k: int, values: Vectors, flags: Mask) -> Found:
        """The same for a block of queries. `values` and `flags` are room for its products."""
        n, m = len(queries), len(self._factors)
        squares = np.square(sketches, dtype=np.float64).sum(axis=1)
        factors = np.hstack([sketches, np.ones((n, 1), np.float32)]).T
        pairs, left, limit = Pairs(n, self._q), np.zeros(n, np.int64), np.full(n, np.inf, np.float32)
        for start in range(0, m, _COLUMNS):
            part = self._factors[start : start + _COLUMNS]
            products = _products(part, factors, values[: len(part) * n].reshape(-1, n))
            below = flags[: products.size].reshape(products.shape)
            if not start:
                likely = _likely(products, min(self._q + _LIKELY, len(part)))
                self._compute(queries, *_taken(products, likely, below), pairs)
                limit = np.maximum(likely, self._limit(pairs.near, squares))
            rows, columns = _taken(products, limit, below)
            left += np.bincount(rows, minlength=n)
            limit[left > GIVE_UP * m] = -np.inf
            kept = limit[rows] > -np.inf
            self._compute(queries, rows[kept], columns[kept] + start, pairs)
            limit = np.minimum(limit, self._limit(pairs.near, squares))
        return pairs.found(k, 2 * limit.astype(np.float64) + squares)

    def _compute(self, queries: Vectors, rows: Integers, columns: Integers, pairs: Pairs) -> None:
        """Add these pairs and their distances."""
        pairs.add(rows, columns, self._pairwise(queries, self._candidates, rows, columns).astype(np.float64))

    def _limit(self, near: Reals, squares: Reals) -> npt.NDArray[np.float32]:
        """The product up to which a candidate's sketch leaves open whether it is among the q nearest.

        Wide enough for the bounds of pe/nearest/margin.py to certify an answer; no answer relies on it.
        """
        reach = np.maximum(near[:, -1], 0)
        room = 4 * self.sieve.slack(self._candidates.shape[1]) * (2 * np.sqrt(squares) + np.sqrt(reach)) ** 2
        return np.minimum((reach + room - squares) / 2, _LARGEST).astype(np.float32)


def _products(candidates: Vectors, queries: Vectors, out: Vectors) -> Vectors:
    """½|x − c|² − ½|x|² of all sketches."""
    return np.matmul(candidates, queries, out=out)


def _likely(products: Vectors, count: int) -> npt.NDArray[np.float32]:
    """For each query a product that at least `count` candidates do not exceed, and few more."""
    m, n = products.shape
    size = max(1, min(_GROUP, m // (4 * count)))
    least = products[: m // size * size].reshape(-1, size, n).min(axis=1)
    return np.asarray(np.partition(least, count - 1, axis=0)[count - 1])


def _taken(products: Vectors, limit: npt.NDArray[np.float32], below: Mask) -> tuple[Integers, Integers]:
    """Rows (queries) and columns (candidates) of products up to their query's limit, and never again."""
    columns, rows = np.divmod(np.flatnonzero(np.less_equal(products, limit, out=below)), products.shape[1])
    products[columns, rows] = np.inf
    return rows, columns
