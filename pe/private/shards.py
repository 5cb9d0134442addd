"""Which records go together: all of a unit's in one shard, so that its votes are scaled together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pe.private.dataset import Units
from pe.private.embeddings import PrivateEmbeddings

SHARD_BYTES = 2**25
"""Bytes of a shard's vectors, on the average: enough to be worth a message, few enough to hold many at a time."""
_PIECE = 2**20  # units looked at together, so that memory holds no second array of all


def shards(private: PrivateEmbeddings, count: int, key: int) -> Iterator[PrivateEmbeddings]:
    """The records in `count` parts, some of which may be empty; each is read when it is asked for. CONFIDENTIAL.

    Args:
        private: all records.
        count: ≥ 1.
        key: random, 64 bits.
    """
    for rows in parts(private.units, count, key):
        vectors = np.array(private.vectors[rows], subok=False)
        yield PrivateEmbeddings(vectors, private.labels[rows], private.units[rows], private.classes)


def parts(units: Units, count: int, key: int) -> Iterator[slice | Units]:
    """The rows of the records of these units in `count` parts, some of which may be empty. CONFIDENTIAL.

    Guarantee: all records of a unit are in one part, so the parts' votes add up to the votes of all.

    Args:
        units: of all records.
        count: ≥ 1.
        key: random, 64 bits: which units go together, nobody can choose. It changes no sum.
    """
    if count == 1 or _in_order(units):  # each record is its own unit
        for start, stop in pairwise(len(units) * number // count for number in range(count + 1)):
            yield slice(start, stop)
        return
    places = place(units, count, key)
    for number in range(count):
        yield np.flatnonzero(places == number)


def place(units: Units, count: int, key: int) -> npt.NDArray[np.unsignedinteger]:
    """In which of `count` shards each unit is, by a keyed hash (the finaliser of SplitMix64)."""
    places = np.empty(len(units), np.min_scalar_type(count))
    for at in range(0, len(units), _PIECE):
        mixed = units[at : at + _PIECE].astype(np.uint64) + np.uint64(key)  # modulo 2⁶⁴
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        places[at : at + _PIECE] = mixed % np.uint64(count)
    return places


def _in_order(units: Units) -> bool:
    """Whether they are 0, 1, 2 and so on."""
    starts = range(0, len(units), _PIECE)
    return all(np.array_equal(units[at : at + _PIECE], np.arange(at, min(at + _PIECE, len(units)))) for at in starts)
