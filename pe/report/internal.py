"""The confidential report: quality measured on private and held-out records, calls, costs and times, the evolution.

Guarantee: none. It is written into confidential/, says so in red, and `pe purge` deletes it.
"""

from __future__ import annotations

import json
from typing import Any

from pe.errors import RunError
from pe.planning.build import price_of
from pe.plugins.price import Price
from pe.plugins.usage import NOTHING, Usage
from pe.report.diagnostics import evolution, public_plan
from pe.report.page import render
from pe.report.quality import quality
from pe.store.journal import Journal
from pe.store.places import CONFIDENTIAL
from pe.store.run import Run
from pe.store.writer import read_journal

INTERNAL_REPORT = f"{CONFIDENTIAL}/report.html"
METRICS = f"{CONFIDENTIAL}/metrics.json"


def internal_report(run: Run) -> str:
    """The confidential page of a run.

    Raises:
        RunError: the confidential side was purged, or nothing of the run is there yet to be shown.
    """
    if not run.confidential.is_dir():
        raise RunError(f"{run.folder} has no confidential side: it was purged, or is a copy.")
    metrics = read_metrics(run)
    values = evolution(run) | costs(run) | ({"metrics": None} if metrics is None else quality(run, metrics))
    return render("confidential.html", values)


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
    version = metrics.get("version") if isinstance(metrics, dict) else None
    if version != 1:
        raise RunError(f"{path} has version {version!r}, not 1: run `pe evaluate` again.")
    return metrics


def costs(run: Run) -> dict[str, object]:
    """Calls, images, refusals, cost and time, phase by phase and in all; when what happened."""
    price = price_of(public_plan(run)[0])
    with read_journal(run) as journal:
        events, phases = journal.events(), [_phase(journal, name, price) for name in journal.phases()]
        totals = journal.totals()
    spent = totals.usage
    numbers = (f"{spent.calls:,}", "", f"{spent.images:,}", f"{totals.refused:,}", "", _money(price, spent), "")
    return {"events": events, "phases": [*phases, ("all", *numbers)]}


def _phase(journal: Journal, name: str, price: Price) -> tuple[str, ...]:
    chunks, misses = journal.chunks(name), journal.misses(name)
    spent = sum((row.usage for row in chunks), NOTHING)
    refused = sum(miss.outcome == "refused" for miss in misses)
    return (
        name,
        f"{spent.calls:,}",
        f"{spent.calls - len(chunks):,}",
        f"{spent.images:,}",
        f"{refused:,}",
        f"{len(misses) - refused:,}",
        _money(price, spent),
        f"{sum(row.seconds for row in chunks):,.1f}",
    )


def _money(price: Price, spent: Usage) -> str:
    return "free" if price.free else f"{price.of(spent):,.2f} {price.currency}"
