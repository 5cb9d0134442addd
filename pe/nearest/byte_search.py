"""The search by vectors rounded to 8 bits: whole distances only where these leave the answer open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pe.nearest.decide import Found
from pe.nearest.margin import FLOAT32, Arithmetic, Integers, Reals, Vectors, rounded
from pe.nearest.pairs import Pairs, Pairwise
from pe.nearest.rounding import LARGEST, Bytes, Rounding, margins, multiply
from pe.nearest.sketch import GIVE_UP
from pe.nearest.threads import ALONE, Begin, Threads
from pe.nearest.torch_backend import import_torch

if TYPE_CHECKING:
    from torch import Tensor

Whole = npt.NDArray[np.int32]

_ROWS, _COLUMNS = 512, 4096  # queries and candidates multiplied together: the products stay in the cache
_GROUP = 32  # candidates of which only the largest product is looked at first
_LIKELY = 3  # groups, beyond q, the best of which are computed to learn which other candidates come into question
_ALIGNED = 4  # bytes that the processor multiplies at once
_LEAST, _MOST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


class ByteSearch:
    """Products i·j − ½|j|² of rounded vectors, in whole numbers, tell whose distances are computed.

    A query that leaves too many gets none, with 0 as the bound on the others: it is left to the next search.

    Attributes:
        returned: float32.
        sieve: float32: what 8 of pe/nearest/margin.py leaves of the distances of rounded vectors is a lower bound.
        threads: as given, with one core for torch.
    """

    returned = sieve = Arithmetic(FLOAT32)

    def __init__(
        self, candidates: Vectors, rounding: Rounding, q: int, pairwise: Pairwise, threads: Threads = ALONE
    ) -> None:
        """Search these candidates, m×d, for the q nearest.

        Args:
            candidates: m×d.
            rounding: into bytes.
            q: neighbours per query.
            pairwise: computes whole distances.
            threads: may share the queries; they keep `pairwise` to one core.

        Raises:
            MissingDependency: torch is not installed.
        """
        torch = import_torch()
        self._candidates, self._rounding, self._q, self._pairwise = candidates, rounding, q, pairwise
        self.threads = replace(threads, limits=(*threads.limits, _one_core))
        given = rounding(candidates)
        halves, (m, d) = given.squares // 2, candidates.shape
        self._middle = int(halves.min() + halves.max()) // 2
        digits, weights = _digits(halves - self._middle)
        self._weights = np.pad(weights, (0, -(d + len(weights)) % _ALIGNED))
        factors = np.zeros((m + -m % _GROUP, d + len(self._weights)), np.int8)
        factors[:m, :d], factors[:m, d : d + len(weights)] = given.whole, digits
        factors[m:] = factors[m - 1]  # the last candidate again: it fills its group
        self._factors = torch.from_numpy(factors)
        self._given = given._replace(whole=given.whole[:0])  # what margins are taken from

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The candidates that come into question, at most k of them: places are left empty."""
        import torch

        with torch.inference_mode():
            room = torch.empty(min(len(queries), _ROWS) * min(len(self._factors), _COLUMNS), dtype=torch.int32)
            found = [self._some(queries[i : i + _ROWS], k, room) for i in range(0, len(queries), _ROWS)]
        return Found(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def _some(self, queries: Vectors, k: int, room: Tensor) -> Found:
        """The same for a block of queries. `room` is for its products."""
        n, m = len(queries), len(self._candidates)
        given = self._rounding(queries)
        squares, margin = given.squares, margins(given, self._given)
        factors = _tensor(np.hstack([given.whole, np.broadcast_to(self._weights, (n, len(self._weights)))]))
        pairs, left, limit = Pairs(n, self._q), np.zeros(n, np.int64), np.full(n, _LEAST + 1, np.int64)
        for start in range(0, len(self._factors), _COLUMNS):
            part = self._factors[start : start + _COLUMNS]
            products = multiply(factors, part, out=room[: n * len(part)].view(n, -1)).view(n, -1, _GROUP)
            best, values = products.amax(2).numpy(), products.numpy()
            if not start:
                self._compute(queries, *_likely(values, best, self._q + _LIKELY), pairs)
                limit = self._limit(pairs.near[:, -1], squares, *margin)
            rows, columns = _taken(values, best, limit)
            left += np.bincount(rows, minlength=n)
            limit[left > GIVE_UP * m] = _MOST
            kept = limit[rows] < _MOST
            self._compute(queries, rows[kept], columns[kept] + start, pairs)
            limit = np.maximum(limit, self._limit(pairs.near[:, -1], squares, *margin))
        return pairs.found(k, self._beyond(limit, squares, *margin))

    def _compute(self, queries: Vectors, rows: Integers, columns: Integers, pairs: Pairs) -> None:
        """Add these pairs and their distances."""
        once = columns < len(self._candidates)
        rows, columns = rows[once], columns[once]
        pairs.add(rows, columns, self._pairwise(queries, self._candidates, rows, columns).astype(np.float64))

    def _beyond(self, limit: Integers, squares: Integers, apart: Reals, lost: Reals) -> Reals:
        """A lower bound on the squared distance of all candidates whose product is below the limit."""
        return rounded(self._rounding.scale**2 * (squares - 2.0 * (limit - 1 - self._middle)), apart, lost)

    def _limit(self, near: Reals, squares: Integers, apart: Reals, lost: Reals) -> Integers:
        """The product from which a rounded candidate leaves open whether it is among the q nearest.

        Low enough for the bounds of pe/nearest/margin.py to certify an answer; no answer relies on it.
        """
        reach, most = np.maximum(near, 0), self._rounding.scale * np.sqrt(squares) + apart
        room = 4 * self.sieve.slack(self._candidates.shape[1]) * (2 * most + np.sqrt(reach)) ** 2
        wanted = np.minimum(np.square(np.sqrt(reach + room) + apart), reach + room + lost) / self._rounding.scale**2
        return np.clip((squares - wanted) / 2 + self._middle, _LEAST + 1, _MOST - 1).astype(np.int64)


@contextmanager
def _one_core() -> Iterator[Begin]:
    """Meanwhile torch uses one core in threads that call what this gives."""
    torch = import_torch()
    before = torch.get_num_threads()
    try:
        yield partial(torch.set_num_threads, 1)
    finally:
        torch.set_num_threads(before)  # threads that begin later take the last setting made anywhere


def _digits(numbers: Integers) -> tuple[Bytes, Bytes]:
    """Bytes (m×e) and weights (e) of which −numbers are the sums of products, exactly."""
    digits, weights = [], []
    while np.abs(numbers).max() > LARGEST:
        digits.append(np.clip(np.rint(numbers / LARGEST), -LARGEST, LARGEST).astype(np.int8))
        weights.append(-LARGEST)
        numbers = numbers - LARGEST * digits[-1].astype(np.int64)
    return np.stack([*digits, numbers.astype(np.int8)], axis=1), np.array([*weights, -1], np.int8)


def _tensor(rows: Bytes) -> Tensor:
    import torch

    return torch.from_numpy(rows)


def _likely(values: Whole, best: Whole, count: int) -> tuple[Integers, Integers]:
    """Rows (queries) and columns (candidates) of the largest products of `count` groups, and never again."""
    count = min(count, best.shape[1])
    groups = np.argpartition(best, -count, axis=1)[:, -count:].ravel()
    rows = np.repeat(np.arange(len(best)), count)
    places = values[rows, groups].argmax(axis=1)
    values[rows, groups, places] = _LEAST
    return rows, groups * _GROUP + places


def _taken(values: Whole, best: Whole, limit: Integers) -> tuple[Integers, Integers]:
    """Rows and columns of products from their query's limit on."""
    rows, groups = np.nonzero(best >= limit.astype(np.int32)[:, None])
    some, places = np.nonzero(values[rows, groups] >= limit[rows][:, None])
    return rows[some], groups[some] * _GROUP + places
