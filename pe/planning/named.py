"""Refuse what a run made elsewhere would reach on this machine, unless the owner names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pe.errors import RecipeError, quoted
from pe.plugins.reach import reach
from pe.recipe.schema import Recipe
from pe.store.machine import ELSEWHERE, is_own
from pe.store.places import FULL_RECIPE, RECIPE


def check_named(folder: Path, recipe: Recipe, changes: Sequence[str] = (), *sections: str) -> None:
    """Refuse a run's recipe that reaches things of this machine which `changes` do not name.

    To be called before a plug-in of the recipe is constructed. A run of this machine's own is not
    asked.

    Args:
        folder: the run's directory.
        recipe: its recipe, with `changes`; the whole one if `sections` have `private`.
        changes: of the form `a.b=value`, as the owner typed them.
        sections: those that are about to be used: api, embedding, private.

    Raises:
        RecipeError: names each such setting, and the options that allow it.
    """
    if is_own(folder, FULL_RECIPE if "private" in sections else RECIPE):
        return
    named = tuple(f"{change.partition('=')[0].strip()}." for change in changes)
    reached = reach(recipe.model_dump(mode="json", include={*sections}), folder).items()
    unnamed = {key: value for key, value in reached if not f"{key}.".startswith(named)}
    if unnamed:
        told = ", and ".join(f"{key} is '{value}'" for key, value in unnamed.items())
        options = [
            quoted(f"{key}={json.dumps(value, ensure_ascii=False)}")
            for key, value in unnamed.items()
        ]
        raise RecipeError(
            f"{told} in a recipe that came with {folder}, which {ELSEWHERE}: if that is what you "
            f"want, say so by --set {' --set '.join(options)}."
        )
