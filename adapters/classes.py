"""Public classes of a model's own: what each label draws from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.errors import RecipeError, nearest_name
from pe.plugins.protocols import Seeds

API_CLASS = "api_class"
"""The condition's column: int64, the model's own class of each sample."""

Choices = int | str | list[int | str]
"""A class by its number or its name, or several to draw from."""


@dataclass(frozen=True)
class Classes:
    """The classes of a model.

    Attributes:
        model: its name, for messages.
        count: how many it knows; None: it takes none.
        names: in order; empty where it names none.
    """

    model: str
    count: int | None
    names: tuple[str, ...]

    def draw(
        self, labels: Sequence[str], seeds: Seeds, choices: Mapping[str, Choices] | None
    ) -> npt.NDArray[np.int64] | None:
        """The class of each item, int64 (n,): drawn by its seed alone from those of its label; None: there are none.

        Args:
            labels: of the items.
            seeds: uint64 (n,).
            choices: label → what it draws from; None: from all, whatever the label.

        Raises:
            RecipeError: a label has no choice, or one that is no class of the model's.
        """
        if self.count is None:
            if choices is not None:
                raise RecipeError(f"classes is given, but the model '{self.model}' has none: leave it out.")
            return None
        found = {label: self._of(label, choices) for label in set(labels)}
        places = seeds >> np.uint64(16)
        drawn = [found[label][int(place) % len(found[label])] for label, place in zip(labels, places, strict=True)]
        return np.array(drawn, dtype=np.int64)

    def _of(self, label: str, choices: Mapping[str, Choices] | None) -> list[int]:
        if choices is None:
            return list(range(self.count or 0))
        return [self._number(one) for one in _choices_of(label, choices)]

    def _number(self, named: int | str) -> int:
        if isinstance(named, int):
            if not 0 <= named < (self.count or 0):
                raise RecipeError(f"classes: the model has {self.count} classes, from 0 on, and none is {named}.")
            return named
        if named not in self.names:
            said = nearest_name(named, self.names) if self.names else "it names none: give their numbers."
            raise RecipeError(f"classes: the model has no class named '{named}'; {said}")
        return self.names.index(named)


def check_choices(labels: Sequence[str], choices: Mapping[str, Choices] | None) -> None:
    """Raise RecipeError if a label has no class to draw from; whether the model has those classes is not checked."""
    for label in labels if choices is not None else ():
        _choices_of(label, choices or {})


def _choices_of(label: str, choices: Mapping[str, Choices]) -> Sequence[int | str]:
    if label not in choices:
        known = ", ".join(f"'{name}'" for name in choices)
        raise RecipeError(f"classes: there is none for the label '{label}' (there are some for {known}).")
    named = choices[label]
    found = named if isinstance(named, list) else [named]
    if not found:
        raise RecipeError(f"classes.{label} is empty: name at least one class.")
    return found
