"""Several runs side by side, in a table and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pe.errors import RunError
from pe.privacy.certificate_text import NO_EPSILON, round_up
from pe.recipe.reading import read_yaml
from pe.report.pages import (
    Metrics,
    certificate_of,
    headline_numbers,
    public_plan,
    read_metrics,
    trained_sets,
)
from pe.report.pictures import Strip, sample_cell
from pe.report.render import render
from pe.store.places import RECIPE
from pe.store.run import Run

_MOST = 200
"""The most characters of a list that a row shows."""
_LABELS = 3
"""The most labels of which the page of all runs shows samples."""
_SHOWN = ("name", "api.kind", "embedding.kind")  # in the heads, and in rows of their own

Rows = dict[str, tuple[Any, ...]]
"""Rows of a table: the name of each, and one value per run."""


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    runs: Sequence[Run]
    public: Rows  # as shareable as the runs are
    settings: Rows  # dotted keys of the recipes whose values differ; None: not given
    internal: (
        Rows  # numbers measured on private or held-out records without noise, and the samples used
    )
    warnings: list[str]  # reasons why internal numbers cannot be compared

    @property
    def shareable_rows(self) -> Rows:
        """The public rows, and the settings in words."""
        return self.public | {
            key: tuple(map(_in_words, values)) for key, values in self.settings.items()
        }

    @property
    def rows(self) -> Rows:
        """All rows. The names of the internal ones begin with `internal, not for sharing`."""
        marked = {
            f"internal, not for sharing: {name}": values for name, values in self.internal.items()
        }
        return self.shareable_rows | marked

    def to_dict(self) -> dict[str, Any]:
        """Return what `pe view RUN RUN --json` prints (docs/evaluation.md)."""
        return vars(self) | {"runs": [run.name for run in self.runs]}


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare settings, guarantees and numbers of runs.

    Raises:
        RunError: there are fewer than two runs.
    """
    if len(runs) < 2:
        raise RunError("A comparison takes at least two runs.")
    metrics = [read_metrics(run) or {} for run in runs]
    recipes = [dict(_flat(read_yaml(run.folder / RECIPE))) for run in runs]
    settings = {
        key: values
        for key, values in _rows(recipes, None).items()
        if key not in _SHOWN and any(value != values[0] for value in values)
    }
    public = _rows([_public(run) for run in runs], "–")
    warnings = _warnings(metrics)
    internal = [_real_sets(each) for each in metrics]
    if not warnings:
        others = _controls(runs, metrics)
        for rows, each in zip(internal, metrics, strict=True):
            rows |= headline_numbers(each, others)
    return Comparison(runs, public, settings, _rows(internal, "–"), warnings)


def comparison_page(comparison: Comparison, confidential: bool = True) -> str:
    """Return the comparison as an HTML page.

    Only a `confidential` page has what `pe evaluate` measured.
    """
    values = {
        "names": [run.name for run in comparison.runs],
        "public": comparison.shareable_rows,
        "internal": comparison.internal if confidential else {},
        "sheets": [_sheet(run) for run in comparison.runs if run.population(0) is not None],
        "warnings": comparison.warnings,
    }
    return render("comparison.html", values)


def runs_page(runs: Mapping[str, Run], states: Mapping[str, str]) -> str:
    """Return the HTML page of all runs, by their names, as shareable as they are.

    `states` says how each run stands.
    """
    rows: list[tuple[str, str, dict[str, str], list[tuple[str, bytes]]]] = []
    for name, run in runs.items():
        try:
            rows.append((name, states[name], _public(run), _pictures(run)))
        except Exception:  # just being written, or damaged in any way
            rows.append((name, states[name], {"its files": "cannot be read just now"}, []))
    return render("runs.html", {"runs": rows})


def _pictures(run: Run) -> list[tuple[str, bytes]]:
    """Return samples of the first labels of a run's last population, if they are pictures."""
    pictures = []
    for population in run.populations()[-1:]:
        for label, name in enumerate(public_plan(run)[1].classes[:_LABELS]):
            cell = sample_cell(population, label)
            if isinstance(cell, bytes):
                pictures.append((name, cell))
    return pictures


def _rows(columns: Sequence[Mapping[str, Any]], missing: object) -> Rows:
    """Return the union of the columns' rows. A column that lacks a row has `missing` there."""
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: tuple(column.get(name, missing) for column in columns) for name in names}


def _controls(runs: Sequence[Run], all_metrics: Sequence[Metrics]) -> dict[str, tuple[str, float]]:
    """Return the controls of all runs: the name of each, its run, and its score.

    Every run lies on one scale, so a control of one is a control of all.
    """
    found: dict[str, tuple[str, float]] = {}
    for run, metrics in zip(runs, all_metrics, strict=True):
        for name, one in trained_sets(metrics).items():
            if name not in ("synthetic", "real"):
                found.setdefault(name, (run.name, float(one["place"]["score"])))
    return found


def _real_sets(metrics: Metrics) -> dict[str, str]:
    """Return rows on the real samples that a run was measured with, name → value."""
    rows = {}
    for name in ("test", "reference"):
        if name in metrics:
            real = metrics[name]
            left_out = f" ({real['left_out']:,} left out)" if real.get("left_out") else ""
            rows[f"{name} set"] = f"{real['images']:,} {_noun(metrics)} of {real['path']}{left_out}"
    return rows


def _noun(metrics: Metrics) -> str:
    return str((metrics.get("run") or {}).get("noun", "images"))


def _warnings(all_metrics: Sequence[Metrics]) -> list[str]:
    """Return a warning if the evaluations used different real samples. Otherwise empty."""
    for name, numbers in (("test", "internal numbers"), ("reference", "fidelity")):
        sets = [metrics.get(name, metrics["test"]) for metrics in all_metrics if "test" in metrics]
        if len({real.get("sha256") for real in sets}) > 1:
            return [
                f"The {name} {_noun(all_metrics[0])} differ, so the {numbers} of these runs cannot "
                f"be compared and are left out: evaluate all of them with the same {name} set, "
                "read at the same size."
            ]
    sizes = {trained_sets(each).get("real", {}).get("samples") for each in all_metrics}
    if len(sizes - {None}) > 1:
        return [
            "The runs have different numbers of private records, so their scales end at different "
            "points, and the internal numbers are left out."
        ]
    return []


def _public(run: Run) -> dict[str, str]:
    recipe, plan = public_plan(run)
    rows = {"generator": recipe.api.kind, "embedding": recipe.embedding.kind, "ε": "not finished"}
    certificate = certificate_of(run)
    if certificate is not None and certificate["epsilon"] is None:
        rows["ε"] = NO_EPSILON
    elif certificate is not None:
        void = "" if certificate["holds"] else " (NO GUARANTEE)"
        rows["ε"] = round_up(certificate["epsilon"], 4) + void
        rows["δ"] = f"{certificate['delta']:g}"
    populations = run.populations()
    done = max(len(populations) - 1, 0)
    rows["iterations"] = f"{done} of {len(plan.steps)}" if plan.steps else "none"
    rows["synthetic samples"] = f"{len(populations[-1]) if populations else 0:,}"
    extra = sum(map(len, run.extensions()))
    if extra:
        rows["synthetic samples"] += f" + {extra:,} added"
    return rows


def _flat(content: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys, and their values."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _in_words(value: object) -> str:
    if isinstance(value, list):
        words = ", ".join(map(_in_words, value)) or "none"
        return words if len(words) <= _MOST else f"{words[:_MOST]}… ({len(value):,} in all)"
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sheet(run: Run) -> tuple[str, list[str], list[list[Strip | None]]]:
    """Return a run's name, its labels, and for each iteration samples of every label."""
    classes = list(public_plan(run)[1].classes)
    rows = [
        [sample_cell(population, label) for label in range(len(classes))]
        for population in run.populations()
    ]
    return run.name, classes, rows
