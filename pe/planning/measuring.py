"""Decide if a run first tries that its generator varies the parents it is handed, and what that asks for."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pe.planning.calls import Span
from pe.plugins.passing import PassesOn
from pe.plugins.protocols import GenerationAPI, PluginInfo, info_of
from pe.recipe.schema import Recipe
from pe.steps import Plan, Step

PARENTS = 8
"""Parents of such a trial, each varied once."""
IMAGES = 2 * PARENTS
WIDEST = 0.6
"""The degree up to which variations must be known for those of their parents."""
_NONE = Span()


@dataclass(frozen=True)
class Measuring:
    """The trial by which a run sees that its generator varies the parents it is handed.

    Attributes:
        random: calls of RANDOM_API.
        variation: calls of VARIATION_API.
        images: of both; none where it is not tried.
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
            return cls(Span(1, PARENTS), Span(1, PARENTS), Span(IMAGES, IMAGES))
        can = api.capabilities
        whole = ceil(PARENTS / can.max_chunk)
        varied = PARENTS if can.shares == "parent" else whole
        return cls(Span(whole, whole), Span(varied, varied), Span(IMAGES, IMAGES))

    def __bool__(self) -> bool:
        return bool(self.images.most)


def tried(plan: Plan) -> Step | None:
    """The iteration at whose degree it is tried: that of the least one above 0; None where that is too wide."""
    return min((step for step in plan.steps if 0 < step.degree <= WIDEST), key=lambda step: step.degree, default=None)


def may_measure(recipe: Recipe, info: PluginInfo) -> bool:
    """True if a run of the recipe may try it, as far as the generator's info tells."""
    how = recipe.evolution.measure_degree
    return how == "always" or (how == "auto" and info.hosts != () and not info.anew)


def _is_measured(recipe: Recipe, plan: Plan, api: GenerationAPI) -> bool:
    """Where the generator answers from elsewhere, and the plan leans on what it cannot know of itself.

    That is a degree that is only put in words, where there are several to be told apart; or which of several parents
    of one request an image is a variation of, where no request has the same answer twice by which that could be known.
    """
    if tried(plan) is None or not may_measure(recipe, info_of(api)):
        return False
    can, degrees = api.capabilities, {step.degree for step in plan.steps if step.degree}
    words = can.degree == "wording" and len(degrees) > 1
    mixable = can.shares != "parent" and can.max_chunk > 1 and not can.one_by_one
    several = mixable and not can.deterministic and bool(degrees)
    return words or several or recipe.evolution.measure_degree == "always"
