"""Count the requests, images and bytes of a plan, from its sizes and the generator's capabilities."""

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
    """A whole number between `least` and `most`, both included."""

    least: int = 0
    most: int = 0

    def __str__(self) -> str:
        return f"{self.most:,}" if self.least == self.most else f"{self.least:,}–{self.most:,}"

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)

    @classmethod
    def exactly(cls, number: int) -> Span:
        """Return the span of a known number."""
        return cls(number, number)


def total(spans: Iterable[Span | None]) -> Span | None:
    """Return the sum of spans; None if a span is unknown (None)."""
    result = Span()
    for span in spans:
        if span is None:
            return None
        result += span
    return result


@dataclass(frozen=True)
class _Offspring:
    """One label's `number` offspring of `candidates` candidates; the lookahead has made `ahead` offspring of each."""

    number: Span
    candidates: int
    ahead: int = 0

    @property
    def images(self) -> Span:
        """Images asked for: fewest where the votes spread over all candidates, most where one parent takes all."""
        least, most = self.number.least - self.ahead * self.candidates, self.number.most - self.ahead
        return Span(max(least, 0), max(most, 0))


def first_calls(plan: Plan, api: GenerationAPI) -> tuple[Span, Span]:
    """Count the requests of RANDOM_API and of VARIATION_API for S_0, whose samples are divided as in the run."""
    new, phase = plan.founders, "founders" if plan.initial_variations else "population/0"
    labels = by_label(new)
    work = Work(phase, labels, plan.classes, plan.seed, np.full(len(labels), NO_PARENT, np.int64))
    calls = sum(1 for _ in work.chunks(np.arange(len(labels)), Standing.of(len(labels)), api))
    offspring = [_Offspring(Span.exactly(size - one), one) for size, one in zip(plan.sizes, new, strict=True)]
    images = sum(each.images.most for each in offspring)
    return Span.exactly(calls), _over_ways(api, lambda can: _calls_for(offspring, can), len(new), images)


def variation_images(candidates: Sequence[int], step: Step) -> Span:
    """Count the images of an iteration's lookahead, and of its offspring without those that the lookahead has made."""
    ahead = step.lookahead * sum(candidates)
    return sum((each.images for each in _offspring(candidates, step)), Span.exactly(ahead))


def variation_calls(candidates: Sequence[int], step: Step, api: GenerationAPI) -> Span:
    """Count the requests for iteration t's lookahead and offspring, into which pe.dispatch.work divides them."""
    groups = (2 if step.lookahead else 1) * sum(size > 0 for size in step.sizes)
    images = variation_images(candidates, step).most
    return _over_ways(api, lambda can: _calls_of(candidates, step, can), groups, images)


def _over_ways(api: GenerationAPI, count: Callable[[Capabilities], Span], groups: int, images: int) -> Span:
    """Count requests. Of several generators: the least if one makes all, the most if each other adds one per group."""
    if not isinstance(api, PassesOn):
        return count(api.capabilities)
    spans = [count(can) for can in api.ways]
    most = max(span.most for span in spans) + (len(spans) - 1) * groups
    return Span(min(span.least for span in spans), min(most, images))


def _calls_of(candidates: Sequence[int], step: Step, can: Capabilities) -> Span:
    chunk, k = can.max_chunk, step.lookahead
    calls = _calls_for(_offspring(candidates, step), can)
    if can.shares == "nothing":
        return calls + Span.exactly(ceil(k * sum(candidates) / chunk))
    apart = sum(candidates) * ceil(k / chunk)
    together = apart if can.shares == "parent" else sum(ceil(k * size / chunk) for size in candidates)
    return calls + Span(together, apart)


def _offspring(candidates: Sequence[int], step: Step) -> list[_Offspring]:
    """Return each label's offspring in iteration t; which candidates the votes will keep is not known before."""
    if not step.degree:
        return [_Offspring(Span(), parents) for parents in candidates]
    offspring = []
    for size, parents in zip(step.sizes, candidates, strict=True):
        most = min(parents, step.descent.draws(size))
        staying = {
            "none": Span(),
            "selected": Span(min(most, 1), most),
            "winners": Span(0, min(parents, size // 2)),
            "all": Span.exactly(parents),
        }[step.descent.keep]
        offspring.append(_Offspring(Span(size - staying.most, size - staying.least), parents, step.reuse))
    return offspring


def _calls_for(offspring: Sequence[_Offspring], can: Capabilities) -> Span:
    """Count the requests for these offspring; which of them share a parent or a condition is not known before."""
    chunk = can.max_chunk
    if can.shares == "nothing":
        images = sum((each.images for each in offspring), Span())
        return Span(ceil(images.least / chunk), ceil(images.most / chunk))
    fewest = sum(ceil(each.images.least / chunk) for each in offspring)
    return Span(fewest, sum(_most_groups(each, chunk) for each in offspring))


def _most_groups(offspring: _Offspring, chunk: int) -> int:
    """Return the most requests for a label's offspring; a parent's first request is for its offspring no. ahead + 1."""
    items, first = offspring.number.most, offspring.ahead + 1
    several = min(offspring.candidates, items // first)
    return max((m + (items - m * first) // chunk for m in {min(1, several), several} if m), default=0)


# The trial by which a run sees that its generator varies the parents it is handed.


PARENTS = 8
"""Parents of the trial, each varied once."""
IMAGES = 2 * PARENTS
WIDEST = 0.6
"""The degree up to which variations must be recognisable as those of their parents."""


@dataclass(frozen=True)
class Trial:
    """Requests and images of the trial; none where there is no trial."""

    random: Span = Span()
    variation: Span = Span()
    images: Span = Span()

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> Trial:
        """Plan the trial of a run; a generator that could not be set up (None) is taken to need none."""
        if api is None or not _needs_trial(recipe, plan, api):
            return cls()
        images = Span.exactly(IMAGES)
        if isinstance(api, PassesOn):  # who makes how many of them, and in how many calls, is drawn
            return cls(Span(1, PARENTS), Span(1, PARENTS), images)
        whole = ceil(PARENTS / api.capabilities.max_chunk)
        variations = PARENTS if api.capabilities.shares == "parent" else whole
        return cls(Span.exactly(whole), Span.exactly(variations), images)

    def __bool__(self) -> bool:
        return bool(self.images.most)


def trial_step(plan: Plan) -> Step | None:
    """Return the iteration of the least degree above 0, at which the trial is made; None if that is above WIDEST."""
    return min((step for step in plan.steps if 0 < step.degree <= WIDEST), key=lambda step: step.degree, default=None)


def may_try(recipe: Recipe, info: PluginInfo) -> bool:
    """True if a run of the recipe may make the trial, as far as the generator's info tells."""
    rule = recipe.evolution.measure_degree
    return rule == "always" or (rule == "auto" and info.hosts != () and not info.anew)


def _needs_trial(recipe: Recipe, plan: Plan, api: GenerationAPI) -> bool:
    """True if a trial is always wanted, or only a trial shows that a remote generator does what the plan relies on."""
    if trial_step(plan) is None or not may_try(recipe, info_of(api)):
        return False
    # one of several degrees put in words; or which of several parents in a request an image is a variation of
    can, degrees = api.capabilities, {step.degree for step in plan.steps if step.degree}
    words = can.degree == "wording" and len(degrees) > 1
    mixable = can.shares != "parent" and can.max_chunk > 1 and not can.one_by_one
    several = mixable and not can.deterministic and bool(degrees)
    return words or several or recipe.evolution.measure_degree == "always"


def disk_of(recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> int | None:
    """Return the most bytes that samples take on disk at one time; None: unknown.

    All populations are kept. Beside them lie answers not yet gathered into a population, the lookahead's included; at
    the end the synthetic data is written, and the shareable files are copied before they are replaced.
    """
    if api is None:
        return None
    info = info_of(api)
    sample = recipe.private.modality.stack([None], info.shape or recipe.private.shape).array.nbytes
    each = sample + (3 * prod(info.kept) if info.kept else 0)
    stored_samples = sum(plan.sizes) + (sum(plan.founders) if plan.initial_variations else 0)
    most = 2 * stored_samples
    for step in plan.steps:
        stored_samples += sum(step.sizes)
        most = max(most, stored_samples + sum(step.sizes) + step.lookahead * sum(plan.candidates(step.t)))
    return max(each * most, 2 * each * stored_samples + sample * sum(plan.last_sizes))
