"""How many requests and images a plan comes to, from its sizes and the generator's capabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from pe.data.population import NO_PARENT
from pe.dispatch.answers import Standing
from pe.dispatch.work import Work
from pe.plugins.passing import PassesOn
from pe.plugins.protocols import Capabilities, GenerationAPI
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
