"""Samples told apart by digests: which public ones are private records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.data.samples import Array, Samples, Shape
from pe.errors import ContractError

DIGEST_BYTES = 32
_PIECE = 2**16  # digests looked at together

Digests = npt.NDArray[np.uint8]
"""Digests of samples (`sample_digest`), (n, DIGEST_BYTES)."""


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


def find_overlap(
    digests: Digests, public: Iterable[tuple[str, Array]], modality: type[Samples], shape: Shape
) -> Overlap:
    """Compare public samples with private records, by digests.

    Guarantee: none; the answer is confidential. All public samples are taken before one is compared, so whoever yields
    them learns nothing of the answer. Memory grows with their number, by a digest and a name each, and not with that
    of the records.

    Args:
        digests: of all private records.
        public: names and samples, decoded as the private records are.
        modality: of both.
        shape: of the private records.

    Raises:
        ContractError: a public sample is of another shape: it was not decoded as the private records are.
    """
    names: list[str] = []
    whole = bytearray()
    for name, sample in public:
        if not modality.check(sample[np.newaxis]) or modality.misfit(sample, shape):
            form = f"{sample.dtype} {sample.shape}"
            raise ContractError(f"public_samples gave {name} as {form}, not as {modality.noun} of {shape} are held.")
        names.append(name)
        whole += sample_digest(sample)
    compared = np.frombuffer(whole, np.uint8).reshape(-1, DIGEST_BYTES)
    known = _common(digests, compared)
    equal = [name for name, digest in zip(names, compared, strict=True) if digest.tobytes() in known]
    return Overlap(len(equal), len(names), equal[0] if equal else "", hashlib.sha256(whole).hexdigest())


def _common(many: Digests, few: Digests) -> set[bytes]:
    """The digests among `few` that are among `many`, too, which are looked through in pieces."""
    known: set[bytes] = set()
    beginnings = np.unique(_beginnings(few))
    for at in range(0, len(many), _PIECE):
        piece = many[at : at + _PIECE]
        alike = piece[np.isin(_beginnings(piece), beginnings)]
        known.update(digest.tobytes() for digest in alike)
    return known


def _beginnings(digests: Digests) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each."""
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0]
