"""The candidates' embeddings: the mean embedding of k variations of each (§4.1 of the paper, "lookahead")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.samples import Samples
from pe.protocols import Embedding, Vectors, check_vectors

Items = npt.NDArray[np.int64]


class LookaheadAPI(Protocol):
    """Where the variations come from: pe.run's dispatcher."""

    def lookahead(
        self, t: int, population: Population, parents: Items, degree: float
    ) -> Iterable[tuple[Items, Samples]]:
        """Variations of `parents`, chunk by chunk: (indices into `parents`, samples)."""
        ...


def lookahead_embeddings(
    population: Population, t: int, k: int, degree: float, api: LookaheadAPI, embedding: Embedding
) -> Vectors:
    """What the private records compare themselves with at iteration t.

    Args:
        population: S_{t-1}, n members.
        t: the iteration, ≥ 1.
        k: variations per member; 0 takes the members' own embeddings.
        degree: variation in [0, 1], that of this iteration's offspring.
        api: asked for k·n variations.
        embedding: maps samples to vectors.

    Returns:
        float32 (n, d). A member all of whose variations were refused is represented by itself.
    """
    if k == 0:
        return embed(embedding, population.samples)
    parents = np.repeat(np.arange(len(population)), k)
    total: npt.NDArray[np.float64] | None = None
    count = np.zeros(len(population), dtype=np.int64)
    for items, samples in api.lookahead(t, population, parents, degree):
        members, starts = _runs(parents[items])
        sums = np.add.reduceat(embed(embedding, samples).astype(np.float64), starts, axis=0)
        if total is None:
            total = np.zeros((len(population), sums.shape[1]))
        np.add.at(total, members, sums)
        count += np.bincount(parents[items], minlength=len(population))
    if total is None:
        return embed(embedding, population.samples)
    mean = (total / np.maximum(count, 1)[:, None]).astype(np.float32)
    alone = np.flatnonzero(count == 0)
    if alone.size:
        mean[alone] = embed(embedding, population.samples.take(alone))
    return mean


def embed(embedding: Embedding, samples: Samples) -> Vectors:
    """The embeddings of public samples, float32 (n, d), in batches of the embedding's own size."""
    size = embedding.batch_size
    starts = range(0, len(samples), size)
    batches = (samples.take(slice(start, start + size)) for start in starts)
    return np.concatenate([check_vectors(embedding, embedding.embed(batch), len(batch)) for batch in batches])


def _runs(sorted_values: Items) -> tuple[Items, Items]:
    """The distinct values of runs in order, and where each run starts."""
    starts = np.flatnonzero(np.diff(sorted_values, prepend=-1))
    return sorted_values[starts], starts
