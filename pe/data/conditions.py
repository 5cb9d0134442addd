"""Conditions: what a generator needs to know of each sample, as columns of arrays.

A condition is public: a prompt, an API class, a simulator's parameters. It belongs to its sample and
is carried to all its descendants (App. I of the paper), independent of the private label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.samples import Indices
from pe.errors import ContractError

Column = npt.NDArray[Any]

CONDITION = "condition."
"""Before a condition's name, as its column is stored."""

SOFT_LABEL = "soft_label"
"""The column in which a generator may give each sample's probabilities of the labels: float32 (n, labels)."""

CAPTION = "caption"
"""The column in which a generator may keep the text that each sample was drawn from."""

DRAWN = "drawn"
"""The column in which a generator may keep each sample as it was drawn, before it was resized, to vary that:
uint8 (n, height, width, 3). It is no reason to ask for samples apart."""


GENERATOR = "generator"
"""The column in which a generator of several keeps which of them made each sample, by name."""

PART = "."
"""In the name of a column that only some of the samples have, those of one generator of several: `hand.font`. All
others are 0, or empty."""


@dataclass(frozen=True, eq=False)
class Conditions(Mapping[str, Column]):
    """A table with one row per sample.

    Attributes:
        columns: name → array whose first axis counts the samples: numbers of any shape, or text
            (dtype `U`). No objects. Empty for generators without conditions.

    Raises:
        ContractError: columns of different lengths, or of objects.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ContractError(f"Condition columns differ in length: {lengths}.")
        for name, column in self.columns.items():
            if column.dtype.hasobject:
                raise ContractError(f"Condition column '{name}' holds Python objects: use numbers or text.")

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        """The number of columns (a mapping's length)."""
        return len(self.columns)

    @property
    def rows(self) -> int | None:
        """The number of samples described; None without columns."""
        return next((len(column) for column in self.columns.values()), None)

    def take(self, indices: Indices) -> Conditions:
        """The rows at `indices`, in that order."""
        return Conditions({name: column[indices] for name, column in self.columns.items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Conditions]) -> Conditions:
        """All parts, one after another.

        Raises:
            ContractError: their columns differ, but for those of some samples (`PART`).
        """
        names = {tuple(sorted(name for name in part.columns if PART not in name)) for part in parts}
        if len(names) > 1:
            raise ContractError(f"Condition columns differ between answers: {sorted(names)}.")
        like = {name: column for part in parts for name, column in part.items()}
        return cls({name: np.concatenate([_of(part, name, one) for part in parts]) for name, one in like.items()})


def _of(part: Conditions, name: str, like: Column) -> Column:
    """A column of a part; without it, 0 or empty, of the type and shape of `like`."""
    return part[name] if name in part else np.zeros((part.rows or 0, *like.shape[1:]), like.dtype)
