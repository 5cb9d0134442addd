"""How many requests and images a plan comes to, from its sizes and the generator's capabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from pe.data.population import NO_PARENT
from pe.dispatch.answers import Standing
from pe.dispatch.work import Work
from pe.plugins.protocols import Capabilities, GenerationAPI, PassesOn, PluginInfo, info_of
from pe.recipe.schema import Recipe
from pe.steps import Plan, Step, by_label


@dataclass(frozen=True)
class Span:
    """A whole number that lies between `least` and `most`, both included."""

    least: int = 0
    most: int = 0

    def __str__(self) -> str:
        return f"{self.most:,}" if self.least == self.most else f"{self.least:,}–{self.most:,}"

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)


def founders(plan: Plan) -> tuple[int, ...]:
    """Random samples of S_0 per label; its others are variations of them."""
    return tuple(ceil(size / (plan.initial_variations + 1)) for size in plan.sizes)


def first_calls(plan: Plan, api: GenerationAPI) -> tuple[Span, Span]:
    """Requests of RANDOM_API and of VARIATION_API for S_0, cut as the run will cut them."""
    new, phase = founders(plan), "founders" if plan.initial_variations else "population/0"
    labels = by_label(new)
    work = Work(phase, labels, plan.classes, plan.seed, np.full(len(labels), NO_PARENT, np.int64))
    calls = sum(1 for _ in work.chunks(np.arange(len(labels)), Standing.untouched(len(labels)), api))
    varied = [Offspring(Span(size - one, size - one), one) for size, one in zip(plan.sizes, new, strict=True)]
    images = sum(each.images.most for each in varied)
    return Span(calls, calls), _over_ways(api, lambda can: _calls_for(varied, can), len(new), images)


@dataclass(frozen=True)
class Offspring:
    """Of one label: how many members of S_t are asked for, from how many candidates, each with `ahead` made already."""

    wanted: Span
    candidates: int
    ahead: int = 0

    @property
    def images(self) -> Span:
        """Images asked for: fewest where the votes spread over all candidates, most where one parent takes all."""
        least, most = self.wanted.least - self.ahead * self.candidates, self.wanted.most - self.ahead
        return Span(max(least, 0), max(most, 0))


def variation_images(candidates: Sequence[int], step: Step) -> Span:
    """Images of an iteration's lookahead and offspring; those that the lookahead has made are not asked for again."""
    ahead = step.lookahead * sum(candidates)
    return sum((each.images for each in _offspring(candidates, step)), Span(ahead, ahead))


def variation_calls(candidates: Sequence[int], step: Step, api: GenerationAPI) -> Span:
    """Requests for an iteration's lookahead and offspring, cut as pe.dispatch.work cuts.

    Args:
        candidates: members of S_{t-1} per label.
        step: iteration t.
        api: the generator.
    """
    groups = (2 if step.lookahead else 1) * sum(size > 0 for size in step.sizes)
    images = variation_images(candidates, step).most
    return _over_ways(api, lambda can: _calls_of(candidates, step, can), groups, images)


def _over_ways(api: GenerationAPI, count: Callable[[Capabilities], Span], groups: int, images: int) -> Span:
    """What `count` says of a generator; of several, from what one that makes all asks to the most of any.

    To that comes one more request of each other for every group of items that they may share, and there are no more
    requests than images.
    """
    if not isinstance(api, PassesOn):
        return count(api.capabilities)
    spans = [count(can) for can in api.ways]
    most = max(span.most for span in spans) + (len(spans) - 1) * groups
    return Span(min(span.least for span in spans), min(most, images))


def _calls_of(candidates: Sequence[int], step: Step, capabilities: Capabilities) -> Span:
    chunk, k = capabilities.max_chunk, step.lookahead
    calls = _calls_for(_offspring(candidates, step), capabilities)
    if capabilities.shares == "nothing":
        ahead = ceil(k * sum(candidates) / chunk)
        return calls + Span(ahead, ahead)
    apart = sum(candidates) * ceil(k / chunk)
    joined = apart if capabilities.shares == "parent" else sum(ceil(k * size / chunk) for size in candidates)
    return calls + Span(joined, apart)


def _offspring(candidates: Sequence[int], step: Step) -> list[Offspring]:
    """What each label asks for in iteration t; which candidates the votes will keep is not known before."""
    if not step.degree:
        return [Offspring(Span(), parents) for parents in candidates]
    found = []
    for size, parents in zip(step.sizes, candidates, strict=True):
        how, most = step.descent, min(parents, step.descent.draws(size))
        kept = {
            "none": Span(),
            "selected": Span(min(most, 1), most),
            "winners": Span(0, min(parents, size // 2)),
            "all": Span(parents, parents),
        }[how.keep]
        found.append(Offspring(Span(size - kept.most, size - kept.least), parents, step.reuse))
    return found


def _calls_for(offspring: Sequence[Offspring], capabilities: Capabilities) -> Span:
    """Requests for these offspring.

    Which parents will have how many is not known before, nor which conditions they carry: if a request's items share
    them, the fewest calls are those of one parent (condition) per label, the most those of all different.
    """
    chunk = capabilities.max_chunk
    if capabilities.shares == "nothing":
        images = sum((each.images for each in offspring), Span())
        return Span(ceil(images.least / chunk), ceil(images.most / chunk))
    fewest = sum(ceil(each.images.least / chunk) for each in offspring)
    most = sum(_most_groups(each.wanted.most, each.candidates, chunk, each.ahead) for each in offspring)
    return Span(fewest, most)


def total(calls: Iterable[Span | None]) -> Span | None:
    """The sum; None when one of them is unknown."""
    found = Span()
    for span in calls:
        if span is None:
            return None
        found += span
    return found


def _most_groups(items: int, parents: int, chunk: int, ahead: int) -> int:
    """The most requests for `items` offspring of `parents` candidates, each of which has made `ahead` of its own.

    A parent's first request takes ahead + 1 offspring, each further one `chunk` more; whichever is cheaper
    is had as often as can be.
    """
    several = min(parents, items // (ahead + 1))
    return max((m + (items - m * (ahead + 1)) // chunk for m in {min(1, several), several} if m), default=0)


# Decide if a run first tries that its generator varies the parents it is handed, and what that asks for.


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


# What a run's samples take on disk.


def disk_of(recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> int | None:
    """The most bytes that samples take at one time, each as many as a blank one of its shape; None: not known.

    Populations stay. Answers that are no population yet lie beside them, the lookahead's included; at the end the
    synthetic data is written, and the shareable side copied before it is replaced.
    """
    info = None if api is None else info_of(api)
    if info is None:
        return None
    shape = info.shape or recipe.private.shape
    sample = recipe.private.modality.stack([None], shape).array.nbytes
    each = sample + (3 * prod(info.kept) if info.kept else 0)
    size = sum(plan.sizes)
    kept = size + (sum(founders(plan)) if plan.initial_variations else 0)
    most = 2 * kept
    for step in plan.steps:
        ahead, size = step.lookahead * size, sum(step.sizes)
        kept += size
        most = max(most, kept + size + ahead)
    return max(each * most, 2 * each * kept + sample * size)
