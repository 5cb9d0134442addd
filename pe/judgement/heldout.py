"""Test that private and held-out records come from one population.

Without that, a comparison of the two says nothing about privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import Float64Array
from pe.data.samples import generator
from pe.judgement.resemble import areas_of

ALARMS = 0.01
"""Share of false alarms: of test sets from the private records' population that are refused."""
SHUFFLES = 400


@dataclass(frozen=True)
class NotComparable:
    """The test records differ from the private ones, so nothing can be said of privacy."""

    column: str  # the feature in which they differ most

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            "Privacy in practice is not measured: the test records differ from the private records "
            f"in '{self.column}', so the two cannot be compared. Check how both were read, or test "
            "with records from the same source."
        )


def compare_populations(
    names: Sequence[str], private: Float64Array, test: Float64Array, seed: int
) -> NotComparable | None:
    """Return the feature in which test and private records differ. None: they may be alike.

    A permutation test on the feature that tells them apart best. The private records, (n, d), and
    the test records, (m, d), are shuffled SHUFFLES times.
    """
    rng = generator(seed, "judgement/populations")
    rows = np.concatenate([private, test])
    is_private = np.arange(len(rows)) < len(private)
    own = areas_of(rows, is_private)
    best = [float(areas_of(rows, rng.permutation(is_private)).max()) for _ in range(SHUFFLES)]
    if own.max() <= np.quantile(best, 1 - ALARMS):
        return None
    return NotComparable(names[int(own.argmax())])
