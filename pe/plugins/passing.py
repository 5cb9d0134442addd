"""A generator that passes each item on to one of several others."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pe.data.conditions import Conditions
from pe.plugins.protocols import Capabilities, Seeds


@runtime_checkable
class PassesOn(Protocol):
    """A generator that passes each item on to one of several others, each of which can do something else.

    A request holds items of one way alone, and is cut as that way allows.
    """

    @property
    def ways(self) -> tuple[Capabilities, ...]:
        """What each way that an item may go can do."""
        ...

    def ways_of(self, conditions: Conditions, seeds: Seeds, explores: bool) -> npt.NDArray[np.int64]:
        """The way of each of n items, int64 (n,), an index into `ways`.

        Args:
            conditions: drawn for new samples, or of the parents.
            seeds: uint64 (n,), of the items.
            explores: as in `VariationRequest`; False for new samples.
        """
        ...
