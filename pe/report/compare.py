"""Several runs side by side, in a table and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pe.errors import RunError
from pe.report.diagnostics import public_plan
from pe.report.internal import read_metrics
from pe.report.page import page, paragraph, section, table
from pe.report.pictures import image_tag
from pe.report.quality import headline_numbers
from pe.run.directory import EVOLUTION, Run

INTERNAL = "internal, not for sharing: "


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        names: of the runs.
        rows: (what, one value per run).
        internal: whether some rows were measured on private or held-out records without noise.
        pictures: each run's picture of its evolution, PNG; None where it is not finished.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    internal: bool
    pictures: tuple[bytes | None, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """What tells the runs apart, and what they came to.

    Raises:
        RunError: fewer than two runs.
    """
    if len(runs) < 2:
        raise RunError("A comparison takes at least two runs.")
    columns = [_column(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    names.sort(key=lambda name: name.startswith(INTERNAL))  # stable: the rest stays in order
    rows = tuple((name, tuple(column.get(name, "–") for column in columns)) for name in names)
    pictures = tuple(_picture(run) for run in runs)
    internal = any(name.startswith(INTERNAL) for name in names)
    return Comparison(tuple(run.folder.name for run in runs), rows, internal, pictures)


def comparison_page(found: Comparison) -> str:
    """The comparison as an HTML page."""
    head = ("", *found.names)
    rows = [(name, *values) for name, values in found.rows]
    figures = "".join(
        f"<figure>{image_tag(picture, f'Evolution of {name}')}<figcaption>{escape(name)}</figcaption></figure>"
        for name, picture in zip(found.names, found.pictures, strict=True)
        if picture is not None
    )
    banner = "Confidential: the rows marked internal are measured on private or held-out records without noise."
    body = f"<header><h1>{len(found.names)} runs compared</h1></header>" + section("Numbers", table(head, rows))
    body += section("How they evolved", figures or paragraph("No run is finished."))
    return page("Runs compared", body, banner if found.internal else "")


def _column(run: Run) -> dict[str, str]:
    recipe, plan = public_plan(run)
    found = {"generator": recipe.api.kind, "embedding": recipe.embedding.kind}
    try:
        certificate = run.guarantee
        found |= {"ε": f"{certificate['epsilon']:.4g}", "δ": f"{certificate['delta']:g}"}
        if not certificate["holds"]:
            found["ε"] += " (NO GUARANTEE)"
    except RunError:
        found |= {"ε": "not finished"}
    made = run.populations()
    found |= {
        "iterations": f"{max(len(made) - 1, 0)} of {len(plan.steps)}",
        "lookahead": _each([step.lookahead for step in plan.steps]),
        "degree": _each([step.degree for step in plan.steps]),
        "neighbours": str(plan.neighbors),
        "synthetic samples": f"{len(made[-1]):,}" if made else "0",
    }
    metrics = read_metrics(run)
    if metrics is not None:
        found |= {f"{INTERNAL}{name}": value for name, value in headline_numbers(metrics)}
    return found


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in (values if len(set(values)) > 1 else values[:1])) or "–"


def _picture(run: Run) -> bytes | None:
    path = run.folder / EVOLUTION
    return path.read_bytes() if path.is_file() else None
