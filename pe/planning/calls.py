"""How many requests and images a plan comes to, from its sizes and the generator's capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from pe.data.population import NO_PARENT
from pe.dispatch.answers import Standing
from pe.dispatch.work import Work
from pe.plugins.protocols import Capabilities, GenerationAPI
from pe.steps import Plan, Step, by_label


@dataclass(frozen=True)
class Span:
    """A whole number that lies between `least` and `most`, both included."""

    least: int = 0
    most: int = 0

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)


def random_calls(plan: Plan, api: GenerationAPI) -> Span:
    """Requests for S_0, cut as the run will cut them."""
    labels = by_label(plan.sizes)
    work = Work("population/0", labels, plan.classes, plan.seed, np.full(len(labels), NO_PARENT, np.int64))
    calls = sum(1 for _ in work.chunks(np.arange(len(labels)), Standing.untouched(len(labels)), api))
    return Span(calls, calls)


def variation_images(candidates: Sequence[int], step: Step) -> Span:
    """Images of an iteration's lookahead and offspring.

    Of the offspring, those that the lookahead has made are not asked for: all of them where the votes spread,
    only `step.reuse` per label where one parent takes all.
    """
    ahead = step.lookahead * sum(candidates)
    if not step.reuse:
        return Span(ahead + sum(step.sizes), ahead + sum(step.sizes))
    pairs = list(zip(step.sizes, candidates, strict=True))
    least = sum(max(size - step.reuse * parents, 0) for size, parents in pairs)
    most = sum(max(size - step.reuse, 0) for size, _ in pairs)
    return Span(ahead + least, ahead + most)


def variation_calls(candidates: Sequence[int], step: Step, capabilities: Capabilities) -> Span:
    """Requests for an iteration's lookahead and offspring, cut as pe.dispatch.work cuts.

    Which parents will have how many offspring is not known before, nor which conditions they carry: the
    fewest calls are those of one parent (condition) per label, the most those of all different.

    Args:
        candidates: members of S_{t-1} per label.
        step: iteration t.
        capabilities: the generator's.
    """
    chunk, k = capabilities.max_chunk, step.lookahead
    ahead, images = k * sum(candidates), variation_images(candidates, step)
    if capabilities.shares == "nothing":
        calls = ceil(ahead / chunk)
        return Span(calls + ceil((images.least - ahead) / chunk), calls + ceil((images.most - ahead) / chunk))
    pairs = list(zip(step.sizes, candidates, strict=True))
    apart = sum(candidates) * ceil(k / chunk)
    joined = apart if capabilities.shares == "parent" else sum(ceil(k * size / chunk) for size in candidates)
    fewest = sum(ceil(max(size - step.reuse * parents, 0) / chunk) for size, parents in pairs)
    most = sum(_most_groups(size, parents, chunk, step.reuse) for size, parents in pairs)
    return Span(joined + fewest, apart + most)


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
