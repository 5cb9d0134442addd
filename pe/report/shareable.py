"""The report that goes with a run's data: made of released and public things alone.

Guarantee: post-processing of the run's releases; it reads nothing under confidential/ and holds no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pe.data.samples import suspicions
from pe.planning.cautions import guarantee_warnings
from pe.privacy.accounting import epsilon
from pe.privacy.release import Relation
from pe.privacy.words import NO_NOISE, POOL_OVERLAPS, found_at_most, round_up
from pe.recipe.schema import Recipe
from pe.report.charts import Line
from pe.report.diagnostics import Generation, certificate_of, evolution
from pe.report.generators import fared, lines_of
from pe.report.page import render
from pe.report.pictures import extremes, strips
from pe.report.variety import NEAR, collapse_warnings, varieties, whole
from pe.steps import Plan
from pe.store.places import RECIPE
from pe.store.run import Run
from pe.store.shared_recipe import without_folders

Certificate = Mapping[str, Any]

REPORT = "report.html"

_POINTS = 160

_OTHER_WORLD = {
    Relation.ADD_REMOVE: "had never been in the private data, or one more had been",
    Relation.REPLACE_ONE: "in the private data had been another",
    Relation.ZERO_OUT: "in the private data had been blank",
}


def shareable_report(run: Run) -> str:
    """The page of a run, finished or not.

    Raises:
        RunError: nothing of the run is there yet to be shown.
    """
    values = evolution(run)
    found, populations, certificate = values["found"], run.populations(len(values["plan"].classes)), certificate_of(run)
    plan = values["plan"]
    variety = varieties(populations, plan.classes, plan.seed)
    t = len(populations) - 1
    collapse = collapse_warnings(t, variety[-1], plan.steps[t - 1] if t else None)
    values |= {
        "certificate": certificate,
        "pool_overlaps": POOL_OVERLAPS,
        "no_noise": NO_NOISE if run.noiseless else "",
        "warnings": [
            *(certificate["warnings"] if certificate else _warnings(run, plan)),
            *collapse,
            *suspicions(f"S_{t}", populations[-1].samples),
        ],
        "promise": promise(certificate) if certificate else "No guarantee can be stated before the run is finished.",
        "count": len(populations[-1]),
        "varieties": [whole(by_label) for by_label in variety],
        "variety": variety[-1],
        "near": NEAR,
        "degree": run.degree,
        "noun": populations[-1].samples.noun,
        "unit": populations[-1].samples.unit,
        "extensions": [(len(one), strips(one, plan.classes)) for one in run.extensions()],
        "votes": [sorted_votes(one) for one in found],
        "passing": [100 * one.passing for one in found],
        "generators": (told := fared(populations, found)),
        "generator_lines": lines_of(told),
        "extremes": extremes(populations[found[-1].t - 1], found[-1].votes) if found else [],
        "recipe": without_folders((run.folder / RECIPE).read_text(encoding="utf-8")),
        "page": REPORT,
    }
    return render("shareable.html", values)


def promise(certificate: Certificate) -> str:
    """The certificate's promise without a technical term; where it is void, that it is."""
    if not certificate["holds"]:
        return str(certificate["statement"])
    epsilon, delta, unit = certificate["epsilon"], certificate["delta"], certificate["unit"]["name"]
    factor = round_up(math.exp(epsilon), 4) if epsilon < 500 else "e^ε"
    return (
        "Whatever anybody concludes from these files, and whatever else they know: the probability of that conclusion "
        f"is at most {factor} times what it would be if any one {unit} "
        f"{_OTHER_WORLD[Relation(certificate['relation']['name'])]}, plus {delta:g}. A test for whether a given {unit} "
        "was used that wrongly accuses 1 in 100 finds at most "
        f"{found_at_most(epsilon, delta, certificate['gdp_mu'])}."
    )


def _warnings(run: Run, plan: Plan) -> list[str]:
    """What the certificate of a run that is not finished will warn of."""
    recipe = Recipe.load(run.folder / RECIPE)
    return guarantee_warnings(recipe, plan, epsilon(plan.releases, recipe.privacy.delta))


def sorted_votes(one: Generation) -> Line:
    """The noisy votes of an iteration from most to fewest, as a curve over the candidates in per cent."""
    ordered = np.sort(one.votes)[::-1]
    places = np.unique(np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).round().astype(np.int64))
    shares = 100 * places / max(len(ordered) - 1, 1)
    return f"iteration {one.t}", shares.tolist(), ordered[places].tolist()
