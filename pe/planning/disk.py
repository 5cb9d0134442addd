"""What a run's samples take on disk."""

from __future__ import annotations

from math import prod

from pe.planning.calls import founders
from pe.plugins.protocols import GenerationAPI, info_of
from pe.recipe.schema import Recipe
from pe.steps import Plan


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
