"""The candidates' embeddings: the mean embedding of k variations of each (§4.1 of the paper, "lookahead")."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Protocol, TypeVar

import numpy as np

from pe.data.arrays import Int64Array
from pe.data.population import Mask, Members, Population
from pe.data.samples import Samples, distinct
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.progress import Progress, Task

Items = Int64Array
Rows = TypeVar("Rows", Items, Samples)


class LookaheadAPI(Protocol):
    """The source of variations: pe.dispatch's dispatcher."""

    def lookahead(self, t: int, population: Population, k: int, degree: float) -> Generator[tuple[Items, Samples]]:
        """Yield k variations of every member, chunk by chunk: (their parents' indices, ascending; the variations)."""
        ...


def lookahead_embeddings(
    population: Population, t: int, k: int, degree: float, api: LookaheadAPI, cache: KeptVectors
) -> Vectors:
    """Return the vectors that the private records vote for at iteration t.

    Args:
        population: S_{t-1}, n members.
        t: the iteration, ≥ 1.
        k: variations per member; 0 takes the members' own embeddings.
        degree: variation in [0, 1], as for this iteration's offspring.
        api: asked for k·n variations.
        cache: maps samples to vectors, and remembers the vectors of members that were kept.

    Returns:
        float32 (n, d), overwritten by the next call. A member has its own embedding if none of its variations has
        a finite vector.
    """
    if k == 0:
        return cache.embed(population.samples)
    embedding = cache.embedding
    total: Vectors | None = None
    count = np.zeros(len(population), dtype=np.int64)
    variations = api.lookahead(t, population, k, degree)
    with closing(variations):  # where embedding fails, what was asked for by then is kept
        for members, samples in variations:
            for batch, vectors in zip(_batches(members, embedding), embed_batches(embedding, samples), strict=True):
                if total is None:
                    total = cache.room(len(population), vectors.shape[1])
                finite = np.isfinite(vectors).all(axis=1)
                if not finite.all():
                    batch, vectors = batch[finite], vectors[finite]
                if batch.size:
                    _add_runs(total, count, batch, vectors)
    if total is None:
        return embed(embedding, population.samples)
    alone = np.flatnonzero(count == 0)
    if alone.size:
        total[alone] = embed(embedding, population.samples.take(alone))
    if count.max() > 1:
        total /= np.maximum(count, 1).astype(np.float32)[:, None]
    return total


class KeptVectors:
    """The members' own embeddings: a member that is kept from population to population is embedded once.

    A sample's vector does not depend on its batch, so a resumed run, which remembers nothing, gets equal vectors.
    """

    def __init__(self, embedding: Embedding, progress: Progress) -> None:
        self.embedding, self._progress = embedding, progress
        self._vectors: Vectors | None = None
        self._row: Items | None = None  # each member's row of `_vectors`; −1: it has none
        self._room = np.empty(0, np.float32)

    def room(self, rows: int, columns: int) -> Vectors:
        """Return float32 (rows, columns), uninitialised, in memory that is reused: new memory costs more than sums."""
        if self._room.size < rows * columns:
            self._room = np.empty(rows * columns, np.float32)
        return self._room[: rows * columns].reshape(rows, columns)

    def embed(self, samples: Samples) -> Vectors:
        """Return the embeddings of the members' `samples`, float32 (n, d); remembered ones are not computed again."""
        with self._progress.task("candidates embedded", len(samples)) as task:
            if self._vectors is None or self._row is None:
                vectors = embed(self.embedding, samples, task)
            else:
                new = np.flatnonzero(self._row < 0)
                task.advance(len(samples) - new.size)
                vectors = self._vectors[self._row]
                if new.size:
                    vectors[new] = embed(self.embedding, samples.take(new), task)
        self._vectors, self._row = vectors, np.arange(len(samples))
        return vectors

    def follow(self, members: Members) -> Mask:
        """Go on to the next population, which has these `members`; return the mask of its kept members, bool (n,)."""
        if self._row is not None:
            self._row = np.where(members.survives, self._row[members.parents], -1)
            if (self._row < 0).all():
                self._vectors = self._row = None
        return members.survives


def embed(embedding: Embedding, samples: Samples, task: Task | None = None) -> Vectors:
    """Return the embeddings of public samples, float32 (n, d). Equal samples, as a pool gives them, are embedded once.

    `task` counts the samples that are done.
    """
    task = task or Task()
    first, place = distinct(samples)
    once = samples if len(first) == len(samples) else samples.take(first)
    task.advance(len(samples) - len(once))
    batches = []
    for vectors in embed_batches(embedding, once):
        batches.append(vectors)
        task.advance(len(vectors))
    together = np.concatenate(batches)
    return together if once is samples else together[place]


def embed_batches(embedding: Embedding, samples: Samples) -> Iterator[Vectors]:
    """Yield the embeddings of public samples, batch by batch of the embedding's size, float32 (≤ batch_size, d)."""
    for batch in _batches(samples, embedding):
        yield embed_block(embedding, batch)


def _batches(rows: Rows, embedding: Embedding) -> Iterator[Rows]:
    size = embedding.batch_size
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield rows[part] if isinstance(rows, np.ndarray) else rows.take(part)


def _add_runs(total: Vectors, count: Items, members: Items, vectors: Vectors) -> None:
    """Add vectors[i] to total[members[i]], or replace a total of count 0, and count each vector; `members` ascend."""
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    lengths = np.diff(starts, append=len(members))
    new = count[members[starts]] == 0
    if not new.all():
        total[members[starts[new]]] = 0
    for place in range(lengths.max()):
        runs = starts[lengths > place]
        rows, more = _evenly(members[runs]), vectors[_evenly(runs + place)]
        if place == 0 and new.all():
            total[rows] = more
        else:
            total[rows] += more
    count[members[starts]] += lengths


def _evenly(indices: Items) -> slice | Items:
    """Return ascending indices as a slice where they are evenly spaced, which spares a copy."""
    step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
    even = len(indices) == 1 or bool((np.diff(indices) == step).all())
    return slice(int(indices[0]), int(indices[-1]) + 1, step) if even else indices
