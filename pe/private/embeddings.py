"""The private records' embeddings, computed once."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as count_from
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.population import open_table, write_rows
from pe.data.quiet import quiet
from pe.data.samples import Samples
from pe.errors import ContractError
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.private.dataset import Labels, PrivateDataset, Units

FILE = "private_embeddings.npy"

SPARE = 1.1
"""How many times the declared size the records may be before their number shows in the number of blocks."""

EmbedBlocks = Callable[[Embedding, Iterator[Samples]], Iterator[Vectors]]
"""What `embed_blocks` does, wherever it is done."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class PrivateEmbeddings:
    """The private records as vectors. Everything but `classes` is confidential, the length included.

    Attributes:
        vectors: float32 (n, d); a row of NaN casts no vote. May be memory-mapped.
        labels: int32 (n,), indices into `classes`.
        units: int64 (n,); equal numbers are one privacy unit.
        classes: the public label names.
    """

    vectors: Vectors
    labels: Labels
    units: Units
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """The number of records. Confidential."""
        return len(self.labels)

    def __repr__(self) -> str:
        return f"PrivateEmbeddings(classes={self.classes})"


def embed_blocks(embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
    """The vectors of each block, in order (see `embed_block`). Nothing of them is printed."""
    for samples in blocks:
        with quiet():
            answer = embed_block(embedding, samples)
        yield answer


def embed_private(
    dataset: PrivateDataset, embedding: Embedding, folder: Path | None, embed: EmbedBlocks = embed_blocks
) -> PrivateEmbeddings:
    """Embed all private records, in padded blocks of exactly `embedding.batch_size`.

    Guarantee: given an embedding that treats each sample alone, as the protocol asks, a record's row is
    a function of that record alone; the shape of a call never depends on how many records there are, nor does the
    number of calls while there are no more than SPARE times the declared size. Nothing is printed or timed.

    Edge cases: a record that cannot be decoded or embedded, or whose vector is not finite, becomes a row of NaN; the
    log names it. No record at all: padding is embedded to learn d, and the answer is (0, d). If not one can vote, the
    log says so and the run goes on, as its neighbour with one that can.

    Args:
        dataset: the private records.
        embedding: is handed private samples and keeps none.
        folder: where `private_embeddings.npy` is written, under a temporary name first; it must be the
            run's confidential folder. None keeps the vectors in memory.
        embed: who embeds the blocks.

    Returns:
        The vectors, memory-mapped read-only where there is a folder.

    Raises:
        ContractError: the embedding's batch_size is wrong, or it changes its dimension.
        PEError: it fails on blank samples, too (see `embed_block`).
        PrivateDataError: the source as a whole is gone or unreadable.
    """
    size = embedding.batch_size
    if not isinstance(size, int) or size < 1:
        raise ContractError(f"{type(embedding).__name__}.batch_size is {size!r}: it must be a whole number ≥ 1.")
    if folder is None:
        return _bind(dataset, _embed(dataset, embedding, None, embed))
    part, path = folder / f"{FILE}.part", folder / FILE
    try:
        _embed(dataset, embedding, part, embed)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return load_private(dataset, folder)


def load_private(dataset: PrivateDataset, folder: Path) -> PrivateEmbeddings:
    """The embeddings that `embed_private` wrote to `folder` for the same records, memory-mapped. Confidential."""
    mode: Literal["r"] | None = "r" if len(dataset) else None
    return _bind(dataset, np.load(folder / FILE, mmap_mode=mode, allow_pickle=False))


def _bind(dataset: PrivateDataset, vectors: Vectors) -> PrivateEmbeddings:
    return PrivateEmbeddings(vectors, dataset.labels, dataset.units, dataset.classes)


def _embed(dataset: PrivateDataset, embedding: Embedding, path: Path | None, embed: EmbedBlocks) -> Vectors:
    count, size = len(dataset), embedding.batch_size
    vectors: Vectors | None = None
    any_usable = False
    masks: deque[npt.NDArray[np.bool_]] = deque()  # of the blocks under way

    def blocks() -> Iterator[Samples]:
        for samples, valid in _blocks(dataset, size):
            masks.append(valid)
            yield samples

    for start, answer in zip(count_from(0, size), embed(embedding, blocks()), strict=False):
        if vectors is None:
            vectors = _table(path, (count, answer.shape[1]))
        if answer.shape[1] != vectors.shape[1]:
            raise ContractError(f"{type(embedding).__name__}.embed changed its dimension between two batches.")
        usable = masks.popleft() & np.isfinite(answer).all(axis=1)
        rows = max(0, min(size, count - start))
        write_rows(vectors, slice(start, start + rows), answer[:rows])
        any_usable |= bool(usable[:rows].any())
        unusable = start + np.flatnonzero(~usable[:rows])
        vectors[unusable] = np.nan
        for index in unusable:
            log.warning("Record %d casts no vote: it has no finite vector.", index)
    assert vectors is not None
    if not any_usable:
        log.warning("Not one record has a finite vector, or there is none: all votes are noise.")
    if isinstance(vectors, np.memmap):
        vectors.flush()
    return vectors


def _blocks(dataset: PrivateDataset, size: int) -> Iterator[tuple[Samples, npt.NDArray[np.bool_]]]:
    """The records' blocks, and blank ones up to the number that the declared size comes to, or to one."""
    most = max(1, blocks_for(dataset.declared_size or 0, size))
    seen = 0
    for block in dataset.blocks(size):
        seen += 1
        yield block
    for _ in range(seen, most):
        yield dataset.padding(size)


def blocks_for(declared_size: int, batch_size: int) -> int:
    """In how many blocks a data set of about this declared size is embedded, ≥ 0."""
    return -(-math.ceil(declared_size * SPARE) // batch_size)


def _table(path: Path | None, shape: tuple[int, int]) -> Vectors:
    if path is None:
        return np.empty(shape, dtype=np.float32)
    if shape[0] == 0:  # an empty file cannot be mapped
        with path.open("wb") as file:
            np.save(file, np.empty(shape, dtype=np.float32))
        return np.empty(shape, dtype=np.float32)
    return open_table(path, np.dtype(np.float32), shape)


# Which records go together: all of a unit's in one shard, so that its votes are scaled together.


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
