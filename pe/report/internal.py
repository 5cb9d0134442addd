"""The confidential report: the shareable one, and below it what was measured on private or held-out records.

Guarantee: none. It is written into confidential/, says so in red, and `pe purge` deletes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pe.errors import RunError
from pe.recipe.schema import Recipe
from pe.report.charts import Line, line_chart
from pe.report.diagnostics import generations, public_plan
from pe.report.page import listed, page, paragraph, section, table
from pe.report.pictures import image_tag
from pe.report.shareable import evolution_section
from pe.run.directory import CONFIDENTIAL, Run
from pe.run.journal import Journal
from pe.run.limits import Price
from pe.run.writer import read_journal

INTERNAL_REPORT = f"{CONFIDENTIAL}/report.html"
METRICS = f"{CONFIDENTIAL}/metrics.json"

_BANNER = (
    "Confidential. This page is made of private records without noise: it must not be shared, and the certificate does "
    "not cover it."
)


def internal_report(run: Run) -> str:
    """The confidential page of a run.

    Raises:
        RunError: the confidential side was purged.
    """
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged, or is a copy.")
    recipe, plan = public_plan(run)
    populations = run.populations()
    if not populations:
        raise RunError(f"{run.folder} has no population yet: there is nothing to report.")
    metrics = read_metrics(run)
    parts = [f"<header><h1>{escape(recipe.name)}: for its owner</h1></header>"]
    parts += [_cost_section(run, recipe)]
    if metrics is None:
        parts.append(section("Quality", paragraph("Not measured yet: `pe evaluate RUN --test PATH` does.")))
    else:
        parts += [_utility(metrics), _fidelity(metrics), _semantics(metrics), _memorisation(run, metrics)]
        parts.append(section("Notes", listed(metrics["notes"])) if metrics.get("notes") else "")
    parts.append(evolution_section(populations, plan.classes, generations(run, recipe, plan)))
    return page(f"{recipe.name}: confidential report", "\n".join(parts), _BANNER)


def read_metrics(run: Run) -> dict[str, Any] | None:
    """What `pe evaluate` measured; None when it did not.

    Raises:
        RunError: the file is damaged, or of another version.
    """
    path = run.folder / METRICS
    if not path.is_file():
        return None
    try:
        metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is not JSON: run `pe evaluate` again.") from error
    if metrics.get("version") != 1:
        raise RunError(f"{path} has version {metrics.get('version')!r}, not 1: run `pe evaluate` again.")
    return metrics


def _cost_section(run: Run, recipe: Recipe) -> str:
    """Calls, images, refusals, cost and time, phase by phase."""
    price = Price(**recipe.api.price.model_dump())
    with read_journal(run) as journal:
        events, phases = journal.events(), journal.phases()
        rows = [_phase(journal, name, price) for name in phases]
        totals = journal.totals()
    spent = price.of(totals.calls, totals.images, totals.tokens)
    rows.append(
        ("all", f"{totals.calls:,}", "", f"{totals.images:,}", f"{totals.refused:,}", "", _money(price, spent), "")
    )
    head = ("phase", "calls", "of them again", "images", "refused", "failed", "cost", "seconds asked")
    times = [f"{event}: {at}" for at, event in events]
    return section("Calls, cost and time", table(head, rows), listed(times))


def _phase(journal: Journal, name: str, price: Price) -> tuple[str, ...]:
    chunks, misses = journal.chunks(name), journal.misses(name)
    calls, images, tokens = (sum(getattr(row, key) for row in chunks) for key in ("calls", "images", "tokens"))
    refused = sum(miss.outcome == "refused" for miss in misses)
    return (
        name,
        f"{calls:,}",
        f"{calls - len(chunks):,}",
        f"{images:,}",
        f"{refused:,}",
        f"{len(misses) - refused:,}",
        _money(price, price.of(calls, images, tokens)),
        f"{sum(row.seconds for row in chunks):,.1f}",
    )


def _money(price: Price, amount: float) -> str:
    return "free" if price.free else f"{amount:,.2f} {price.currency}"


def _utility(metrics: Mapping[str, Any]) -> str:
    """Accuracy on real data, by classifier and training set; the chosen classifier's confusion."""
    utility = metrics.get("utility")
    if not utility:
        return ""
    sets = list(dict.fromkeys(name for by_set in utility.values() for name in by_set))
    rows = [
        (name, *(_spread(by_set[one]["accuracy"]) if one in by_set else "–" for one in sets))
        for name, by_set in utility.items()
    ]
    chosen = (metrics.get("chosen_classifier") or {}).get("synthetic")
    detail = ""
    if chosen is not None and chosen in utility and "synthetic" in utility[chosen]:
        found = utility[chosen]["synthetic"]
        labels = list(found["per_class"])
        confusion = [
            (label, *(f"{count:,}" for count in counts), _share(found["per_class"][label]))
            for label, counts in zip(labels, found["confusion"], strict=True)
        ]
        detail = f"<h3>Confusion of {escape(chosen)}, trained on the synthetic data</h3>" + table(
            ("true \\ predicted", *labels, "right"), confusion
        )
    note = "Trained on the set that a column names, tested on the real test set; mean ± standard deviation over seeds."
    if chosen:
        note += f" By validation on synthetic data alone, {chosen} is chosen."
    return section("Utility", paragraph(note, "soft"), table(("classifier", *sets), rows), detail)


def _fidelity(metrics: Mapping[str, Any]) -> str:
    rows = []
    for name, found in (metrics.get("fidelity") or {}).items():
        fid = found.get("standard_inception", False)
        rows.append((f"{name}{' (FID, KID)' if fid else ''}", "synthetic", *_distances(found)))
        rows += [("", control, *_distances(one)) for control, one in (found.get("controls") or {}).items()]
    if not rows:
        return ""
    head = ("embedding", "data", "Fréchet", "kernel", "precision", "recall", "density", "coverage")
    note = (
        "Fréchet and kernel distance: 0 is alike. Precision and density: how real the samples look. Recall and "
        "coverage: how much of the real data they cover."
    )
    return section("Fidelity", paragraph(note, "soft"), table(head, rows))


def _distances(found: Mapping[str, Any]) -> list[str]:
    kernel = found.get("kernel") or {}
    cells = [_plain(found.get("frechet"))]
    cells.append(
        "–" if kernel.get("mean") is None else f"{kernel['mean']:.4g} ± {kernel.get('standard_error') or 0:.2g}"
    )
    return cells + [_plain(found.get(key)) for key in ("precision", "recall", "density", "coverage")]


def _semantics(metrics: Mapping[str, Any]) -> str:
    found = metrics.get("semantics")
    if not found:
        return ""
    rows = [
        ("synthetic with real", _plain(found.get("sds"))),
        ("real with itself", _plain(found.get("sds_real_with_itself"))),
    ]
    return section("Semantics", table(("semantic similarity (SDS)", ""), rows))


def _memorisation(run: Run, metrics: Mapping[str, Any]) -> str:
    """Distances to the nearest record as CDFs, the nearest pairs, and the membership test."""
    found = metrics.get("memorisation")
    if not found:
        return ""
    names = {
        "generated_to_private": "generated → nearest private",
        "heldout_to_private": "held-out real → nearest private",
        "private_to_generated": "private → nearest generated",
        "heldout_to_generated": "held-out real → nearest generated",
    }
    charts = ""
    for pair in (("heldout_to_private", "generated_to_private"), ("heldout_to_generated", "private_to_generated")):
        lines = [
            Line(names[key], found[key]["quantiles"], [100 * level for level in found[key]["levels"]])
            for key in pair
            if found.get(key)
        ]
        if lines:
            charts += line_chart(f"Distance, {lines[-1].name}", lines, f"distance ({found['embedding']})", "per cent")
    member = found.get("membership")
    sentence = ""
    if member:
        sentence = (
            f"A test that guesses by distance who was a private record has an AUC of {member['auc']:.3f} "
            f"({member['level']:.0%} interval {member['low']:.3f}–{member['high']:.3f}); 0.5 is a coin."
        )
    pictures = ""
    for name in (found.get("nearest_pairs") or {}).get("files", []):
        path = run.folder / name
        if path.is_file() and Path(name).suffix == ".png" and path.resolve().is_relative_to(run.confidential.resolve()):
            pictures += "<figure>" + image_tag(
                path.read_bytes(), "Generated samples above their nearest private records"
            )
            pictures += "<figcaption>Nearest pairs: generated, and its nearest private record</figcaption></figure>"
    return section("Memorisation", paragraph(sentence), f'<div class="charts">{charts}</div>', pictures)


def _spread(accuracy: Mapping[str, Any]) -> str:
    deviation = accuracy.get("std")
    return _share(accuracy["mean"]) + (f" ± {deviation:.1%}" if deviation else "")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def headline_accuracies(metrics: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """(classifier, accuracy on real data when trained on the synthetic)."""
    utility = metrics.get("utility") or {}
    return [(name, _spread(sets["synthetic"]["accuracy"])) for name, sets in utility.items() if "synthetic" in sets]


def headline_distances(metrics: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """(embedding, Fréchet distance)."""
    return [(name, _plain(found.get("frechet"))) for name, found in (metrics.get("fidelity") or {}).items()]
