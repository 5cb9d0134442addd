"""Samples as an embedding sees them: their moments, and some of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.samples import Samples
from pe.data.seeds import generator
from pe.errors import ContractError, RecipeError
from pe.evaluation.frechet import Moments, StreamedMoments
from pe.lookahead import embed_batches
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, PluginInfo, Vectors, info_of
from pe.plugins.specs import PluginSpec
from pe.private.digests import sample_digest
from pe.progress import Task

KEPT = 10_000
"""Vectors kept of a set, at the most, for what looks at pairs or trains on them."""

MEMORY = 2**30
"""Bytes of vectors that are kept of all sets together."""


@dataclass(frozen=True, eq=False)
class Features:
    """A set of samples under an embedding.

    Attributes:
        moments: of all of them.
        kept: float32 (≤ KEPT, d), of a random choice, in random order.
    """

    moments: Moments
    kept: Vectors


class Seen:
    """An embedding that embeds an image once, whichever of an evaluation's sets it is in. It is an embedding, too.

    Vectors are kept while they take up to MEMORY; a set of more than KEPT images is embedded anew.

    Args:
        name: the embedding's, for the notes.
        embedding: maps samples to vectors.
    """

    def __init__(self, name: str, embedding: Embedding) -> None:
        self.name, self.embedding = name, embedding
        self._known: dict[bytes, Vectors] = {}
        self._room = MEMORY

    @property
    def batch_size(self) -> int:
        """The embedding's."""
        return self.embedding.batch_size

    @property
    def info(self) -> PluginInfo:
        """What the embedding declares."""
        return info_of(self.embedding)

    def embed(self, samples: Samples) -> Vectors:
        """The vectors of a block, float32 (n, d); one of which an image is new is embedded whole, in its own shape.

        Raises:
            PEError: see `pe.plugins.embed.embed_block`.
        """
        digests = _digests(samples)
        if any(digest not in self._known for digest in digests):
            return self._keep(digests, embed_block(self.embedding, samples))
        return np.stack([self._known[digest] for digest in digests])

    def blocks(self, samples: Samples) -> Iterator[Vectors]:
        """The vectors of all samples in their order, in the embedding's batches, each float32 (≤ batch_size, d).

        Raises:
            ContractError: a vector that is not finite.
        """
        for vectors in self._once(samples) if len(samples) <= KEPT else embed_batches(self.embedding, samples):
            if not np.isfinite(vectors).all():
                name = type(self.embedding).__name__
                raise ContractError(f"{name}.embed gave no finite vector for an image: see the log.")
            yield vectors

    def vectors(self, samples: Samples) -> Vectors:
        """float32 (n, d): the vectors of all samples.

        Raises:
            ContractError: one that is not finite.
        """
        return np.concatenate(list(self.blocks(samples)))

    def _once(self, samples: Samples) -> Iterator[Vectors]:
        """The vectors block by block; of images that are new, the first of each kind is embedded when it is needed."""
        digests, size = _digests(samples), self.batch_size
        known = {digest: self._known[digest] for digest in digests if digest in self._known}
        first = {digest: i for i, digest in reversed([*enumerate(digests)]) if digest not in known}
        new = np.array(sorted(first.values()), np.int64)
        batches = zip(range(0, len(new), size), embed_batches(self.embedding, samples.take(new)), strict=True)
        for start in range(0, len(digests), size):
            block = digests[start : start + size]
            while any(digest not in known for digest in block):
                place, vectors = next(batches)
                these = [digests[i] for i in new[place : place + size]]
                known |= zip(these, self._keep(these, vectors), strict=True)
            yield np.stack([known[digest] for digest in block])

    def _keep(self, digests: Sequence[bytes], vectors: Vectors) -> Vectors:
        """Remember `vectors`, which it returns, where there is room."""
        if vectors.nbytes <= self._room:
            self._room -= vectors.nbytes
            self._known |= zip(digests, vectors, strict=True)
        return vectors


def described(spec: PluginSpec) -> str:
    """An embedding's name: its kind with the settings that a recipe gives it."""
    settings = ", ".join(f"{key}={value}" for key, value in spec.settings.items())
    return f"{spec.kind} ({settings})" if settings else spec.kind


def _digests(samples: Samples) -> list[bytes]:
    return [sample_digest(each) for each in samples.array]


def features(samples: Samples, seen: Seen, seed: int, task: Task) -> Features:
    """Embed all samples, block by block; memory is d² and the kept vectors, whatever their number.

    Args:
        samples: two or more.
        seen: the embedding.
        seed: of the choice.
        task: told of every block.

    Raises:
        RecipeError: fewer than two samples.
        ContractError: a vector that is not finite.
    """
    if len(samples) < 2:
        raise RecipeError(f"A distance needs two samples or more of each set, not {len(samples)}.")
    order = generator(seed, "evaluation/kept").permutation(len(samples))[:KEPT]
    place = np.full(len(samples), -1)
    place[order] = np.arange(len(order))
    moments: StreamedMoments | None = None
    kept: Vectors | None = None
    start = 0
    for vectors in seen.blocks(samples):
        if moments is None or kept is None:
            moments = StreamedMoments(vectors.shape[1])
            kept = np.empty((len(order), vectors.shape[1]), np.float32)
        moments.add(vectors)
        places = place[start : start + len(vectors)]
        kept[places[places >= 0]] = vectors[places >= 0]
        start += len(vectors)
        task.advance(len(vectors))
    assert moments is not None
    assert kept is not None
    return Features(moments.moments(), kept)
