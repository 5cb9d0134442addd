"""Noise that repeats from a seed, for tests."""

import math

import numpy as np

from pe.privacy.noise import check_scale


class UnsafeSeededNoise:
    """Noise that protects nobody: whoever knows the seed removes it.

    A ledger that draws from it is marked for ever, and its certificate says "no guarantee".
    """

    unsafe = True

    def __init__(self, seed):
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(self, shape, scale):
        draws = self._generator.normal(scale=check_scale(scale), size=shape)
        return np.rint(draws).astype(np.int64)

    def discrete_laplace(self, shape, scale):
        """Differences of two geometric draws are discrete Laplace."""
        stop = -math.expm1(-1 / check_scale(scale))
        first = self._generator.geometric(stop, size=shape)
        return np.asarray(first - self._generator.geometric(stop, size=shape), dtype=np.int64)

    def coins(self, count, rate):
        return self._generator.random(count) < rate
