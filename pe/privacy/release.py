"""A release: one noised quantity, stated by its mechanism and parameters.

A release never holds a value from private data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from pe.errors import PrivacyError

FINEST = 2**31
"""Most grid steps per vote, so that the square of a vote, in steps, fits into 64 bits."""

CONVOLVED_FROM = 8.0
"""Scale in steps from which discrete Gaussian noise is as good as continuous noise that is a little
smaller (docs/proofs.md, "Discrete noise")."""

Mechanism = Literal["discrete_gaussian", "discrete_laplace", "none"]


class Relation(StrEnum):
    """The pairs of private data sets that count as neighbours.

    add_remove: one data set has one unit more; the number of units is private. replace_one: the two
    data sets differ in one unit's data; the number of units is public. zero_out: one unit's data is
    replaced by nothing (it casts no vote); the number of units is public, and sensitivities are
    those of add_remove.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


@dataclass(frozen=True)
class Poisson:
    """Sampling: each step sees every unit independently with probability `rate`, in (0, 1)."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise PrivacyError(
                f"A Poisson sampling rate must lie between 0 and 1, not {self.rate}. Use None for "
                "no sampling."
            )


@dataclass(frozen=True)
class Release:
    """One noised quantity computed from private data.

    Attributes:
        name: unique within a run, such as "histogram/3".
        mechanism: "discrete_gaussian" or "discrete_laplace": integers from the system's entropy; or
            "none": no noise is added, so no ε holds.
        sensitivity: the most one unit can change the clean quantity: L2 for Gaussians, L1 for
            Laplace. Declared by the code that computes the quantity. It is measured in votes, or,
            for DP-SGD, in clips C: there it is 1, and under replace_one 2.
        noise_multiplier: noise standard deviation (Laplace: scale) divided by `sensitivity`; > 0,
            and 0 without noise. For a discrete Gaussian the deviation is the parameter σ of
            Canonne, Kamath and Steinke (2020).
        relation: the neighbours for which the sensitivity holds.
        unit: "record", or the column or subfolder that names the user.
        sampling: None, or Poisson (Gaussian only).
        count: how often the release is done, ≥ 1; for DP-SGD the number of steps.
        grid: integer steps per vote (or clip), a power of two; fine (scale ≥ 8 steps) where there
            is sampling.

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
            raise self._refuse("relation", f"one of {', '.join(Relation)}") from error
        if not all(isinstance(text, str) and text for text in (self.name, self.unit)):
            raise PrivacyError("A release's name and privacy unit must be non-empty text.")
        if self.mechanism not in get_args(Mechanism):
            raise self._refuse("mechanism", f"one of {', '.join(get_args(Mechanism))}")
        if not (math.isfinite(self.sensitivity) and 0 < self.sensitivity <= 1e12):
            raise self._refuse("sensitivity", "a number above 0, of at most 1e12")
        if not self.has_noise and self.noise_multiplier != 0:
            raise self._refuse("noise_multiplier", "0 where the mechanism is 'none'")
        if self.has_noise and not 1e-6 <= self.noise_multiplier <= 1e12:
            raise self._refuse("noise_multiplier", "a number from 1e-6 to 1e12")
        count = self.count
        grid = self.grid
        # with more, no total would ever end
        most = 10**9 if self.sampling or self.mechanism != "discrete_laplace" else 10**4
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
            raise self._refuse("count", f"a whole number from 1 to {most:g}")
        if (
            isinstance(grid, bool)
            or not isinstance(grid, int)
            or not 1 <= grid <= FINEST
            or grid & (grid - 1)
        ):
            raise self._refuse("grid", f"a power of two up to {FINEST}")
        if self.sampling is not None and (
            self.mechanism != "discrete_gaussian" or self.scale < CONVOLVED_FROM
        ):
            raise self._refuse(
                "sampling", f"None but for Gaussian noise of at least {CONVOLVED_FROM:g} grid steps"
            )

    def _refuse(self, field: str, right: str) -> PrivacyError:
        return PrivacyError(
            f"Release '{self.name}': {field} is {getattr(self, field)!r}; it must be {right}."
        )

    @property
    def has_noise(self) -> bool:
        """True if noise is added."""
        return self.mechanism != "none"

    @property
    def scale(self) -> float:
        """The standard deviation of the noise (Laplace: scale), in grid steps."""
        return self.grid * self.sensitivity * self.noise_multiplier

    def to_dict(self) -> dict[str, Any]:
        """Return the release as JSON values."""
        sampling = None if self.sampling is None else {"poisson_rate": self.sampling.rate}
        return asdict(self) | {"relation": str(self.relation), "sampling": sampling}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Release:
        """Return the release that `to_dict` wrote.

        Raises:
            PrivacyError: a key is missing or unknown, or a value has the wrong type or range.
        """
        try:
            fields = dict(values)
            if not fields.keys() >= {"relation", "unit"}:  # which have no default in a file
                raise KeyError("relation or unit")
            if fields["sampling"] is not None:
                fields["sampling"] = Poisson(float(fields["sampling"]["poisson_rate"]))
            return cls(**fields)
        except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
            raise PrivacyError(
                f"This is not a release as the toolkit writes it: {values!r}."
            ) from error
