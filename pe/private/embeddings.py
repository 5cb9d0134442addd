"""The private records' embeddings, computed once."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pe.data.columns import open_table
from pe.data.quiet import quiet
from pe.data.samples import Images
from pe.errors import ContractError, PEError
from pe.private.dataset import Labels, PrivateDataset, Units
from pe.protocols import Embedding, Vectors, check_vectors

FILE = "private_embeddings.npy"

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


def embed_private(dataset: PrivateDataset, embedding: Embedding, folder: Path | None) -> PrivateEmbeddings:
    """Embeds all private records, in padded blocks of exactly `embedding.batch_size`.

    Guarantee: given an embedding that treats each sample alone, as the protocol asks, a record's row is
    a function of that record alone; the shape of a call never depends on how many records there are.
    Nothing is printed, logged or timed.

    Edge cases: a record that cannot be decoded, or whose vector is not finite, becomes a row of NaN.
    No record at all: one block of padding is embedded to learn d, and the answer is (0, d).

    Args:
        dataset: the private records.
        embedding: is handed private samples and keeps none.
        folder: where `private_embeddings.npy` is written, under a temporary name first; it must be the
            run's confidential folder. None keeps the vectors in memory.

    Returns:
        The vectors, memory-mapped read-only where there is a folder.

    Raises:
        ContractError: the embedding's batch_size, or the shape or dtype of an answer, is wrong; or it raised what is no
            PEError.
        PrivateDataError: the source as a whole is gone or unreadable.
    """
    size = embedding.batch_size
    if not isinstance(size, int) or size < 1:
        raise ContractError(f"{type(embedding).__name__}.batch_size is {size!r}: it must be a whole number ≥ 1.")
    if folder is None:
        return _bind(dataset, _embed(dataset, embedding, None))
    part, path = folder / f"{FILE}.part", folder / FILE
    try:
        _embed(dataset, embedding, part)
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


def _embed(dataset: PrivateDataset, embedding: Embedding, path: Path | None) -> Vectors:
    count, size = len(dataset), embedding.batch_size
    vectors: Vectors | None = None
    blocks = dataset.blocks(size) if count else iter([dataset.padding(size)])
    for start, (images, valid) in zip(range(0, max(count, 1), size), blocks, strict=True):
        answer = check_vectors(embedding, _embedded(embedding, images), size)
        if vectors is None:
            vectors = _table(path, (count, answer.shape[1]))
        if answer.shape[1] != vectors.shape[1]:
            raise ContractError(f"{type(embedding).__name__}.embed changed its dimension between two batches.")
        usable = valid & np.isfinite(answer).all(axis=1)
        rows = min(size, count - start)
        vectors[start : start + rows] = answer[:rows]
        vectors[start + np.flatnonzero(~usable[:rows])] = np.nan
    assert vectors is not None
    if isinstance(vectors, np.memmap):
        vectors.flush()
    return vectors


def _embedded(embedding: Embedding, images: Images) -> Vectors:
    """What the embedding answers; what it says, or its library, when it fails is for the confidential log alone."""
    try:
        with quiet():
            return embedding.embed(images)
    except PEError:
        raise
    except Exception as error:
        log.error("The embedding failed.", exc_info=error)
        failed = type(error).__name__
    raise ContractError(f"{type(embedding).__name__}.embed failed on private images ({failed}): the log says why.")


def _table(path: Path | None, shape: tuple[int, int]) -> Vectors:
    if path is None:
        return np.empty(shape, dtype=np.float32)
    if shape[0] == 0:  # an empty file cannot be mapped
        with path.open("wb") as file:
            np.save(file, np.empty(shape, dtype=np.float32))
        return np.empty(shape, dtype=np.float32)
    return open_table(path, np.dtype(np.float32), shape)
