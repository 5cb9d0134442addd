"""Public randomness: every draw but the noise comes from the recipe's seed, a phase and an index.

Noise and sampling coins never come from here; they are the operating system's (pe/privacy/noise.py).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def item_seeds(seed: int, phase: str, items: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> Seeds:
    """A seed for each item of a phase and each attempt at it, uint64 (n,), independent of chunking."""
    keys = np.uint64(_key(seed, phase)) + items.astype(np.uint64) * _GOLDEN
    return mix(mix(keys) + attempts.astype(np.uint64) * _GOLDEN)


def uniforms(seeds: Seeds, purpose: str) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each seed, float64 (n,); other purposes have independent ones."""
    bits = mix(seeds ^ np.uint64(_key(0, purpose))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def generator(seed: int, phase: str) -> np.random.Generator:
    """A generator for one phase of the run, the same on every machine."""
    return np.random.Generator(np.random.Philox(key=_key(seed, phase)))


def _key(seed: int, phase: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{phase}".encode(), digest_size=8).digest(), "little")


def mix(x: Seeds) -> Seeds:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection on 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Seeds = npt.NDArray[np.uint64]
