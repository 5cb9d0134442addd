"""Samples told apart by digests: which public ones are private records."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from pe.data.decoding import UInt8Array
from pe.data.samples import Array
from pe.errors import ContractError


@dataclass(frozen=True)
class Overlap:
    """How many public images are private records. Confidential, as far as it tells: it may refuse a start.

    Attributes:
        equal: public images that are equal to a private record in every pixel. Confidential.
        compared: all public images. Public.
        first: the name of the first of the equal ones; "" without one. Confidential.
        sha256: of the digests of all public images, in order, hexadecimal. Public.
    """

    equal: int
    compared: int
    first: str
    sha256: str


def sample_digest(sample: Array) -> bytes:
    """SHA-256 of a sample's shape and values. Of a private record it stays in memory; what is kept is keyed."""
    return hashlib.sha256(repr(sample.shape).encode() + sample.tobytes()).digest()


def key_digest(key: bytes, digest: bytes) -> bytes:
    """A digest under a key, 32 bytes: without the key nobody can test a guess at the image."""
    return hmac.digest(key, digest, "sha256")


def find_overlap(
    key: bytes, digests: Iterable[bytes], public: Iterable[tuple[str, UInt8Array]], shape: tuple[int, int, int]
) -> Overlap:
    """Compare public images with private records, by digests under the run's key.

    Guarantee: none; the answer is confidential. All public images are taken, equal or not, so whoever yields them
    learns nothing of the answer.

    Args:
        key: the run's.
        digests: of all private records, as `sample_digest` gives them.
        public: names and images, decoded as the private records are.
        shape: (height, width, channels) of the private records.

    Raises:
        ContractError: a public image has another shape: it was not decoded as the private records are.
    """
    records, equal, compared, first = {key_digest(key, digest) for digest in digests}, 0, 0, ""
    whole = hashlib.sha256()
    for name, image in public:
        if image.dtype != "uint8" or image.shape != shape:
            raise ContractError(f"public_images gave {name} as {image.dtype} {image.shape}, not as uint8 {shape}.")
        compared += 1
        digest = sample_digest(image)
        whole.update(digest)
        if key_digest(key, digest) in records:
            equal, first = equal + 1, first or name
    return Overlap(equal, compared, first, whole.hexdigest())
