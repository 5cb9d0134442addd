"""Which candidates take part: finite ones, each vector once, under its lowest index."""

from __future__ import annotations

import numpy as np

from pe.nearest.margin import Integers, Vectors

_BLOCK = 2**18  # elements looked at together: they stay in the cache


def distinct(candidates: Vectors) -> Integers:
    """The index of the first occurrence of each finite vector, ascending; −0.0 and 0.0 are the same."""
    first: dict[int, list[int]] = {}
    kept: list[int] = []
    step = max(1, _BLOCK // candidates.shape[1])
    for start in range(0, len(candidates), step):
        block = candidates[start : start + step] + np.float32(0)  # −0.0 + 0.0 = 0.0: equal vectors, equal bytes
        for offset in np.flatnonzero(np.isfinite(block).all(axis=1)):
            row = block[offset]
            alike = first.setdefault(hash(row.tobytes()), [])
            if not any(np.array_equal(row, candidates[other]) for other in alike):
                alike.append(start + int(offset))
                kept.append(start + int(offset))
    return np.array(kept, np.int64)
