"""Public images as a recipe names them, and noise that is none, so that a test sees what a record
moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from adapters.trained.public import Public, Source
from pe.fit.trainer import PrivateRecords


def source(named: Any) -> Source:
    """What a recipe's `public` says: a path, or a mapping."""
    found: Source = TypeAdapter(Public).validate_python(named)
    return found


class NoNoise:
    """Leaves sums as they are; the i-th coin is heads by its own place, so that no unit's hangs on
    the others.
    """

    unsafe = True

    def discrete_gaussian(self, shape: Any, scale: float) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)

    def coins(self, count: int, rate: float) -> np.ndarray:
        return np.random.default_rng(1).random(count) < rate


def only(private: PrivateRecords, kept: np.ndarray) -> PrivateRecords:
    """Some of the records, or all in another order."""
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])
