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
from pe.private.embeddings import PrivateEmbeddings, embed_blocks, parts


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


TOGETHER = 2**22
"""Votes that this process adds up together, of about 100 bytes of memory each."""


class InThisProcess:
    """This process does it all.

    Args:
        together: votes that it adds up together; a privacy unit is never divided.
    """

    hosts: Sequence[str] = ()

    def __init__(self, together: int = TOGETHER) -> None:
        self._together = together
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
        """The exact sum of the votes of one part of the units after the other, however many records there are."""
        number = max(1, -(-len(private) * voting.neighbors // self._together))
        total = np.zeros(len(labels), np.int64)
        for rows in parts(private.units, number, self._key):
            total += histogram.count_votes(private, candidates, labels, grid, voting, rows)
        return total
