"""Several runs side by side, in a table and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pe.errors import RunError
from pe.privacy.words import round_up
from pe.report.contact_sheet import mosaic
from pe.report.diagnostics import public_plan
from pe.report.internal import read_metrics
from pe.report.page import page, paragraph, section, table
from pe.report.pictures import image_tag, png
from pe.report.quality import headline_numbers
from pe.store.run import Run

Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""What, and one value per run."""


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: the runs.
        public: what is as shareable as they are.
        internal: what was measured on private or held-out records without noise.
    """

    runs: tuple[Run, ...]
    public: Rows
    internal: Rows

    @property
    def names(self) -> tuple[str, ...]:
        """Of the runs."""
        return tuple(run.folder.name for run in self.runs)

    @property
    def rows(self) -> Rows:
        """All of them, the internal ones with that in their names."""
        return *self.public, *((f"internal, not for sharing: {name}", values) for name, values in self.internal)


def compare(runs: Sequence[Run]) -> Comparison:
    """What tells the runs apart, and what they came to.

    Raises:
        RunError: fewer than two runs.
    """
    if len(runs) < 2:
        raise RunError("A comparison takes at least two runs.")
    public, internal = _rows([_public(run) for run in runs]), _rows([_internal(run) for run in runs])
    return Comparison(tuple(runs), public, internal)


def comparison_page(found: Comparison) -> str:
    """The comparison as an HTML page."""
    head = ("", *found.names)
    numbers = [table(head, [(name, *values) for name, values in found.public], even=True)]
    banner = ""
    if found.internal:
        banner = "Confidential: the internal numbers are measured on private or held-out records without noise."
        numbers += ["<h3>Internal, not for sharing</h3>"]
        numbers += [table(head, [(name, *values) for name, values in found.internal], even=True)]
    sheets = "".join(_sheet(run) for run in found.runs) or paragraph("No run has a population yet.")
    body = f"<header><h1>{len(found.names)} runs compared</h1></header>" + section("Numbers", *numbers)
    return page("Runs compared", body + section("How they evolved", sheets), banner)


def _rows(columns: Sequence[dict[str, str]]) -> Rows:
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple((name, tuple(column.get(name, "–") for column in columns)) for name in names)


def _internal(run: Run) -> dict[str, str]:
    metrics = read_metrics(run)
    return {} if metrics is None else dict(headline_numbers(metrics))


def _public(run: Run) -> dict[str, str]:
    recipe, plan = public_plan(run)
    found = {"generator": recipe.api.kind, "embedding": recipe.embedding.kind}
    try:
        certificate = run.guarantee
        found |= {"ε": round_up(certificate["epsilon"], 4), "δ": f"{certificate['delta']:g}"}
        if not certificate["holds"]:
            found["ε"] += " (NO GUARANTEE)"
    except RunError:
        found |= {"ε": "not finished"}
    made, added = run.populations(), sum(map(len, run.extensions()))
    found |= {
        "iterations": f"{max(len(made) - 1, 0)} of {len(plan.steps)}" if plan.steps else "none",
        "lookahead": _each([step.lookahead for step in plan.steps]),
        "degree": _each([step.degree for step in plan.steps]),
        "neighbours": str(plan.voting.neighbors) if plan.steps else "–",
        "synthetic samples": f"{len(made[-1]) if made else 0:,}" + (f" + {added:,} added" if added else ""),
    }
    return found


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in (values if len(set(values)) > 1 else values[:1])) or "–"


def _sheet(run: Run) -> str:
    """A run's contact sheet, one row per iteration and one column per label; "" while it has no population."""
    populations, (_, plan) = run.populations(), public_plan(run)
    if not populations:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *plan.classes))
    rows = ""
    for t, population in enumerate(populations):
        cells = [mosaic(population, label) for label in range(len(plan.classes))]
        alts = [f"Samples of label {name} in S{t} of {run.folder.name}" for name in plan.classes]
        tags = ["" if cell is None else image_tag(png(cell), alt) for cell, alt in zip(cells, alts, strict=True)]
        rows += f'<tr><th scope="row">S{t}</th>' + "".join(f"<td>{tag}</td>" for tag in tags) + "</tr>"
    width = f"min-width: {3 + 2.5 * len(plan.classes)}rem; max-width: {3 + 7 * len(plan.classes)}rem"
    sheet = f'<table class="sheet" style="{width}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<figure><figcaption>{escape(run.folder.name)}</figcaption><div class="scroll">{sheet}</div></figure>'
