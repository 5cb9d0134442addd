"""Whether a run measures how its generator heeds the degree, and what that asks for; pe/engine/measuring.py does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from pe.planning.calls import Span
from pe.plugins.passing import PassesOn
from pe.plugins.protocols import GenerationAPI, PluginInfo, info_of
from pe.recipe.schema import Recipe
from pe.steps import Plan

PARENTS = 8
LOW, HIGH = 0.1, 1.0
"""The degrees at which each of the parents is varied once."""
IMAGES = 3 * PARENTS
_NONE = Span()
_FOUND = {
    "heeded": "heeded",
    "ignored": "not heeded",
    "mixed up": "unknown, because parents are mixed up",
    "unknown": "unknown",
}


@dataclass(frozen=True)
class Measuring:
    """What a run asks for to measure how its generator heeds the degree.

    Attributes:
        random: calls of RANDOM_API.
        variation: calls of VARIATION_API.
        images: of both; none where it is not measured.
    """

    random: Span = _NONE
    variation: Span = _NONE
    images: Span = _NONE

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> Measuring:
        """Of the recipe's run with this generator; None: it could not be set up, and is taken to need none."""
        if api is None or not _is_measured(recipe, plan, api):
            return cls()
        if isinstance(api, PassesOn):  # who makes how many of them, and in how many calls, is drawn
            return cls(Span(1, PARENTS), Span(2, 2 * PARENTS), Span(IMAGES, IMAGES))
        can = api.capabilities
        whole = ceil(PARENTS / can.max_chunk)
        varied = 2 * (PARENTS if can.shares == "parent" else whole)
        return cls(Span(whole, whole), Span(varied, varied), Span(IMAGES, IMAGES))

    def __bool__(self) -> bool:
        return bool(self.images.most)


def in_words(found: Mapping[str, Any]) -> str:
    """What a run measured of the degree (`Run.degree`), in a clause."""
    return f"{_FOUND.get(found['degree'], 'unknown')}, as measured: {found['told']}"


def degrees_asked(recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> list[tuple[float, int]]:
    """The degrees of all variations that a run asks for, each with the iteration that it is of, in their order."""
    tried = [(LOW, 1), (HIGH, 1)] if Measuring.of(recipe, plan, api) else []
    return [*tried, *((step.degree, step.t) for step in plan.steps)]


def may_measure(recipe: Recipe, info: PluginInfo) -> bool:
    """Whether a run of the recipe may measure it, as far as the generator's info tells."""
    how = recipe.evolution.measure_degree
    return how == "always" or (how == "auto" and info.hosts != () and not info.anew)


def _is_measured(recipe: Recipe, plan: Plan, api: GenerationAPI) -> bool:
    """Where the generator answers from elsewhere, and the plan leans on what it cannot know of itself.

    That is a degree that is only put in words, where there are several to be told apart; or which of several parents
    of one request an image is a variation of, where no request has the same answer twice by which that could be known.
    """
    if not plan.steps or not may_measure(recipe, info_of(api)):
        return False
    can, degrees = api.capabilities, {step.degree for step in plan.steps if step.degree}
    words = can.degree == "wording" and len(degrees) > 1
    mixable = can.shares != "parent" and can.max_chunk > 1 and not can.one_by_one
    several = mixable and not can.deterministic and bool(degrees)
    return words or several or recipe.evolution.measure_degree == "always"
