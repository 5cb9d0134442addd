"""Before its first samples a run measures how its generator heeds the degree; pe/planning/measuring.py says which run.

What is asked for are chunks like all others: counted, priced, limited, and never asked for again after a crash.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import numpy as np

from pe.dispatch.dispatcher import Dispatcher
from pe.engine.ladder import CHANCE, FEWEST, Rung, Verdict, judge, measure
from pe.errors import APIError
from pe.planning.measuring import HIGH, LOW, PARENTS, Measuring
from pe.plugins.protocols import Embedding
from pe.recipe.schema import Recipe
from pe.steps import Plan
from pe.store.places import CONFIDENTIAL, DEGREE, population_place

PHASE = "degree"
"""Its phases are degree/parents, degree/0.1 and degree/1."""

_STOPS = {
    "ignored": "does not heed the degree",
    "mixed up": "mixes parents up",
}


def check_degree(recipe: Recipe, plan: Plan, dispatcher: Dispatcher, embedding: Embedding) -> None:
    """Measure how the generator heeds the degree, once in a run; nothing where that is not called for, or S_1 is there.

    Guarantee: it reads no private record, and asks for what public seeds name.

    Raises:
        APIError: the degree is not heeded, or parents come back mixed up; or the generator makes no sample.
    """
    run = dispatcher.run
    if not Measuring.of(recipe, plan, dispatcher.api) or run.journal.files(f"{population_place(1)}/"):
        return
    found = run.run.degree
    if found is None:
        found = _measure(dispatcher, embedding)
        run.write(DEGREE, json.dumps(found, ensure_ascii=False) + "\n")
    for degree in (LOW, HIGH):
        dispatcher.forget(f"{PHASE}/{degree:g}")
    name = type(dispatcher.api).__name__
    if found["degree"] == "unknown":
        dispatcher.progress.warn(f"Whether {name} heeds the degree could not be measured: {found['told']}.")
    elif found["degree"] in _STOPS:
        raise APIError(
            f"{name} {_STOPS[found['degree']]}: {found['told']}; `pe probe --ladder` shows it. Change `api`, or the "
            f"server, and begin a new run; `{dispatcher.command('evolution.measure_degree')}` with `never` goes on "
            "all the same."
        )


def _measure(dispatcher: Dispatcher, embedding: Embedding) -> dict[str, Any]:
    """What DEGREE is to hold."""
    alike = dispatcher.api.capabilities.shares != "nothing"  # so that they come in one request, if they ever do
    place = f"{CONFIDENTIAL}/{PHASE}"
    labels = np.zeros(PARENTS, np.int32)
    parents = dispatcher.draw(f"{PHASE}/parents", place, labels, "trying the degree: parents", alike)

    def rung(degree: float) -> Rung:
        description = f"trying the degree: {degree:g}"
        with closing(dispatcher.vary_each(f"{PHASE}/{degree:g}", PHASE, parents, degree, description)) as made:
            return measure(degree, parents.samples, made, embedding)

    low, high = rung(LOW), rung(HIGH)
    unit = parents.samples.unit
    verdict: Verdict = judge(low, high, unit)
    return {
        "degree": verdict.degree,
        "told": verdict.told,
        "distances": [{"degree": one.degree, "variations": len(one.parents)} | one.means() for one in (low, high)],
        "unit": unit,
        "rule": {"chance": CHANCE, "parents": PARENTS, "fewest": FEWEST},
    }
