"""Does the noise hide what it is added to, to the last bit? A statistical test of the noise as it is shipped.

Noise that lies on a lattice coarser than the integers, in its tail or anywhere, lets whoever knows all records but one
tell from a released bit pattern whether that one was there. So the low bits of exact noise are fair coins, of large
draws as of all, and the draws as a whole follow the Gaussian law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pe.privacy.noise import Noise

SCALE = 2.0**30
"""That of DP-SGD's noise for σ = 1, in grid steps."""
_BITS, _BINS, _TAIL = 16, 64, 3.5  # higher bits are not even: the density falls over their period


@dataclass(frozen=True)
class NoiseAudit:
    """What the tests say.

    Attributes:
        draws: how many were looked at.
        tail: how many of them lie _TAIL standard deviations out or more.
        p_values: chance, if the noise is exact, of an outcome as unlikely as what was seen; by test.
    """

    draws: int
    tail: int
    p_values: dict[str, float]

    @property
    def p_value(self) -> float:
        """Of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))


def audit_noise(noise: Noise, draws: int = 4_000_000) -> NoiseAudit:
    """Test `draws` draws of discrete Gaussian noise of scale SCALE; takes 100 bytes for each."""
    drawn = np.abs(noise.discrete_gaussian(draws, SCALE))
    tail = drawn[drawn >= _TAIL * SCALE]
    share = special.erf((drawn + 0.5) / SCALE / np.sqrt(2))
    seen = np.bincount(np.minimum((share * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS)
    square = float(np.square(seen - draws / _BINS).sum() / (draws / _BINS))
    return NoiseAudit(
        draws,
        len(tail),
        {
            "the Gaussian law": float(special.chdtrc(_BINS - 1, square)),
            "low bits of all draws": _evenness(drawn),
            "low bits of the tail": _evenness(tail),
        },
    )


def _evenness(drawn: npt.NDArray[np.int64]) -> float:
    """The p-value of the hypothesis that the low bits are independent fair coins."""
    ones = np.array([np.sum(drawn >> bit & 1) for bit in range(_BITS)], dtype=np.float64)
    square = float(np.square(2 * ones - len(drawn)).sum() / max(1, len(drawn)))
    return float(special.chdtrc(_BITS, square))
