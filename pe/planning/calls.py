"""Count a plan's requests, images and bytes, from its sizes and what the generator can do."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from pe.data.population import NO_PARENT
from pe.dispatch.answers import ItemState
from pe.dispatch.work import Work
from pe.plugins.protocols import Capabilities, Generator, PluginInfo, info_of
from pe.recipe.schema import Recipe
from pe.steps import Phase, Plan, Step, by_label


def most_calls(phase: Phase, plan: Plan, api: Generator) -> int:
    """Return the most requests that a phase makes, into which pe.dispatch.work divides it.

    The number is exact for new samples. For variations it depends on which members the votes
    choose.
    """
    if phase.asks == "random":
        labels = by_label(phase.samples)
        work = Work(
            phase.name,
            labels,
            plan.classes,
            plan.seed,
            np.full(len(labels), NO_PARENT, np.int64),
        )
        return sum(1 for _ in work.chunks(np.arange(len(labels)), ItemState.of(len(labels)), api))
    # each of the other generators may get a share of a group, and ends it with a request that is
    # not full
    groups = sum(size > 0 for size in phase.samples)
    most = max(_most_variation_calls(phase, can) for can in api.ways) + (len(api.ways) - 1) * groups
    return min(most, phase.most)


def _most_variation_calls(phase: Phase, can: Capabilities) -> int:
    if can.shares == "nothing":
        return ceil(phase.most / can.max_chunk)
    if phase.name.startswith("lookahead/"):  # every candidate is varied equally often
        return sum(phase.parents) * ceil(phase.most / sum(phase.parents) / can.max_chunk)
    labels = zip(phase.samples, phase.parents, strict=True)
    return sum(
        _most_groups(samples, parents, phase.ahead, can.max_chunk) for samples, parents in labels
    )


def _most_groups(samples: int, parents: int, ahead: int, chunk: int) -> int:
    """Return the most requests for a label's variations.

    The variations of one request share a parent or a condition. A parent's first request is for its
    variation number `ahead` + 1, because the lookahead has made those before.
    """
    if samples <= 0:
        return 0
    several = min(parents, (samples + ahead) // (ahead + 1))
    return max(m + (samples + ahead - m * (ahead + 1)) // chunk for m in (1, several))


# The trial by which a run sees that its generator varies the parents it is handed.


PARENTS = 8
"""Parents of the trial, each varied once."""
IMAGES = 2 * PARENTS
WIDEST = 0.6
"""The degree up to which variations must be recognisable as those of their parents."""


@dataclass(frozen=True)
class Trial:
    """The most requests and images of the trial. All are 0 if there is no trial."""

    random: int = 0
    variation: int = 0
    images: int = 0

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, api: Generator | None) -> Trial:
        """Plan the trial of a run.

        A generator that could not be set up (None) is taken to need none.
        """
        if api is None or not _needs_trial(recipe, plan, api):
            return cls()
        if len(api.ways) > 1:  # who makes how many of them, and in how many calls, is drawn
            return cls(PARENTS, PARENTS, IMAGES)
        whole = ceil(PARENTS / api.capabilities.max_chunk)
        variations = PARENTS if api.capabilities.shares == "parent" else whole
        return cls(whole, variations, IMAGES)

    def __bool__(self) -> bool:
        return bool(self.images)


def trial_step(plan: Plan) -> Step | None:
    """Return the iteration of the least degree above 0, at which the trial is made.

    There is no trial, so the result is None, if that degree is above WIDEST.
    """
    return min(
        (step for step in plan.steps if 0 < step.degree <= WIDEST),
        key=lambda step: step.degree,
        default=None,
    )


def may_try(recipe: Recipe, info: PluginInfo) -> bool:
    """True if a run of the recipe may make the trial, as far as the generator's info tells."""
    rule = recipe.evolution.measure_degree
    return rule == "always" or (rule == "auto" and info.hosts != () and not info.anew)


def _needs_trial(recipe: Recipe, plan: Plan, api: Generator) -> bool:
    """True if a trial is asked for, or if it alone shows that a generator does as planned."""
    if trial_step(plan) is None or not may_try(recipe, info_of(api)):
        return False
    # one of several degrees put in words; or which of several parents in a request an image is a
    # variation of
    can = api.capabilities
    degrees = {step.degree for step in plan.steps if step.degree}
    words = can.degree == "wording" and len(degrees) > 1
    mixable = can.shares != "parent" and can.max_chunk > 1 and not can.one_by_one
    several = mixable and not can.deterministic and bool(degrees)
    return words or several or recipe.evolution.measure_degree == "always"


def disk_of(recipe: Recipe, plan: Plan, api: Generator | None) -> int | None:
    """Return the most bytes that samples take on disk at one time, or None if unknown.

    All populations are kept. Beside them lie answers not yet gathered into a population, the
    lookahead's included; at the end the synthetic data is written, and the shareable files are
    copied before they are replaced.
    """
    if api is None:
        return None
    info = info_of(api)
    sample = recipe.private.modality.stack([None], info.shape or recipe.private.shape).array.nbytes
    each = sample + (3 * prod(info.kept) if info.kept else 0)
    stored = waiting = most = 0
    for phase in plan.phases:
        waiting += phase.most
        if phase.name == "founders" or phase.makes:
            stored += sum(plan.founders if phase.name == "founders" else plan.sizes_at(phase.t))
            most = max(most, stored + waiting)
            waiting = 0
    return max(each * most, 2 * each * stored + sample * sum(plan.last_sizes))
