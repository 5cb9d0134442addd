"""Samples told apart by digests: which public ones are private records."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pe.data.samples import Array, Samples, Shape
from pe.errors import ContractError


@dataclass(frozen=True)
class Overlap:
    """How many public samples are private records. Confidential, as far as it tells: it may refuse a start.

    Attributes:
        equal: public samples that are equal to a private record to the last bit. Confidential.
        compared: all public samples. Public.
        first: the name of the first of the equal ones; "" without one. Confidential.
        sha256: of the digests of all public samples, in order, hexadecimal. Public.
    """

    equal: int
    compared: int
    first: str
    sha256: str


def sample_digest(sample: Array) -> bytes:
    """SHA-256 of a sample's shape and values. Of a private record it stays in memory; what is kept is keyed."""
    return hashlib.sha256(repr(sample.shape).encode() + sample.tobytes()).digest()


def key_digest(key: bytes, digest: bytes) -> bytes:
    """A digest under a key, 32 bytes: without the key nobody can test a guess at the sample."""
    return hmac.digest(key, digest, "sha256")


def find_overlap(
    key: bytes,
    digests: Iterable[bytes],
    public: Iterable[tuple[str, Array]],
    modality: type[Samples],
    shape: Shape,
) -> Overlap:
    """Compare public samples with private records, by digests under the run's key.

    Guarantee: none; the answer is confidential. All public samples are taken, equal or not, so whoever yields them
    learns nothing of the answer.

    Args:
        key: the run's.
        digests: of all private records, as `sample_digest` gives them.
        public: names and samples, decoded as the private records are.
        modality: of both.
        shape: of the private records.

    Raises:
        ContractError: a public sample is of another shape: it was not decoded as the private records are.
    """
    records, equal, compared, first = {key_digest(key, digest) for digest in digests}, 0, 0, ""
    whole = hashlib.sha256()
    for name, sample in public:
        if not modality.check(sample[np.newaxis]) or modality.misfit(sample, shape):
            form = f"{sample.dtype} {sample.shape}"
            raise ContractError(f"public_samples gave {name} as {form}, not as {modality.noun} of {shape} are held.")
        compared += 1
        digest = sample_digest(sample)
        whole.update(digest)
        if key_digest(key, digest) in records:
            equal, first = equal + 1, first or name
    return Overlap(equal, compared, first, whole.hexdigest())
