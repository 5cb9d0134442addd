"""The private records' embeddings, computed once."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.arrays import BoolArray
from pe.data.population import open_table
from pe.data.quiet import quiet
from pe.data.samples import Samples, mix
from pe.errors import ContractError
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.private.dataset import Labels, PrivateDataset, Units

FILE = "private_embeddings.npy"

SPARE = 1.1
"""Up to this many times the declared size, the number of records does not show in the number of
blocks."""

EmbedBlocks = Callable[[Embedding, Iterator[Samples]], Iterator[Vectors]]
"""A function like `embed_blocks`, which may do its work elsewhere."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class PrivateEmbeddings:
    """The private records as vectors.

    Everything but `classes` is confidential, the length included.
    """

    vectors: Vectors  # float32 (n, d); a row of NaN casts no vote. May be memory-mapped
    labels: Labels  # int32 (n,), indices into `classes`
    units: Units  # int64 (n,); equal numbers are one privacy unit
    classes: tuple[str, ...]  # the public label names

    def __len__(self) -> int:
        """The number of records. Confidential."""
        return len(self.labels)

    def __repr__(self) -> str:
        return f"PrivateEmbeddings(classes={self.classes})"


def embed_blocks(embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
    """Yield the vectors of each block, in order (see `embed_block`).

    Meanwhile no warning of a library is printed.
    """
    for samples in blocks:
        with quiet():
            answer = embed_block(embedding, samples)
        yield answer


def embed_private(
    dataset: PrivateDataset,
    embedding: Embedding,
    folder: Path | None,
    embed: EmbedBlocks = embed_blocks,
) -> PrivateEmbeddings:
    """Embed all private records, in padded blocks of exactly `embedding.batch_size`.

    Guarantee: given an embedding that treats each sample alone, as the protocol asks, a record's
    row is a function of that record alone; the shape of a call never depends on how many records
    there are, nor does the number of calls while there are no more than SPARE times the declared
    size. Nothing is printed or timed.

    Edge cases: a record that cannot be decoded or embedded, or whose vector is not finite, becomes
    a row of NaN; the log names it. No record at all: padding is embedded to learn d, and the answer
    is (0, d). If no record can vote, the log says so and the run goes on, as it would over a
    neighbouring data set in which one can.

    Args:
        dataset: the private records.
        embedding: is handed private samples and keeps none.
        folder: the run's confidential folder, for `private_embeddings.npy`, mapped read-only; None:
            all in memory.
        embed: embeds the blocks.

    Raises:
        PEError: the embedding's batch_size or dimension is wrong, it fails even on blank samples
            (see `embed_block`), or the source as a whole is gone.
    """
    size = embedding.batch_size
    if not isinstance(size, int) or size < 1:
        raise ContractError(
            f"{type(embedding).__name__}.batch_size is {size!r}: it must be a whole number ≥ 1."
        )
    if folder is None:
        vectors = _embed(dataset, embedding, None, embed)
        return PrivateEmbeddings(vectors, dataset.labels, dataset.units, dataset.classes)
    # A file of the final name is whole, even after a crash.
    part = folder / f"{FILE}.part"
    path = folder / FILE
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
    """Load the embeddings that `embed_private` wrote for the same records, memory-mapped.

    Confidential.
    """
    mode: Literal["r"] | None = "r" if len(dataset) else None
    vectors = np.load(folder / FILE, mmap_mode=mode, allow_pickle=False)
    return PrivateEmbeddings(vectors, dataset.labels, dataset.units, dataset.classes)


def _embed(
    dataset: PrivateDataset,
    embedding: Embedding,
    path: Path | None,
    embed: EmbedBlocks,
) -> Vectors:
    count = len(dataset)
    size = embedding.batch_size
    vectors: Vectors | None = None
    any_usable = False
    masks: deque[BoolArray] = deque()  # of the blocks under way

    def blocks() -> Iterator[Samples]:
        # as many as the declared size asks for, and one at least
        most = max(1, blocks_for(dataset.declared_size or 0, size))
        for samples, valid in dataset.blocks(size):
            masks.append(valid)
            yield samples
        for _ in range(-(-count // size), most):
            masks.append(np.zeros(size, np.bool_))
            yield dataset.modality.stack([None] * size, dataset.shape)

    for number, answer in enumerate(embed(embedding, blocks())):
        start = number * size
        if vectors is None:
            vectors = _table(path, (count, answer.shape[1]))
        if answer.shape[1] != vectors.shape[1]:
            raise ContractError(
                f"{type(embedding).__name__}.embed changed its dimension between two batches."
            )
        usable = masks.popleft() & np.isfinite(answer).all(axis=1)
        rows = vectors[start : start + size]  # of padding there are none
        rows[:] = np.where(usable[:, None], answer, np.nan)[: len(rows)]
        any_usable |= bool(usable[: len(rows)].any())
        for index in start + np.flatnonzero(~usable[: len(rows)]):
            log.warning("Record %d casts no vote: it has no finite vector.", index)
    assert vectors is not None
    if not any_usable:
        log.warning("Not one record has a finite vector, or there is none: all votes are noise.")
    if isinstance(vectors, np.memmap):
        vectors.flush()
    return vectors


def blocks_for(declared_size: int, batch_size: int) -> int:
    """Return the number of blocks, ≥ 0, that hold SPARE times as many records as are declared."""
    return -(-math.ceil(declared_size * SPARE) // batch_size)


def _table(path: Path | None, shape: tuple[int, int]) -> Vectors:
    if path is None:
        return np.empty(shape, dtype=np.float32)
    if shape[0] == 0:  # an empty file cannot be mapped
        with path.open("wb") as file:
            np.save(file, np.empty(shape, dtype=np.float32))
        return np.empty(shape, dtype=np.float32)
    return open_table(path, np.dtype(np.float32), shape)


# Shards of the records: all of a unit's records are in one shard, so that its votes are scaled
# together.

SHARD_BYTES = 2**25
"""Bytes of a shard's vectors, on the average: enough to be worth a message, few enough to hold many
at a time."""


def shards(
    private: PrivateEmbeddings,
    count: int,
    key: int,
) -> Iterator[PrivateEmbeddings]:
    """Cut the records into `count` shards by `parts`, and read each when it is asked for.

    CONFIDENTIAL.
    """
    for rows in parts(private.units, count, key):
        vectors = np.array(private.vectors[rows], subok=False)
        yield PrivateEmbeddings(vectors, private.labels[rows], private.units[rows], private.classes)


def parts(units: Units, count: int, key: int) -> Iterator[slice | Units]:
    """Cut records into `count` ≥ 1 parts by their units, and yield each part's rows. CONFIDENTIAL.

    Some parts may be empty.

    Guarantee: all records of a unit are in one part, so the parts' votes add up to the votes of
    all.

    The `key`, 64 random bits, decides which units share a part, so that nobody can choose it. No
    sum depends on it.
    """
    if count == 1 or np.array_equal(units, np.arange(len(units))):
        # each record is its own unit
        for start, stop in pairwise(len(units) * number // count for number in range(count + 1)):
            yield slice(start, stop)
        return
    places = shard_of(units, count, key)
    for number in range(count):
        yield np.flatnonzero(places == number)


def shard_of(units: Units, count: int, key: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the number of each record's shard, in [0, count), by a keyed hash of its unit."""
    hashes = mix(units.astype(np.uint64) + np.uint64(key))  # modulo 2⁶⁴
    return (hashes % np.uint64(count)).astype(np.min_scalar_type(count))
