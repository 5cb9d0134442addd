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
from pe.evolution import Plan
from pe.recipe.schema import Recipe
from pe.report.charts import Line, line_chart
from pe.report.diagnostics import Generation, generations, public_plan
from pe.report.page import facts, listed, meanings, page, paragraph, section, table
from pe.report.pictures import image_tag, spread_over, strip
from pe.run.directory import Run

REPORT = "report.html"

_PER_STRIP, _EXTREMES, _POINTS = 12, 10, 160

_SELF_ISSUED = (
    "The certificate is issued by the software for itself; certificate.json has it whole, with every file's SHA-256, "
    "and `pe privacy` recomputes it."
)

_MEANINGS = (
    (
        "ε and δ",
        "How much the data set can tell of any one protected unit: with probability at least 1 − δ, no outcome "
        "is more than e^ε times as likely with the unit as without it. Smaller is safer.",
    ),
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
    found = generations(run, recipe, plan)
    body = "\n".join(
        [
            _headline(recipe, plan, populations, certificate),
            evolution_section(populations, plan.classes, found),
            _votes_section(found),
            _extremes_section(populations, found),
            _certificate_section(certificate),
            section("What the numbers mean", meanings(_MEANINGS)),
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
    return "" if certificate["holds"] else " ".join(certificate["voided_by"])


def _headline(recipe: Recipe, plan: Plan, populations: Sequence[Population], certificate: dict[str, Any] | None) -> str:
    last = populations[-1]
    numbers = [(f"{len(last):,}", "synthetic images" if isinstance(last.samples, Images) else "synthetic samples")]
    if certificate:
        numbers = [(f"{certificate['epsilon']:.4g}", "ε"), (f"{certificate['delta']:g}", "δ"), *numbers]
    numbers += [(str(len(plan.classes)), "labels" if len(plan.classes) > 1 else "label")]
    numbers += [(f"{len(populations) - 1} of {len(plan.steps)}", "iterations")]
    statement = certificate["statement"] if certificate else "No guarantee can be stated before the run is finished."
    quality = (
        "How good the data are for training, and how near they lie to real records, is measured on private or held-out "
        "records without noise, so it stands in the run's confidential report, not here."
    )
    return (
        f"<header><h1>{escape(recipe.name)}</h1>{paragraph(statement)}{facts(numbers)}"
        f"{paragraph(quality, 'soft')}</header>"
    )


def evolution_section(populations: Sequence[Population], classes: Sequence[str], found: Sequence[Generation]) -> str:
    """The strips of every iteration, with a slider over them."""
    degrees = {one.t: one.degree for one in found}
    shown = "".join(_generation(t, one, classes, degrees.get(t)) for t, one in enumerate(populations))
    slider = (
        '<div class="slider"><label for="iteration">Iteration</label>'
        f'<input id="iteration" type="range" min="0" max="{len(populations) - 1}" value="{len(populations) - 1}">'
        '<output id="shown" for="iteration"></output></div>'
    )
    note = "Each row shows samples of one label, evenly spread over the population: none was picked."
    return section("How it evolved", slider, shown, paragraph(note, "soft"))


def _generation(t: int, population: Population, classes: Sequence[str], degree: float | None) -> str:
    name = "S0, straight from the generator" if t == 0 else f"S{t}, after {t} round{'s' if t > 1 else ''} of votes"
    if degree is not None:
        name += f", varied by degree {degree:g}"
    rows = []
    for label, title in enumerate(classes):
        members = np.flatnonzero(population.labels == label)
        if members.size:
            picture = strip(population, spread_over(members, _PER_STRIP))
            alt = f"Synthetic samples of label {title} in S{t}"
            rows.append(f'<div class="name">{escape(title)}</div><div>{image_tag(picture, alt)}</div>')
    return (
        f'<figure class="generation" data-name="{escape(name, quote=True)}"><figcaption>{escape(name)}</figcaption>'
        f'<div class="strips">{"".join(rows)}</div></figure>'
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


def _extremes_section(populations: Sequence[Population], found: Sequence[Generation]) -> str:
    """The last voted-on population's members with most and fewest noisy votes."""
    if not found or not isinstance(populations[found[-1].t - 1].samples, Images):
        return ""
    last = found[-1]
    voted = populations[last.t - 1]
    order = np.argsort(-last.votes, kind="stable")
    most, fewest = order[:_EXTREMES], order[-_EXTREMES:]
    rows = ""
    for title, members in (("most", most), ("fewest", fewest)):
        picture = image_tag(strip(voted, members), f"Samples with {title} noisy votes")
        rows += f'<div class="name">{title}</div><div>{picture}</div>'
    note = f"Of S{last.t - 1}, by the noisy votes of iteration {last.t}."
    return section("Most and fewest votes", paragraph(note, "soft"), f'<div class="strips">{rows}</div>')


def _certificate_section(certificate: dict[str, Any] | None) -> str:
    if certificate is None:
        return ""
    head = ("release", "mechanism", "sensitivity", "noise multiplier", "times", "state")
    rows = [
        (
            str(one["name"]),
            str(one["mechanism"]).replace("_", " "),
            f"{one['sensitivity']:.4g}",
            f"{one['noise_multiplier']:.4g}",
            f"{one['count'] * one['charges']:,}",
            str(one["state"]),
        )
        for one in certificate["releases"]
    ]
    others = certificate["data_set"]
    total = ""
    if others:
        runs = f"{others['runs']} run{'s' if others['runs'] != 1 else ''}"
        total = f"All {runs} over this data set together: ε = {others['epsilon']:.4g} at δ = {others['delta']:g}."
    return section(
        "The certificate",
        paragraph(certificate["relation"]["words"]),
        paragraph(certificate["unit"]["words"]),
        table(head, rows),
        paragraph(total) if total else "",
        "<h3>What it does not cover</h3>",
        listed(certificate["not_covered"]),
        "<h3>What would void it</h3>",
        listed(certificate["would_void"]),
        listed(certificate["warnings"]) if certificate["warnings"] else "",
        paragraph(f"{_SELF_ISSUED} It covers {_covered(certificate)} files besides this page.", "soft"),
    )


def _covered(certificate: dict[str, Any]) -> int:
    return sum(one["file"] != REPORT for one in certificate["covered"])


def _recipe_section(run: Run, certificate: dict[str, Any] | None) -> str:
    recipe = (run.folder / "recipe.yaml").read_text(encoding="utf-8")
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
