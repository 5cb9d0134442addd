"""The candidates' embeddings.

With "lookahead" (§4.1 of the paper), a candidate's embedding is the mean over k variations of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from pe.data.arrays import Int64Array
from pe.data.population import Mask, Members, Population
from pe.data.samples import Samples, distinct, slices
from pe.dispatch.dispatcher import Dispatcher
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.progress import Progress, Task

Items = Int64Array


def lookahead_embeddings(
    population: Population,
    t: int,
    k: int,
    degree: float,
    api: Dispatcher,
    cache: EmbeddingCache,
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
        float32 (n, d). A member has its own embedding if none of its variations has a finite
        vector.
    """
    if k == 0:
        return cache.embed(population.samples)
    embedding = cache.embedding
    total: Vectors | None = None
    count = np.zeros(len(population), dtype=np.int64)
    variations = api.lookahead(t, population, k, degree)
    with closing(variations):  # where embedding fails, what was asked for by then is kept
        for members, samples in variations:
            parts = slices(len(members), embedding.batch_size)
            for part, vectors in zip(parts, embed_batches(embedding, samples), strict=True):
                if total is None:
                    total = np.zeros((len(population), vectors.shape[1]), np.float32)
                finite = np.isfinite(vectors).all(axis=1)
                _add(total, count, members[part][finite], vectors[finite])
    if total is None:
        return embed(embedding, population.samples)
    alone = np.flatnonzero(count == 0)
    if alone.size:
        total[alone] = embed(embedding, population.samples.take(alone))
    if count.max() > 1:
        total /= np.maximum(count, 1).astype(np.float32)[:, None]
    return total


class EmbeddingCache:
    """Remembers the members' own embeddings, so that a kept member is embedded once.

    A sample's vector does not depend on its batch, so a resumed run, which remembers nothing, gets
    equal vectors.
    """

    def __init__(self, embedding: Embedding, progress: Progress) -> None:
        self.embedding = embedding
        self._progress = progress
        self._vectors: Vectors | None = None
        self._row: Items | None = None  # each member's row of `_vectors`; −1: it has none

    def embed(self, samples: Samples) -> Vectors:
        """Return the embeddings of the members' `samples`, float32 (n, d).

        Remembered ones are not computed again.
        """
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
        """Go on to the next population, which has these `members`.

        Return the mask of its kept members, bool (n,).
        """
        if self._row is not None:
            self._row = np.where(members.survives, self._row[members.parents], -1)
            if (self._row < 0).all():
                self._vectors = self._row = None
        return members.survives


def embed(embedding: Embedding, samples: Samples, task: Task | None = None) -> Vectors:
    """Return the embeddings of public samples, float32 (n, d).

    Equal samples, as a pool gives them, are embedded once.

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
    """Yield the embeddings of public samples, float32 (≤ batch_size, d), one batch at a time."""
    for part in slices(len(samples), embedding.batch_size):
        yield embed_block(embedding, samples.take(part))


def _add(total: Vectors, count: Items, members: Items, vectors: Vectors) -> None:
    """Add vectors[i] to total[members[i]], and count each vector. `members` ascend."""
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    lengths = np.diff(starts, append=len(members))
    # the first vector of each member, then the second, …
    for place in range(max(lengths, default=0)):
        rows = starts[lengths > place]
        total[members[rows]] += vectors[rows + place]
    count[members[starts]] += lengths
