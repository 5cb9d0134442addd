"""Vectors of samples, whatever an embedding makes of some of them."""

from __future__ import annotations

import logging
import math

import numpy as np

from pe.data.samples import Samples
from pe.errors import ContractError, PEError
from pe.plugins.protocols import Embedding, Vectors, check_vectors

log = logging.getLogger(__name__)


def embed_block(embedding: Embedding, samples: Samples) -> Vectors:
    """One vector per sample, float32 (n, d); a row of NaN for a sample that the embedding fails on.

    Where it fails on all of them together, each half is embedded again at its own places among blank samples, and so
    on down to the samples at fault. So every call has the same shape, and a sample's vector does not depend on what
    becomes of another. What the embedding says of samples, which may be private, is logged and stands in no error.

    Raises:
        PEError: the embedding's own, if it fails on blank samples, too: then it is out of order.
        ContractError: it fails there with what is no PEError.
    """
    try:
        return _vectors(embedding, samples)
    except Exception as error:  # of whatever library
        log.warning("%s fails on a block of samples: it is halved.", type(embedding).__name__, exc_info=error)
    vectors = np.full_like(_of_blank(embedding, samples), np.nan)
    _fill(embedding, samples, range(len(samples)), vectors)
    return vectors


def calls_for_a_failing_sample(batch_size: int) -> int:
    """How many more calls a block takes when the embedding fails on one of its samples."""
    return 2 * math.ceil(math.log2(batch_size)) + 3


def _fill(embedding: Embedding, samples: Samples, places: range, vectors: Vectors) -> None:
    """Put the vectors at `places`, a block on which the embedding failed, into `vectors`, half by half."""
    if len(places) == 1:
        _try_again(embedding, samples, places[0], vectors)
        return
    middle = len(places) // 2
    for half in (places[:middle], places[middle:]):
        try:
            vectors[half] = _vectors(embedding, samples.only(*half))[half]
        except Exception as error:  # told whole once a sample fails alone
            log.info("%s fails on samples %s of the block: %r", type(embedding).__name__, half, error)
            _fill(embedding, samples, half, vectors)


def _try_again(embedding: Embedding, samples: Samples, place: int, vectors: Vectors) -> None:
    _of_blank(embedding, samples)  # in an outage the run stops, and no vote is lost
    try:
        vectors[place] = _vectors(embedding, samples.only(place))[place]
    except Exception as error:
        name = type(embedding).__name__
        log.warning("%s gives no vector for sample %d of the block.", name, place, exc_info=error)


def _vectors(embedding: Embedding, samples: Samples) -> Vectors:
    return check_vectors(embedding, embedding.embed(samples), len(samples))


def _of_blank(embedding: Embedding, samples: Samples) -> Vectors:
    """The vectors of as many blank samples."""
    name = type(embedding).__name__
    try:
        return _vectors(embedding, samples.only())
    except PEError:
        raise
    except Exception as error:
        log.error("%s fails on blank samples.", name, exc_info=error)
        failed = type(error).__name__
    raise ContractError(f"{name}.embed fails even on black images ({failed}): the log says why.")
