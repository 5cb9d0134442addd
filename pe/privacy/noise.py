"""Noise from the operating system's entropy: exact and discrete for releases, continuous for DP-SGD.

OpenDP samples the discrete Gaussian and Laplace exactly, in rational arithmetic (Canonne, Kamath and
Steinke 2020), so that attacks on floating-point noise (Mironov 2012) do not apply.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pe.errors import MissingDependency, PrivacyError
from pe.privacy.entropy import Bools, Float64Array, coins, standard_normals
from pe.privacy.release import FINEST

Int64Array = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]

FINE = 2**16
"""Grid steps per standard deviation, at least. Any G·σ ≥ 256 would do; more costs nothing and brings the
discrete noise to within a relative 5e-10 of continuous noise (docs/privacy.md, "Discrete noise")."""

_CHUNK = 4096
_LARGEST_SCALE = 2.0**56


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

    def gaussian(self, count: int, scale: float) -> Float64Array:
        """Independent continuous draws of N(0, scale²), float64 (count,); scale ≥ 0. For DP-SGD alone."""
        ...

    def coins(self, count: int, rate: float) -> Bools:
        """Independent coins, bool (count,), each True with probability `rate`: Poisson sampling."""
        ...


class SystemNoise:
    """Noise that protects: exact discrete draws by OpenDP from the operating system's entropy.

    Every draw of every bin, call and process is independent; there is no seed. About 50,000 draws a
    second and core; OpenDP releases the interpreter's lock, so threads share the work.

    Args:
        threads: how many draw at once; None: one per core, 8 at most.
    """

    unsafe = False

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(8, os.cpu_count() or 1)

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−x²/2·scale²), x integer; 0 < scale ≤ 2^56."""
        opendp = _opendp()
        space = _integers(opendp), opendp.metrics.l2_distance(T="i64")
        return self._draw(opendp.measurements.make_gaussian(*space, scale=_checked(scale)), shape)

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """Independent draws with P(x) ∝ exp(−|x|/scale), x integer; 0 < scale ≤ 2^56."""
        opendp = _opendp()
        space = _integers(opendp), opendp.metrics.l1_distance(T="i64")
        return self._draw(opendp.measurements.make_laplace(*space, scale=_checked(scale)), shape)

    def gaussian(self, count: int, scale: float) -> Float64Array:
        """Independent continuous draws of N(0, scale²); see pe/privacy/entropy.py."""
        return standard_normals(count) * scale

    def coins(self, count: int, rate: float) -> Bools:
        """Independent coins, each True with probability `rate`; see pe/privacy/entropy.py."""
        return coins(count, rate)

    def _draw(self, measure: Callable[[Any], list[int]], shape: Shape) -> Int64Array:
        draws = np.zeros(shape, dtype=np.int64)
        flat = draws.reshape(-1)

        def fill(start: int) -> None:
            part = flat[start : start + _CHUNK]
            part[:] = measure(part.copy())

        starts = range(0, flat.size, _CHUNK)
        if len(starts) <= 1 or self._threads == 1:
            for start in starts:
                fill(start)
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(fill, starts))
        return draws


class UnsafeSeededNoise:
    """Noise for tests, repeatable from a seed: NO GUARANTEE. Whoever knows the seed removes the noise.

    A ledger that draws from it is marked for good, and its certificate says "no guarantee".
    """

    unsafe = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Rounded Gaussian draws of the seeded generator."""
        return np.rint(self._generator.normal(scale=_checked(scale), size=shape)).astype(np.int64)

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """The difference of two geometric draws of the seeded generator, which is discrete Laplace."""
        stop = -math.expm1(-1 / _checked(scale))
        draws = self._generator.geometric(stop, size=shape) - self._generator.geometric(stop, size=shape)
        return np.asarray(draws, dtype=np.int64)

    def gaussian(self, count: int, scale: float) -> Float64Array:
        """Gaussian draws of the seeded generator."""
        return self._generator.normal(size=count) * scale

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


def _checked(scale: float) -> float:
    if not 0 < scale <= _LARGEST_SCALE:
        raise PrivacyError(f"The scale of noise lies above 0 and up to 2^56 grid steps, not {scale!r}.")
    return float(scale)


def _integers(opendp: SimpleNamespace) -> Any:
    return opendp.domains.vector_domain(opendp.domains.atom_domain(T="i64"))


def _opendp() -> SimpleNamespace:
    """The parts of OpenDP that draw; its prelude would also load scikit-learn where that is installed."""
    try:
        from opendp import domains, measurements, metrics
        from opendp.mod import enable_features
    except ImportError as error:
        raise MissingDependency("Drawing noise needs opendp, which is not installed: pip install opendp.") from error
    enable_features("contrib")
    return SimpleNamespace(domains=domains, measurements=measurements, metrics=metrics)
