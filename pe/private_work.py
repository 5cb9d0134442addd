"""Who does the heavy private work, embedding the records and counting their votes: this process, or a cluster's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pe import histogram
from pe.data.samples import Samples
from pe.histogram import Counts, Voting
from pe.plugins.protocols import Embedding, Vectors
from pe.private.embeddings import PrivateEmbeddings, embed_blocks
from pe.private.shards import shards


class PrivateWork(Protocol):
    """Who does it. The results are the same to the bit whoever does, as long as the embedding's arithmetic is.

    Attributes:
        hosts: other machines that get private records and their vectors.
    """

    hosts: Sequence[str]

    def embed(self, embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
        """The vectors of each block, in order; see `pe.private.embeddings.embed_blocks`. CONFIDENTIAL."""
        ...

    def count_votes(
        self,
        private: PrivateEmbeddings,
        candidates: Vectors,
        labels: npt.NDArray[np.int32],
        grid: int,
        voting: Voting,
    ) -> Counts:
        """The clean votes in grid steps; see `pe.histogram.count_votes`, also for what it guarantees. CONFIDENTIAL."""
        ...


AT_ONCE = 2**28
"""Bytes of the private vectors that this process holds when it counts votes."""


class InThisProcess:
    """This process does it all.

    Args:
        at_once: bytes of the private vectors that it holds when it counts votes; a privacy unit is never divided.
    """

    hosts: Sequence[str] = ()

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._key = secrets.randbits(64)

    def embed(self, embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
        """One block after the other."""
        return embed_blocks(embedding, blocks)

    def count_votes(
        self,
        private: PrivateEmbeddings,
        candidates: Vectors,
        labels: npt.NDArray[np.int32],
        grid: int,
        voting: Voting,
    ) -> Counts:
        """The exact sum of the votes of one shard after the other, however many records there are."""
        number = -(-private.vectors.nbytes // self._at_once)
        if number <= 1:
            return histogram.count_votes(private, candidates, labels, grid, voting)
        total = np.zeros(len(labels), np.int64)
        for part in shards(private, number, self._key):
            total += histogram.count_votes(part, candidates, labels, grid, voting)
        return total
