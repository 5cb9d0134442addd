"""Random selection, a control: the run again, with parents chosen without votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pe.data.population import Members, Population
from pe.data.seeds import generator
from pe.dispatch.answers import Items
from pe.dispatch.dispatcher import Dispatcher
from pe.evaluation.controls import ControlRun
from pe.planning.calls import Span, variation_calls
from pe.plugins.protocols import GenerationAPI
from pe.recipe.schema import Recipe
from pe.selection import Descent
from pe.steps import Plan
from pe.store.run import Run


def random_selection_run(
    run: Run, recipe: Recipe, plan: Plan, api: GenerationAPI, populations: Sequence[Population]
) -> ControlRun:
    """The control by random selection of a run with this plan and these S_0 … S_t; nothing is asked yet."""
    total, steps = Span(), plan.steps[: len(populations) - 1]
    sizes = [tuple(np.bincount(population.labels, minlength=len(plan.classes)).tolist()) for population in populations]
    for step, before, after in zip(steps, sizes, sizes[1:], strict=False):
        offspring_only = replace(step, sizes=after, lookahead=0, reuse=0, descent=Descent())
        total += variation_calls(before, offspring_only, api)
    degrees = [step.degree for step in steps]
    return ControlRun(
        run=run,
        recipe=recipe,
        api=api,
        name="random-selection",
        images=sum(map(len, populations[1:])),
        calls=total.most,
        make=lambda dispatcher: random_selection(populations, degrees, recipe.seed, dispatcher),
    )


def random_selection(
    populations: Sequence[Population], degrees: Sequence[float], seed: int, dispatcher: Dispatcher
) -> Population:
    """What the run would have come to without votes: from the same S_0, parents chosen uniformly within each label.

    The offspring are asked for as in the run, as many of each label in every iteration. The lookahead is not:
    it only serves the votes.

    Args:
        populations: the run's S_0 … S_T.
        degrees: v_1 … v_T.
        seed: of the choice.
        dispatcher: asks, commits and limits; it writes elsewhere than into the run's own populations.
    """
    population = populations[0]
    for t, (evolved, degree) in enumerate(zip(populations[1:], degrees, strict=True), start=1):
        parents = _uniform(population.labels, evolved.labels, generator(seed, f"control/random-selection/{t}"))
        population = dispatcher.variations(t, population, Members.offspring(parents), degree)
    return population


def _uniform(candidates: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32], rng: np.random.Generator) -> Items:
    """A parent of each of the labels `wanted`, drawn with replacement among the candidates of that label."""
    parents = np.empty(len(wanted), np.int64)
    for label in np.unique(wanted):
        rows = np.flatnonzero(wanted == label)
        parents[rows] = np.sort(rng.choice(np.flatnonzero(candidates == label), len(rows)))
    return parents
