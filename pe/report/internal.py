"""The confidential report: quality measured on private and held-out records, calls, costs and times, the evolution.

Guarantee: none. It is written into confidential/, says so in red, and `pe purge` deletes it.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from pe.dispatch.limits import Price
from pe.errors import RunError
from pe.planning.build import price_of
from pe.recipe.schema import Recipe
from pe.report.diagnostics import generations, public_plan
from pe.report.page import listed, page, paragraph, section, table
from pe.report.quality import quality_sections
from pe.report.samples import evolution_section
from pe.store.journal import Journal
from pe.store.places import CONFIDENTIAL
from pe.store.run import Run
from pe.store.writer import read_journal

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
    if metrics is None:
        parts.append(section("Quality", paragraph("Not measured yet: `pe evaluate RUN --test PATH` does.")))
    else:
        parts += quality_sections(run, metrics)
    parts.append(_cost_section(run, recipe))
    found = generations(run, recipe, plan)
    parts.append(evolution_section(populations, plan.classes, found, steps=len(plan.steps), fitted=bool(plan.fit)))
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
    price = price_of(recipe)
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
