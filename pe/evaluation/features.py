"""Samples under an embedding, each embedded once in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pe.data.samples import Samples, slices
from pe.errors import ContractError
from pe.judgement.labelled import KEPT
from pe.lookahead import embed_batches
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, PluginInfo, Vectors, info_of
from pe.plugins.specs import PluginSpec
from pe.private.dataset import sample_digest
from pe.store.places import without_paths

MEMORY = 2**30
"""Most bytes of vectors that are stored, of all sets together."""


class CachedEmbedding:
    """An embedding with a cache: a sample in several sets of an evaluation is embedded once.

    Vectors are stored until they fill MEMORY; `blocks` embeds a set of more than KEPT samples anew
    each time.
    """

    def __init__(self, name: str, embedding: Embedding) -> None:
        self.name = name
        self.embedding = embedding
        self._vectors: dict[bytes, Vectors] = {}
        self._room = MEMORY

    @property
    def batch_size(self) -> int:
        """The embedding's batch size."""
        return self.embedding.batch_size

    @property
    def info(self) -> PluginInfo:
        """The embedding's declarations."""
        return info_of(self.embedding)

    def embed(self, samples: Samples) -> Vectors:
        """Return the vectors of a block, float32 (n, d).

        If any sample is new, the whole block is embedded.
        """
        digests = _digests(samples)
        if any(digest not in self._vectors for digest in digests):
            return self._store(digests, embed_block(self.embedding, samples))
        return np.stack([self._vectors[digest] for digest in digests])

    def blocks(self, samples: Samples) -> Iterator[Vectors]:
        """Yield the vectors of all samples in order, in batches, each float32 (≤ batch_size, d)."""
        for vectors in (
            self._once(samples) if len(samples) <= KEPT else embed_batches(self.embedding, samples)
        ):
            if not np.isfinite(vectors).all():
                name = type(self.embedding).__name__
                raise ContractError(
                    f"{name}.embed gave no finite vector for an image: see the log."
                )
            yield vectors

    def vectors(self, samples: Samples) -> Vectors:
        """Return the vectors of all samples, float32 (n, d)."""
        return np.concatenate(list(self.blocks(samples)))

    def _once(self, samples: Samples) -> Iterator[Vectors]:
        """Yield vectors block by block.

        Of equal new samples only the first is embedded, and only when it is needed.
        """
        digests = _digests(samples)
        size = self.batch_size
        vectors_of = {
            digest: self._vectors[digest] for digest in digests if digest in self._vectors
        }
        first = {
            digest: i for i, digest in reversed([*enumerate(digests)]) if digest not in vectors_of
        }
        new = np.array(sorted(first.values()), np.int64)
        batches = zip(
            slices(len(new), size), embed_batches(self.embedding, samples.take(new)), strict=True
        )
        for part in slices(len(digests), size):
            block = digests[part]
            while any(digest not in vectors_of for digest in block):
                places, vectors = next(batches)
                batch = [digests[i] for i in new[places]]
                vectors_of |= zip(batch, self._store(batch, vectors), strict=True)
            yield np.stack([vectors_of[digest] for digest in block])

    def _store(self, digests: Sequence[bytes], vectors: Vectors) -> Vectors:
        if vectors.nbytes <= self._room:
            self._room -= vectors.nbytes
            self._vectors |= zip(digests, vectors, strict=True)
        return vectors


def embedding_name(spec: PluginSpec) -> str:
    """Return an embedding's kind with the settings that a recipe gives it.

    Mappings are left out, and a path is cut to its last part.
    """
    values = {
        key: value
        for key, value in without_paths(spec.settings).items()
        if not isinstance(value, dict)
    }
    settings = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{spec.kind} ({settings})" if settings else spec.kind


def _digests(samples: Samples) -> list[bytes]:
    return [sample_digest(each) for each in samples.array]
