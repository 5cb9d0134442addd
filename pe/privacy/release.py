"""What was released, as a value; who counts it is another file (accounting.py).

A release is public: it states a mechanism and its parameters, never a value computed from private data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from pe.errors import PrivacyError

FINEST = 2**31
"""Most grid steps per vote: the square of a vote, in steps, fits into 64 bits."""

CONVOLVED_FROM = 8.0
"""Scale in steps from which discrete Gaussian noise is as good as continuous noise that is a little smaller
(docs/proofs.md, "Discrete noise")."""

Mechanism = Literal["discrete_gaussian", "discrete_laplace", "none"]


class Relation(StrEnum):
    """Which two private data sets count as neighbours.

    add_remove: one has one unit more; the number of units is private.
    replace_one: they differ in one unit's data; the number of units is public.
    zero_out: one unit's data is replaced by nothing (it casts no vote); the number of units is public.
        Same sensitivities as add_remove.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


@dataclass(frozen=True)
class Poisson:
    """Each step sees every unit independently with probability `rate`, in (0, 1)."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise PrivacyError(
                f"A Poisson sampling rate lies between 0 and 1, not {self.rate}: use None for no sampling."
            )


@dataclass(frozen=True)
class Release:
    """One noised quantity computed from private data.

    Attributes:
        name: unique within a run, such as "histogram/3".
        mechanism: "discrete_gaussian" or "discrete_laplace": integers from the system's entropy; or "none": no noise
            is added, so no ε holds.
        sensitivity: the most one unit can change the clean quantity: L2 for Gaussians, L1 for Laplace. Declared by
            the code that computes the quantity. Its unit is one vote, or, for DP-SGD, one clip C: there it is 1, and
            under replace_one 2.
        noise_multiplier: noise standard deviation (Laplace: scale) divided by `sensitivity`; > 0, and 0 without
            noise. For a discrete Gaussian, the parameter σ of Canonne, Kamath and Steinke (2020).
        relation: which neighbours the sensitivity speaks of.
        unit: "record", or the column or subfolder that names the user.
        sampling: None, or Poisson (Gaussian only).
        count: how often it is done, ≥ 1; DP-SGD's number of steps.
        grid: integer steps per vote (or clip), a power of two; fine (scale ≥ 8 steps) where there is sampling.

    Raises:
        PrivacyError: a value outside its range.
    """

    name: str
    mechanism: Mechanism
    sensitivity: float
    noise_multiplier: float
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    sampling: Poisson | None = None
    count: int = 1
    grid: int = 1

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "relation", Relation(self.relation))
        except ValueError as error:
            raise self._wrong("relation", f"one of {', '.join(Relation)}") from error
        if not self.name or not self.unit:
            raise PrivacyError("A release names itself and its privacy unit: both are non-empty text.")
        if self.mechanism not in get_args(Mechanism):
            raise self._wrong("mechanism", f"one of {', '.join(get_args(Mechanism))}")
        if not (math.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise self._wrong("sensitivity", "a finite number above 0")
        if not self.noised and self.noise_multiplier != 0:
            raise self._wrong("noise_multiplier", "0 where the mechanism is 'none'")
        if self.noised and not 1e-6 <= self.noise_multiplier <= 1e12:
            raise self._wrong("noise_multiplier", "a number from 1e-6 to 1e12")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= 10**9:
            raise self._wrong("count", "a whole number from 1 to 1e9")
        self._check_grid()

    def _check_grid(self) -> None:
        grid = self.grid
        if isinstance(grid, bool) or not isinstance(grid, int) or not 1 <= grid <= FINEST or grid & (grid - 1):
            raise self._wrong("grid", f"a power of two up to {FINEST}")
        if self.sampling is not None and (self.mechanism != "discrete_gaussian" or self.scale < CONVOLVED_FROM):
            raise self._wrong("sampling", f"None but for Gaussian noise of at least {CONVOLVED_FROM:g} grid steps")

    def _wrong(self, field: str, wanted: str) -> PrivacyError:
        return PrivacyError(f"Release '{self.name}': {field} is {getattr(self, field)!r}; it must be {wanted}.")

    @property
    def noised(self) -> bool:
        """Whether noise is added."""
        return self.mechanism != "none"

    @property
    def scale(self) -> float:
        """What the noise is drawn with: standard deviation (Laplace: scale), in grid steps."""
        return self.grid * self.sensitivity * self.noise_multiplier

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "mechanism": self.mechanism,
            "sensitivity": self.sensitivity,
            "noise_multiplier": self.noise_multiplier,
            "relation": str(self.relation),
            "unit": self.unit,
            "sampling": None if self.sampling is None else {"poisson_rate": self.sampling.rate},
            "count": self.count,
            "grid": self.grid,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Release:
        """The release that `to_dict` wrote.

        Raises:
            PrivacyError: a key is missing or unknown, or a value has the wrong type or range.
        """
        try:
            fields = dict(values)
            sampling = fields.pop("sampling")
            return cls(**fields, sampling=None if sampling is None else Poisson(float(sampling["poisson_rate"])))
        except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
            raise PrivacyError(f"This is not a release as the toolkit writes it: {values!r}.") from error
