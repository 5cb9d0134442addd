"""Noise and coins: exact and discrete, from the operating system's entropy; or seeded, for tests."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.privacy.discrete import LARGEST_SCALE, discrete_draws
from pe.privacy.entropy import Bools, coins
from pe.privacy.release import FINEST

Int64Array = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]

FINE = 2**16
"""Grid steps per standard deviation, at least. Any G·σ ≥ 256 would do; more costs nothing and brings the
discrete noise to within a relative 5e-10 of continuous noise (docs/privacy.md, "Discrete noise")."""


class Noise(Protocol):
    """Draws of noise, and coins; whether they protect anybody is `unsafe`."""

    @property
    def unsafe(self) -> bool:
        """True when the draws can be foretold: the certificate then says "no guarantee"."""
        ...

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−x²/2·scale²), x integer; scale > 0."""
        ...

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−|x|/scale), x integer; scale > 0."""
        ...

    def coins(self, count: int, rate: float) -> Bools:
        """Independent coins, bool (count,), each True with probability `rate`: Poisson sampling."""
        ...


class SystemNoise:
    """Noise that protects: exact discrete draws from the operating system's entropy (pe/privacy/discrete.py).

    Every draw of every bin, call and process is independent; there is no seed.
    """

    unsafe = False

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−x²/2·scale²), x integer; 0 < scale ≤ 2^56."""
        return discrete_draws(_count(shape), _check(scale), "gaussian").reshape(shape)

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−|x|/scale), x integer; 0 < scale ≤ 2^56."""
        return discrete_draws(_count(shape), _check(scale), "laplace").reshape(shape)

    def coins(self, count: int, rate: float) -> Bools:
        """Independent coins, each True with probability `rate`; see pe/privacy/entropy.py."""
        return coins(count, rate)


class UnsafeSeededNoise:
    """Noise for tests, repeatable from a seed: NO GUARANTEE. Whoever knows the seed removes the noise.

    A ledger that draws from it is marked for good, and its certificate says "no guarantee".
    """

    unsafe = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Rounded Gaussian draws of the seeded generator."""
        return np.rint(self._generator.normal(scale=_check(scale), size=shape)).astype(np.int64)

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """The difference of two geometric draws of the seeded generator, which is discrete Laplace."""
        stop = -math.expm1(-1 / _check(scale))
        draws = self._generator.geometric(stop, size=shape) - self._generator.geometric(stop, size=shape)
        return np.asarray(draws, dtype=np.int64)

    def coins(self, count: int, rate: float) -> Bools:
        """Coins of the seeded generator."""
        return self._generator.random(count) < rate


def grid_for(noise_multiplier: float, sensitivity: float = 1.0, fractional: bool = False) -> int:
    """Integer steps per vote: the smallest power of two G with G·σ ≥ 2^16, σ = sensitivity·noise_multiplier.

    `fractional` votes (q > 1 neighbours, units larger than a record) also get G ≥ 2^16, so that rounding
    them toward zero loses less than 2^-16 of a vote.

    Raises:
        PrivacyError: so little noise that the grid would not fit into 64-bit sums.
    """
    deviation = noise_multiplier * sensitivity
    if not (math.isfinite(deviation) and deviation > 0):
        raise PrivacyError(f"A noise standard deviation is a finite number above 0, not {deviation}.")
    grid = FINE if fractional else 1
    while grid * deviation < FINE:
        grid *= 2
    if grid > FINEST:
        raise PrivacyError(f"Noise of standard deviation {deviation:g} protects nothing: raise the noise multiplier.")
    return grid


def _count(shape: Shape) -> int:
    return math.prod(shape) if isinstance(shape, tuple) else shape


def _check(scale: float) -> float:
    if not 0 < scale <= LARGEST_SCALE:
        raise PrivacyError(f"The scale of noise lies above 0 and up to 2^56 grid steps, not {scale!r}.")
    return float(scale)
