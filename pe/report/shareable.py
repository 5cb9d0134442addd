"""The report that goes with a run's data: made of released and public things alone.

Guarantee: post-processing of the run's releases; it reads nothing under confidential/ and holds no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from pe.data.population import Population
from pe.data.samples import Images
from pe.errors import RunError
from pe.plan import Plan
from pe.privacy.words import POOL_OVERLAPS, round_up
from pe.recipe.schema import Recipe
from pe.report.charts import Line, line_chart
from pe.report.diagnostics import Generation, generations, public_plan
from pe.report.guarantee import certificate_section, promise
from pe.report.page import facts, meanings, page, paragraph, section, table
from pe.report.samples import evolution_section, extensions_section, extremes_section
from pe.store.places import RECIPE
from pe.store.run import Run

REPORT = "report.html"

_POINTS = 160

_EPSILON_AND_DELTA = (
    "ε and δ",
    "How much the data set can tell of any one protected unit: the probability of any conclusion is at most e^ε times "
    "what it would be in the neighbouring world, which differs in that unit alone, plus δ. Smaller is safer.",
)

_OF_VOTES = (
    (
        "Noisy votes",
        "How many private records found a candidate nearest, plus the noise that protects them. A vote can be "
        "negative because the noise can.",
    ),
    ("Threshold H", "Votes below it count as none, since they are likely noise."),
    ("Over the threshold", "The share of candidates whose noisy votes exceed H."),
    (
        "Effective parents",
        "How many parents of equal weight would be as even as the real ones; a few mean that little variety goes on.",
    ),
    ("Founders left", "How many of the first samples still have descendants."),
    ("Moved", "How far children lie from their parents, root mean square of pixel values from 0 to 255."),
    (
        "Signal to noise",
        "Votes that a candidate would get if the declared records spread evenly, over the noise's standard deviation.",
    ),
)


def shareable_report(run: Run) -> str:
    """The page of a run, finished or not.

    Raises:
        RunError: nothing of the run is there yet to be shown.
    """
    recipe, plan = public_plan(run)
    populations = run.populations()
    if not populations:
        raise RunError(f"{run.folder} has no population yet: there is nothing to report.")
    certificate = _certificate(run)
    extensions = run.extensions()
    found = generations(run, recipe, plan)
    fitted = _fitted(plan, certificate)
    body = "\n".join(
        [
            _headline(recipe, plan, populations, extensions, certificate, fitted),
            evolution_section(populations, plan.classes, found, steps=len(plan.steps), fitted=bool(fitted)),
            extensions_section(extensions, plan.classes),
            _votes_section(found),
            extremes_section(populations, found),
            certificate_section(certificate, REPORT),
            section("What the numbers mean", meanings((_EPSILON_AND_DELTA, *(_OF_VOTES if found else ())))),
            _recipe_section(run, certificate),
        ]
    )
    return page(f"{recipe.name}: private synthetic data", body, _banner(certificate))


def _certificate(run: Run) -> dict[str, Any] | None:
    try:
        return run.guarantee
    except RunError:
        return None


def _banner(certificate: dict[str, Any] | None) -> str:
    if certificate is None:
        return "This run is not finished: there is no certificate, and what is shown may change."
    if not certificate["holds"]:
        return " ".join(certificate["voided_by"])
    return POOL_OVERLAPS if certificate.get("pool_overlaps") else ""


def _fitted(plan: Plan, certificate: dict[str, Any] | None) -> str:
    """How the generator came to know the private records; "" where it was not fitted on any."""
    other = (certificate or {}).get("fitted_on_others")
    if other:
        return f"The run '{other['run']}' fitted the generator on other private records."
    if not plan.fit:
        return ""
    names = list(dict.fromkeys(release.name for release in plan.fit))
    known = f"release{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    drawn = "" if plan.steps else " What it draws is the result: no iterations follow."
    return f"The generator was fitted on the private records: of them it knows the certificate's noised {known}.{drawn}"


def _headline(
    recipe: Recipe,
    plan: Plan,
    populations: Sequence[Population],
    extensions: Sequence[Population],
    certificate: dict[str, Any] | None,
    fitted: str,
) -> str:
    last = populations[-1]
    made = len(last) + sum(map(len, extensions))
    numbers = [(f"{made:,}", "synthetic images" if isinstance(last.samples, Images) else "synthetic samples")]
    if certificate:
        numbers = [(round_up(certificate["epsilon"], 4), "ε"), (f"{certificate['delta']:g}", "δ"), *numbers]
    numbers += [(str(len(plan.classes)), "labels" if len(plan.classes) > 1 else "label")]
    if plan.steps:
        numbers += [(f"{len(populations) - 1} of {len(plan.steps)}", "iterations")]
    statement = promise(certificate) if certificate else "No guarantee can be stated before the run is finished."
    quality = (
        "How good the data are for training, and how near they lie to real records, is measured on private or held-out "
        "records without noise, so it stands in the run's confidential report, not here."
    )
    return (
        f"<header><h1>{escape(recipe.name)}</h1>{paragraph(statement)}{facts(numbers)}"
        f"{paragraph(fitted) if fitted else ''}{paragraph(quality, 'soft')}</header>"
    )


def _votes_section(found: Sequence[Generation]) -> str:
    if not found:
        return ""
    curves = [_sorted_votes(one) for one in found]
    ts = [float(one.t) for one in found]
    done = [one for one in found if one.founders is not None]
    charts = [
        line_chart("Noisy votes, sorted from most to fewest", curves, "candidate, per cent of all", "votes"),
        line_chart(
            "Share of candidates over the threshold, per cent",
            [Line("", ts, [100 * one.passing for one in found])],
            "iteration",
            "per cent",
        ),
        line_chart(
            "Effective number of parents", [Line("", ts, [one.effective for one in found])], "iteration", "parents"
        ),
    ]
    if done:
        steps = [float(one.t) for one in done]
        charts.append(
            line_chart(
                "Founders with descendants",
                [Line("", steps, [float(one.founders or 0) for one in done])],
                "iteration",
                "founders",
            )
        )
    head = (
        "t",
        "degree",
        "candidates",
        "H",
        "σ",
        "signal to noise",
        "over H",
        "effective",
        "parents",
        "founders left",
        "moved",
    )
    rows = [
        (
            str(one.t),
            f"{one.degree:g}",
            f"{len(one.votes):,}",
            f"{one.threshold:.3g}",
            f"{one.sigma:.3g}",
            "–" if one.expected is None else f"{one.expected / one.sigma:.2g}",
            f"{one.passing:.1%}",
            f"{one.effective:,.0f}",
            "–" if one.parents is None else f"{one.parents:,}",
            "–" if one.founders is None else f"{one.founders:,}",
            "–" if one.moved is None else f"{one.moved:.3g}",
        )
        for one in found
    ]
    return section("How the votes went", f'<div class="charts">{"".join(charts)}</div>', table(head, rows))


def _sorted_votes(one: Generation) -> Line:
    ordered = np.sort(one.votes)[::-1]
    places = np.unique(np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).round().astype(np.int64))
    shares = 100 * places / max(len(ordered) - 1, 1)
    return Line(f"iteration {one.t}", shares.tolist(), ordered[places].tolist())


def _recipe_section(run: Run, certificate: dict[str, Any] | None) -> str:
    recipe = (run.folder / RECIPE).read_text(encoding="utf-8")
    software = certificate["software"] if certificate else {}
    versions = ", ".join(f"{name} {version}" for name, version in software.items())
    return section(
        "How to reproduce it",
        paragraph(
            "With the private records in place, `pe run recipe.yaml` makes a run like this one. All randomness but the "
            "noise comes from the recipe's seed; the noise is drawn anew each time, and each new run over the same "
            "records adds to what they spend."
        ),
        f"<pre><code>{escape(recipe)}</code></pre>",
        paragraph(f"Made with {versions}.", "soft") if versions else "",
    )
