"""The labels that a fitted model knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pe.errors import RecipeError


def check_labels(asked: Sequence[str], known: Collection[str]) -> None:
    """Raise RecipeError if the model was not fitted for a label of a request."""
    if unknown := sorted(set(asked) - set(known)):
        names = ", ".join(f"'{name}'" for name in sorted(known))
        raise RecipeError(
            f"The model was fitted for the labels {names}, and '{unknown[0]}' is none of them: sample it with the "
            "private.classes that it was fitted with."
        )
