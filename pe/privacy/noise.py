"""Exact, discrete noise and coins from the operating system's entropy.

No PRNG stands between: every number is made of bytes that the system's cryptographic source gave
for it alone.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from pe.data.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from pe.errors import PrivacyError
from pe.privacy.release import FINEST

Words = UInt64Array
Shape = int | tuple[int, ...]
Law = Literal["gaussian", "laplace"]

FINE = 2**16
"""The least number of grid steps per standard deviation. Any G·σ ≥ 256 would do. More costs nothing
and brings the discrete noise to within a relative 5e-10 of continuous noise (docs/proofs.md,
"Discrete noise")."""

_COIN_BITS = 53


class SystemNoise:
    """Noise that protects: exact discrete draws from the operating system's entropy.

    Every draw of every bin, call and process is independent; there is no seed. A scale is above 0
    and at most 2^56.

    Attributes:
        unsafe: True if the draws can be foretold, as those of some tests can. Then the certificate
            says "no guarantee".
    """

    unsafe = False

    def discrete_gaussian(self, shape: Shape, scale: float) -> Int64Array:
        """Return independent draws with P(x) ∝ exp(−x²/(2·scale²)), x integer."""
        return discrete_draws(int(np.prod(shape)), check_scale(scale), "gaussian").reshape(shape)

    def discrete_laplace(self, shape: Shape, scale: float) -> Int64Array:
        """Return independent draws with P(x) ∝ exp(−|x|/scale), x integer."""
        return discrete_draws(int(np.prod(shape)), check_scale(scale), "laplace").reshape(shape)

    def coins(self, count: int, rate: float) -> BoolArray:
        """Return independent coins for Poisson sampling, bool (count,).

        Each is True with probability `rate`, rounded down to 53 bits.
        """
        threshold = np.uint64(math.floor(rate * 2.0**_COIN_BITS))
        return random_words(count) >> np.uint64(64 - _COIN_BITS) < threshold


Noise = SystemNoise
"""What a draw takes its noise from. Tests have others with the same methods."""


def grid_for(noise_multiplier: float, sensitivity: float = 1.0, fractional: bool = False) -> int:
    """Return the integer steps per vote: the smallest power of two G with G·σ ≥ 2^16.

    σ is sensitivity·noise_multiplier. `fractional` votes (q > 1 neighbours, units larger than a
    record) also get G ≥ 2^16, so that rounding them toward zero loses less than 2^-16 of a vote.

    Raises:
        PrivacyError: so little noise that the grid would not fit into 64-bit sums.
    """
    deviation = noise_multiplier * sensitivity
    if not (math.isfinite(deviation) and deviation > 0):
        raise PrivacyError(
            f"The noise's standard deviation must be a finite number above 0, not {deviation}."
        )
    grid = FINE if fractional else 1
    while grid * deviation < FINE:
        grid *= 2
    if grid > FINEST:
        raise PrivacyError(
            f"Noise of standard deviation {deviation:g} protects nothing. Raise the noise "
            "multiplier."
        )
    return grid


def check_scale(scale: float) -> float:
    """Return the scale of noise, in grid steps. Raises PrivacyError beyond (0, LARGEST_SCALE]."""
    if not 0 < scale <= LARGEST_SCALE:
        raise PrivacyError(
            f"The scale of noise must be above 0 and at most 2^56 grid steps, not {scale!r}."
        )
    return float(scale)


def random_words(count: int) -> Words:
    """Return independent uniform numbers of 64 bits, uint64 (count,)."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


# Exact draws of the discrete Gaussian and the discrete Laplace distribution, millions a second.
#
# Rejection sampling in NumPy: an integer is proposed in proportion to a step function above the
# density, and accepted in proportion to density over step. Proposals are made of whole random bits.
# To accept is to compare a uniform real number U with the probability p: floating point decides
# only where an error bound shows that it is right; integers, fractions and decimals of growing
# precision decide the rest. So every draw has exactly the stated law, as if computed with real
# numbers (of exp in float64 it is assumed that it is right to 2^−41 of itself; test_discrete.py
# measures it).
#
# The steps. The weight of x ≥ 0 is e^−a(x), with a(x) = x²/2s² (Gaussian) or x/s (Laplace). Blocks
# are w integers wide, w a power of two with s/64 < w ≤ s/32, or 1. Block k has B_k of CELLS cells,
# B_k ≥ c·e^−a(kw), and one cell is the tail's. A random cell names the block, random bits the place
# in it. So each x of block k is proposed with probability B_k/(CELLS·w) and accepted with p =
# c·e^−a(x)/B_k ≤ 1, for a rises. The tail begins at the first block K with 128·c·e^−a(Kw) ≤ 1 and
# has parts m = 0, 1, … of 64·w integers, proposed with probability 2^−(m+1) and accepted with p =
# 64·2^(m+1)·c·e^−a(x). That is at most 1 where part 0 begins, and so in all parts, for a rises by
# more than ln 2 over each: 64·w ≥ s, and a(Kw) > 4. Either way x comes out with probability
# c·e^−a(x)/(CELLS·w). A random sign, with −0 refused, extends this to all integers. ∎

CELLS = 4096
PART = 64
"""Blocks in a part of the tail."""
LARGEST_SCALE = 2.0**56
DOUBT = 2.0**-40
"""The most by which the computed p may differ from the true p: exp is off by 2^−41 at most, and its
argument, at most 16 where a block is proposed, by 2^−47."""

_BLOCKS_PER_SCALE = 32  # at least
_MOST_BLOCKS = 1024
_ROOM = 1 + DOUBT
"""Heights are enlarged by this before B_k is rounded up, so that their own rounding lowers none."""
_CELL_BITS = 12
_ENOUGH = 24  # where fewer bits of a word are left for U, a second word is drawn for it
_BATCH = 2**15  # proposals at a time: they stay in the cache


def discrete_draws(count: int, scale: float, law: Law) -> Int64Array:
    """Return independent draws of a discrete Gaussian or Laplace law, int64 (count,).

    P(x) ∝ e^(−x²/(2·scale²)) (gaussian) or e^(−|x|/scale) (laplace). The scale is above 0 and at
    most 2^56.

    Guarantee: the law is exact. Each draw is made of bits of the operating system's entropy that no
    other draw uses.
    """
    envelope = _envelope(scale, law)
    draws = np.empty(count, np.int64)
    done_count = 0
    while done_count < count:
        more = envelope.accept(random_words(min(_BATCH, (count - done_count) * 9 // 8 + 8)))[
            : count - done_count
        ]
        draws[done_count : done_count + len(more)] = more
        done_count += len(more)
    return draws


@dataclass(frozen=True, eq=False)
class Envelope:
    """The steps above the weights, in the symbols of the proof above."""

    law: Law
    scale: float  # s
    width_bits: int  # log₂ w
    c: float  # an exact rational number, as every float is
    cells: Int64Array  # B_k (K,)
    block: Int64Array  # (CELLS,), the block of each cell; K for the tail's
    # c/B_k (K + 1,); NaN for the tail, about which floating point decides nothing
    ratios: Float64Array
    doubt: float = DOUBT  # how near U and p may come before floating point decides no more

    @classmethod
    def above(cls, scale: float, law: Law) -> Envelope:
        """Return the steps with the largest c for which CELLS cells suffice.

        c is within a hundredth of the largest.
        """
        width_bits = max(0, math.frexp(scale / _BLOCKS_PER_SCALE)[1] - 1)
        starts = np.arange(_MOST_BLOCKS, dtype=np.float64) * 2.0**width_bits
        heights = np.exp(-_exponents(starts, scale, law)) * _ROOM
        c = float(CELLS)
        while True:
            blocks = max(1, int(np.argmax(2 * PART * c * heights <= 1)))
            cells = np.ceil(c * heights[:blocks]).astype(np.int64)
            spare = CELLS - 1 - int(cells.sum())
            if spare >= 0:
                break
            c *= 0.99
        cells[0] += spare
        block = np.repeat(np.arange(blocks + 1), [*cells, 1])
        return cls(law, scale, width_bits, c, cells, block, np.append(c / cells, np.nan))

    def accept(self, words: Words) -> Int64Array:
        """Make a proposal from each word. Return those that are accepted, in order."""
        block = self.block[words & np.uint64(CELLS - 1)]
        negative = (words >> np.uint64(_CELL_BITS)) & np.uint64(1) != 0
        place = (words >> np.uint64(_CELL_BITS + 1)) & np.uint64(2**self.width_bits - 1)
        x = (block << self.width_bits) + place.view(np.int64)
        uniform, digits = self._uniform(words)

        u = (uniform >> np.uint64(11)).astype(np.float64) * 2.0**-53
        beyond = u - self.ratios[block] * np.exp(
            -_exponents(x.astype(np.float64), self.scale, self.law)
        )
        accept = beyond < 0
        for i in np.flatnonzero(~(np.abs(beyond) > self.doubt + 2.0**-digits)):
            x[i], accept[i] = self._decide(
                int(block[i]), int(x[i]), int(uniform[i]) >> 64 - digits, digits
            )
        accept &= ~negative | (x != 0)
        np.negative(x, where=negative, out=x)
        draws: Int64Array = x[accept]
        return draws

    def _uniform(self, words: Words) -> tuple[Words, int]:
        """Return the first binary digits of each U, in a word's high bits, and their number."""
        low_bits = _CELL_BITS + 1 + self.width_bits
        if 64 - low_bits >= _ENOUGH:
            return words >> np.uint64(low_bits) << np.uint64(low_bits), 64 - low_bits
        return random_words(len(words)), 64

    def _decide(self, block: int, x: int, bits: int, digits: int) -> tuple[int, bool]:
        """Return the proposed integer, and True if exact arithmetic accepts it.

        In the tail the integer is drawn here.
        """
        if block < len(self.cells):
            return x, below(
                bits, digits, Fraction(self.c) / int(self.cells[block]), self.exponent(x)
            )
        part = _heads()
        width = PART << self.width_bits
        x = (block << self.width_bits) + part * width + int(random_words(1)[0]) % width
        return x, below(bits, digits, PART * 2 ** (part + 1) * Fraction(self.c), self.exponent(x))

    def exponent(self, x: int) -> Fraction:
        """Return a(x) of the proof above, exact."""
        ratio = x / Fraction(self.scale)
        return ratio * ratio / 2 if self.law == "gaussian" else ratio


_envelope = lru_cache(maxsize=64)(Envelope.above)


def below(bits: int, digits: int, factor: Fraction, exponent: Fraction) -> bool:
    """Return True if a uniform real in [0, 1) with these first digits is below factor·e^−exponent.

    `bits` are the first binary `digits` as a whole number. More are drawn until the comparison is
    certain.
    """
    if bits >= factor * Fraction(2) ** (digits - math.floor(exponent)):
        return False  # since e^−a ≤ 2^−⌊a⌋; else a small scale would cost numbers of many digits
    precision = 40
    while True:
        context = Context(prec=precision, Emin=MIN_EMIN, Emax=MAX_EMAX)
        power = context.exp(
            -context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
        )
        # of the exponent's rounding, and of the power's own
        error = (exponent + 2) * Fraction(10) ** (1 - precision)
        low, high = (factor * Fraction(power) * (1 + sign * error) for sign in (-1, 1))
        if bits + 1 <= low * 2**digits:
            return True
        if bits >= high * 2**digits:
            return False
        bits = bits << 64 | int(random_words(1)[0])
        digits = digits + 64
        precision = precision + 20


def _exponents(x: Float64Array, scale: float, law: Law) -> Float64Array:
    """Return a(x) of the proof above, in float64 with a few roundings."""
    ratio = x / scale
    return 0.5 * ratio * ratio if law == "gaussian" else ratio


def _heads() -> int:
    """Return how many heads a fair coin shows before it shows tails."""
    heads = 0
    word = int(random_words(1)[0])
    while not word:
        heads += 64
        word = int(random_words(1)[0])
    return heads + (word & -word).bit_length() - 1
