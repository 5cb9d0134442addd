"""Vectors of samples, whatever an embedding makes of some of them."""

from __future__ import annotations

import logging

import numpy as np

from pe.data.samples import Samples
from pe.errors import ContractError, PEError
from pe.plugins.protocols import Embedding, Vectors, check_vectors

log = logging.getLogger(__name__)


def embed_block(embedding: Embedding, samples: Samples) -> Vectors:
    """One vector per sample, float32 (n, d); a row of NaN for a sample that the embedding fails on.

    Where it fails on all of them together, each is embedded again at its own place among blank samples. So every call
    has the same shape, and a sample's vector does not depend on what becomes of another. What the embedding says of
    samples, which may be private, is logged and stands in no error.

    Raises:
        PEError: the embedding's own, if it fails on blank samples, too: then it is out of order.
        ContractError: it fails there with what is no PEError.
    """
    name = type(embedding).__name__
    try:
        return check_vectors(embedding, embedding.embed(samples), len(samples))
    except Exception as error:  # of whatever library
        log.warning("%s fails on a block of samples: each is embedded again, by itself.", name, exc_info=error)
    vectors = np.full_like(_of_blank(embedding, samples), np.nan)
    for i in range(len(samples)):
        try:
            vectors[i] = check_vectors(embedding, embedding.embed(samples.only(i)), len(samples))[i]
        except Exception as error:
            log.warning("%s gives no vector for sample %d of the block.", name, i, exc_info=error)
            _of_blank(embedding, samples)  # in an outage the run stops, and no vote is lost
    return vectors


def _of_blank(embedding: Embedding, samples: Samples) -> Vectors:
    """The vectors of as many blank samples."""
    name = type(embedding).__name__
    try:
        return check_vectors(embedding, embedding.embed(samples.only()), len(samples))
    except PEError:
        raise
    except Exception as error:
        log.error("%s fails on blank samples.", name, exc_info=error)
        failed = type(error).__name__
    raise ContractError(f"{name}.embed fails even on black images ({failed}): the log says why.")
