"""Random selection, a control: the run again, with parents chosen without votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pe.data.population import Members, Population
from pe.data.seeds import generator
from pe.dispatch.dispatcher import Dispatcher
from pe.evaluation.controls import ControlRun
from pe.planning.calls import Span, variation_calls, variation_images
from pe.plugins.protocols import GenerationAPI
from pe.recipe.schema import Recipe
from pe.selection import Descent, descend
from pe.steps import Plan
from pe.store.run import Run


def random_selection_run(
    run: Run, recipe: Recipe, plan: Plan, api: GenerationAPI, populations: Sequence[Population]
) -> ControlRun:
    """The control by random selection of a run with this plan and these S_0 … S_t; nothing is asked yet.

    From the same S_0, each step follows from equal votes for all candidates by the run's own `keep` and `offspring`.
    The offspring are asked for as in the run; the lookahead is not: it only serves the votes.
    """
    total, images, steps = Span(), 0, plan.steps[: len(populations) - 1]
    chosen: list[tuple[Members, float]] = []
    for step, before, after in zip(steps, populations, populations[1:], strict=False):
        seeds = generator(recipe.seed, f"control/random-selection/{step.t}")
        members = choose_without_votes(before.labels, after.labels, step.descent, seeds)
        chosen.append((members, step.degree))
        candidates, new = (
            tuple(np.bincount(labels, minlength=len(plan.classes)).tolist())
            for labels in (before.labels, before.labels[members.parents[~members.kept]])
        )
        asking = replace(step, sizes=new, lookahead=0, reuse=0, descent=Descent())
        total += variation_calls(candidates, asking, api)
        images += variation_images(candidates, asking).most

    def make(dispatcher: Dispatcher) -> Population:
        population = populations[0]
        for t, (members, degree) in enumerate(chosen, start=1):
            population = dispatcher.variations(t, population, members, degree)
        return population

    return ControlRun(
        run=run, recipe=recipe, api=api, name="random-selection", images=images, calls=total.most, make=make
    )


def choose_without_votes(
    candidates: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32], descent: Descent, rng: np.random.Generator
) -> Members:
    """How S_t follows from S_{t-1} if all candidates of a label have the same votes, whichever of them stay.

    Args:
        candidates: labels of S_{t-1}.
        wanted: labels of S_t, ascending.
        descent: the run's; but parents are drawn with replacement, each as likely as any other.
        rng: of the choice.
    """
    found = []
    for label, size in zip(*np.unique(wanted, return_counts=True), strict=True):
        rows = rng.permutation(np.flatnonzero(candidates == label))
        none = np.zeros(len(rows), np.bool_)
        one = descend(np.ones(len(rows)), none, int(size), 0.0, replace(descent, selection="sample"), rng)
        found.append(Members(rows[one.parents], one.kept))
    return Members(np.concatenate([one.parents for one in found]), np.concatenate([one.kept for one in found]))
