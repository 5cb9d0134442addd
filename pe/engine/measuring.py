"""Before its first samples a run tries if variations are of their own parents; pe/planning/calls.py says when.

What is asked for are chunks like all others: counted, priced, limited, and never asked for again after a crash.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import numpy as np

from pe.dispatch.dispatcher import Dispatcher
from pe.engine.ladder import FEWEST, described, measure
from pe.errors import APIError
from pe.planning.calls import PARENTS, Trial, trial_step
from pe.plugins.protocols import Embedding
from pe.recipe.schema import Recipe
from pe.steps import Plan, Step
from pe.store.certified import read_json_file
from pe.store.places import CONFIDENTIAL, DEGREE, population_place

PHASE = "degree"
"""Its phases are degree/parents and, with the degree in place of 0.4, degree/0.4."""


def check_parents(recipe: Recipe, plan: Plan, dispatcher: Dispatcher, embedding: Embedding) -> None:
    """Try once if variations are of their own parents; nothing where that is not called for, or S_1 is there.

    Guarantee: it reads no private record, and asks for what public seeds name.

    Raises:
        APIError: they are not; or the generator makes no sample.
    """
    run, step = dispatcher.run, trial_step(plan)
    if step is None or not Trial.of(recipe, plan, dispatcher.api) or run.journal.files(f"{population_place(1)}/"):
        return
    if not (run.folder / DEGREE).is_file():
        run.write(DEGREE, json.dumps(_try(dispatcher, embedding, step), ensure_ascii=False) + "\n")
    dispatcher.forget(f"{PHASE}/{step.degree:g}")
    found, name = read_json_file(run.folder / DEGREE), type(dispatcher.api).__name__
    follows = found.get("follows", found.get("degree") not in ("ignored", "mixed up"))  # as versions before wrote it
    if follows is None:
        dispatcher.progress.warn(f"Whether {name} varies the parents it is handed is not known: {found['told']}.")
    elif not follows:
        raise APIError(
            f"{name} does not vary the parents it is handed: {found['told']}; `pe probe --ladder` shows it. Change "
            f"`api`, or the server, and begin a new run; `{dispatcher.command('evolution.measure_degree')}` with "
            "`never` goes on all the same."
        )


def _try(dispatcher: Dispatcher, embedding: Embedding, step: Step) -> dict[str, Any]:
    """What DEGREE is to hold."""
    alike = dispatcher.api.capabilities.shares != "nothing"  # so that they come in one request, if they ever do
    labels = np.zeros(PARENTS, np.int32)
    parents = dispatcher.draw(f"{PHASE}/parents", f"{CONFIDENTIAL}/{PHASE}", labels, "trying the parents", alike)
    phase, description = f"{PHASE}/{step.degree:g}", f"trying the degree: {step.degree:g}"
    with closing(dispatcher.vary_each(phase, parents, step.degree, step.t, description)) as made:
        rung = measure(step.degree, parents.samples, made, embedding)
    judged = len(rung.parents) >= FEWEST
    clause = described(rung) if judged else f"{len(rung.parents)} of {PARENTS} parents have a variation, not {FEWEST}"
    return {"follows": rung.follows if judged else None, "degree": step.degree, "told": clause}
