"""Continuous noise and sampling coins for DP-SGD, straight from the operating system's entropy.

No generator stands between: every number is made of bytes that the system's cryptographic source gave for it alone.
This noise is floating point: of 53 bits, and never beyond 8.7 standard deviations. The certificate says so.
"""

from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BITS = 53


def standard_normals(count: int) -> Float64Array:
    """Independent draws of N(0, 1), float64 (count,), by Box and Muller (1958)."""
    pairs = (count + 1) // 2
    integers = _integers(2 * pairs)
    radii = np.sqrt(-2 * np.log((integers[:pairs] + 0.5) * 2.0**-_BITS))
    angles = 2 * math.pi * (integers[pairs:] * 2.0**-_BITS)
    return np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])[:count]


def coins(count: int, rate: float) -> Bools:
    """Independent coins, bool (count,), each True with probability `rate` rounded down to 53 bits."""
    heads: Bools = _integers(count) < np.uint64(math.floor(rate * 2.0**_BITS))
    return heads


def _integers(count: int) -> npt.NDArray[np.uint64]:
    """Uniform integers of 53 bits."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(64 - _BITS)
