"""Try an embedding on made-up samples, and embed samples even if it fails on some."""

from __future__ import annotations

import logging
import math
from typing import TypeVar

import numpy as np

from pe.data.quiet import quiet
from pe.data.samples import Samples, Shape, slices
from pe.errors import ContractError, PEError, Unavailable
from pe.plugins.protocols import Embedding, Vectors

ALONE = 0.01
"""The most that a vector may move when the other samples of its block change, as a share of the
vectors' spread.

This is far above rounding errors in half precision, which may differ from call to call at an
endpoint, and far below the change if an embedding subtracts the block's mean.
"""
_ROUNDING = 1e-6
_DIFFERENT = 3
"""The least number of made-up samples on which an embedding is tried, however small its
blocks are."""

Modality = TypeVar("Modality", bound=Samples)

log = logging.getLogger(__name__)


def embed_block(embedding: Embedding, samples: Samples) -> Vectors:
    """Return one vector per sample, float32 (n, d).

    A sample on which the embedding fails gets a row of NaN.

    If the embedding fails on the block, each half is embedded again, at its places in the block
    among blank samples, and so on down to the samples at fault: every call has one shape, and no
    sample's vector depends on whether others fail. The embedding's messages about samples, which
    may be private, are logged and stand in no error.

    Raises:
        PEError: the embedding fails on blank samples, too, so it is out of order.
        Unavailable: its server is away; an embedding may raise this only if its server fails on
            blank samples, too.
    """
    try:
        return check_vectors(embedding, samples)
    except Unavailable:
        raise
    except Exception as error:  # of whatever library
        log.warning(
            "%s fails on a block of samples: it is halved.",
            type(embedding).__name__,
            exc_info=error,
        )
    vectors = np.full_like(_of_blank(embedding, samples), np.nan)
    _fill(embedding, samples, range(len(samples)), vectors)
    return vectors


def expect(samples: Samples, modality: type[Modality], embedding: str) -> Modality:
    """Return the samples if they are of this modality. Otherwise raise ContractError."""
    if not isinstance(samples, modality):
        raise ContractError(
            f"The embedding '{embedding}' takes {modality.noun}, not {type(samples).__name__}."
        )
    return samples


def calls_for_a_failing_sample(batch_size: int) -> int:
    """Return the most extra calls for a block in which one sample fails."""
    return 2 * math.ceil(math.log2(batch_size)) + 3


def try_embedding(embedding: Embedding, modality: type[Samples], shape: Shape) -> None:
    """Embed made-up samples in blocks like private ones, and refuse an embedding that misbehaves.

    The sample whose vector is nearest to the mean is embedded again, at its place, among blank
    samples: its vector may move by no more than `ALONE`, and the blank samples' vectors may differ
    by no more than that. Smaller changes are not found here. The embedding may fail on some
    samples, but not on blank ones.

    Raises:
        ContractError: it fails, has no batch size, gives no finite vector or one vector for all
            samples; or a vector depends on the other samples of its block, on earlier blocks, or on
            its place.
    """
    name = type(embedding).__name__
    size = embedding.batch_size
    if not isinstance(size, int) or size < 1:
        raise ContractError(f"{name}.batch_size is {size!r}: it must be a whole number ≥ 1.")
    count = size * math.ceil(_DIFFERENT / size)
    samples = modality.examples(count, shape)
    blocks = [samples.take(part) for part in slices(count, size)]
    with quiet():
        first = np.concatenate([_of_examples(embedding, block) for block in blocks]).astype(
            np.float64
        )
        usable = np.flatnonzero(np.isfinite(first).all(axis=1))
        if not len(usable):
            raise ContractError(
                f"{name}.embed gives no finite vector for any of {count} made-up {modality.noun}."
            )
        apart = np.linalg.norm(first[usable] - first[usable].mean(axis=0), axis=1)
        middle = int(usable[apart.argmin()])
        place = middle % size
        again = embed_block(embedding, blocks[middle // size].only(place)).astype(np.float64)
    spread = math.sqrt(float(np.square(apart).mean()))
    if spread <= _ROUNDING * float(np.abs(first[usable]).max(initial=0.0)):
        raise ContractError(
            f"{name}.embed gives different {modality.noun} the same vector: then all votes are "
            "chance."
        )
    remedy = (
        "each row must be a function of its own sample alone, so do not normalise over a block or "
        "keep a state."
    )
    if not float(np.linalg.norm(again[place] - first[middle])) <= ALONE * spread:
        raise ContractError(
            f"{name}.embed gives a sample another vector when the others in its block change: "
            f"{remedy}"
        )
    # Equal samples must get equal vectors: else a vector depends on its place or on earlier blocks.
    blank = np.delete(again, place, axis=0)
    if (np.linalg.norm(blank - blank[:1], axis=1) > ALONE * spread).any():
        raise ContractError(
            f"{name}.embed gives equal samples different vectors at different places: {remedy}"
        )


def check_comparable(
    embedding: Embedding, modality: type[Samples], private: Shape, synthetic: Shape
) -> None:
    """Raise ContractError if private and generated samples get vectors of different lengths."""
    shapes = (private, synthetic)
    with quiet():
        blocks = (modality.examples(embedding.batch_size, shape) for shape in shapes)
        ours, theirs = (_of_examples(embedding, block).shape[1] for block in blocks)
    if ours != theirs:
        first, second = ("×".join(map(str, shape)) for shape in shapes)
        raise ContractError(
            f"{type(embedding).__name__}.embed gives {ours:,} numbers for a private sample of "
            f"{first} and {theirs:,} for a generated one of {second}, so they cannot be compared: "
            f"have both made {first}, or resize in embed."
        )


def check_vectors(embedding: Embedding, samples: Samples) -> Vectors:
    """Return the embedding's vectors of `samples`.

    ContractError unless they are float32 with one row per sample.
    """
    vectors = embedding.embed(samples)
    count = len(samples)
    if (
        isinstance(vectors, np.ndarray)
        and vectors.dtype == np.float32
        and vectors.ndim == 2
        and len(vectors) == count
    ):
        return vectors
    form = (
        f"{vectors.dtype} {vectors.shape}"
        if isinstance(vectors, np.ndarray)
        else type(vectors).__name__
    )
    name = type(embedding).__name__
    raise ContractError(
        f"{name}.embed returned {form} for {count} samples: return float32 of shape ({count}, d)."
    )


def _of_examples(embedding: Embedding, samples: Samples) -> Vectors:
    """Embed made-up samples as `embed_block` does.

    They are not private, so an error may say why it fails.
    """
    try:
        return check_vectors(embedding, samples)
    except Exception as error:
        try:
            check_vectors(embedding, samples.only())
        except PEError:
            raise
        except Exception:
            name = type(embedding).__name__
            raise ContractError(
                f"{name}.embed fails on made-up samples: {type(error).__name__}: {error}"
            ) from error
    return embed_block(embedding, samples)


def _of_blank(embedding: Embedding, samples: Samples) -> Vectors:
    """Return the vectors of a block of blank samples, as many as there are `samples`."""
    name = type(embedding).__name__
    try:
        return check_vectors(embedding, samples.only())
    except PEError:
        raise
    except Exception as error:
        log.error("%s fails on blank samples.", name, exc_info=error)
        failure = type(error).__name__
    raise ContractError(f"{name}.embed fails even on blank samples ({failure}): the log says why.")


def _fill(embedding: Embedding, samples: Samples, places: range, vectors: Vectors) -> None:
    """Embed, half by half, the samples at `places`, on which the embedding failed together.

    Write into `vectors`.
    """
    name = type(embedding).__name__
    middle = len(places) // 2
    if not middle:
        _of_blank(embedding, samples)  # in an outage the run stops, and no vote is lost
    for part in (places[:middle], places[middle:]) if middle else (places,):
        try:
            vectors[part] = check_vectors(embedding, samples.only(*part))[part]
        except Unavailable:
            raise
        except Exception as error:
            if middle:
                log.info("%s fails on samples %s of the block: %r", name, part, error)
                _fill(embedding, samples, part, vectors)
            else:
                log.warning(
                    "%s gives no vector for sample %d of the block.", name, part[0], exc_info=error
                )
