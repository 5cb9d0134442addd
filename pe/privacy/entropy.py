"""Uniform bits and sampling coins, straight from the operating system's entropy.

No generator stands between: every number is made of bytes that the system's cryptographic source gave for it alone.
"""

from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_BITS = 53


def random_words(count: int) -> Words:
    """Independent uniform numbers of 64 bits, uint64 (count,)."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def coins(count: int, rate: float) -> Bools:
    """Independent coins, bool (count,), each True with probability `rate` rounded down to 53 bits."""
    heads: Bools = random_words(count) >> np.uint64(64 - _BITS) < np.uint64(math.floor(rate * 2.0**_BITS))
    return heads
