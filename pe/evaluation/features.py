"""Images as an embedding sees them: their moments, and some of their vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.data.samples import Samples
from pe.data.seeds import generator
from pe.errors import ContractError, RecipeError
from pe.evaluation.frechet import Moments, StreamedMoments
from pe.lookahead import embed_batches
from pe.plugins.protocols import Embedding, Vectors
from pe.progress import Task

KEPT = 10_000
"""Vectors kept of a set, at the most, for what looks at pairs or trains on them."""


@runtime_checkable
class Classifies(Protocol):
    """An embedding whose model also tells classes, which the Inception Score needs."""

    def probabilities(self, samples: Samples) -> npt.NDArray[np.floating]:
        """Class probabilities, n×classes, rows that sum to 1."""
        ...


@dataclass(frozen=True, eq=False)
class Features:
    """A set of images under an embedding.

    Attributes:
        moments: of all of them.
        kept: float32 (≤ KEPT, d), of a random choice, in random order.
    """

    moments: Moments
    kept: Vectors


class Seen:
    """An embedding that embeds a set of images once, whatever looks at it.

    The vectors of sets of up to KEPT images are kept; larger sets are embedded anew.

    Args:
        name: the embedding's, for the notes.
        embedding: maps images to vectors.
    """

    def __init__(self, name: str, embedding: Embedding) -> None:
        self.name, self.embedding = name, embedding
        self._kept: dict[int, tuple[Images, list[Vectors]]] = {}

    def blocks(self, images: Images) -> Iterator[Vectors]:
        """The vectors of all images in their order, in the embedding's batches, each float32 (≤ batch_size, d).

        Raises:
            ContractError: a vector that is not finite.
        """
        if id(images) in self._kept:
            yield from self._kept[id(images)][1]
            return
        blocks = []
        for vectors in embed_batches(self.embedding, images):
            if not np.isfinite(vectors).all():
                name = type(self.embedding).__name__
                raise ContractError(f"{name}.embed gave no finite vector for an image: see the log.")
            if len(images) <= KEPT:
                blocks.append(vectors)
            yield vectors
        if blocks:
            self._kept[id(images)] = images, blocks  # with the images, so that no other takes their id

    def vectors(self, images: Images) -> Vectors:
        """float32 (n, d): the vectors of all images.

        Raises:
            ContractError: one that is not finite.
        """
        return np.concatenate(list(self.blocks(images)))


def features(images: Images, seen: Seen, seed: int, task: Task) -> Features:
    """Embed all images, block by block; memory is d² and the kept vectors, whatever their number.

    Args:
        images: two or more.
        seen: the embedding.
        seed: of the choice.
        task: told of every block.

    Raises:
        RecipeError: fewer than two images.
        ContractError: a vector that is not finite.
    """
    if len(images) < 2:
        raise RecipeError(f"A distance needs two images or more of each set, not {len(images)}.")
    order = generator(seed, "evaluation/kept").permutation(len(images))[:KEPT]
    place = np.full(len(images), -1)
    place[order] = np.arange(len(order))
    moments: StreamedMoments | None = None
    kept: Vectors | None = None
    start = 0
    for vectors in seen.blocks(images):
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


def probabilities(images: Images, embedding: Embedding, seed: int) -> npt.NDArray[np.floating] | None:
    """The images' class probabilities, n×classes, in random order; None for an embedding that tells no classes."""
    if not isinstance(embedding, Classifies):
        return None
    order = generator(seed, "evaluation/probabilities").permutation(len(images))
    return np.concatenate([embedding.probabilities(batch) for batch in _batches(images, embedding)])[order]


def _batches(images: Images, embedding: Embedding) -> Iterator[Images]:
    for start in range(0, len(images), embedding.batch_size):
        yield images.take(slice(start, start + embedding.batch_size))
