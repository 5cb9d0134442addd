"""The codes that samples carry, of generators that make an image from a standard normal code and a label."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.float32]


def draw_codes(seeds: npt.NDArray[np.uint64], length: int) -> Codes:
    """Standard normal codes, float32 (n, length), each from its own seed."""
    rngs = (np.random.Generator(np.random.Philox(key=int(seed))) for seed in seeds)
    return np.stack([rng.standard_normal(length) for rng in rngs]).astype(np.float32)


def move_codes(codes: Codes, seeds: npt.NDArray[np.uint64], degree: float) -> Codes:
    """√(1−d²)·z + d·ξ with new codes ξ, which keeps their distribution: d = 0 changes nothing, d = 1 forgets all."""
    d = np.float32(degree)
    moved: Codes = (np.sqrt(1 - d**2) * codes + d * draw_codes(seeds, codes.shape[1])).astype(np.float32)
    return moved
