"""Several runs side by side, in a table and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pe.errors import RunError
from pe.privacy.words import NO_EPSILON, round_up
from pe.recipe.reading import read_yaml
from pe.report.page import render
from pe.report.pictures import Strip, sample_cell
from pe.report.sections import certificate_of, headline_numbers, public_plan, read_metrics
from pe.store.places import RECIPE
from pe.store.run import Run

_MOST = 200
"""Characters of a list."""
_SHOWN = ("name", "api.kind", "embedding.kind")  # by the heads, and rows of their own

Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""What, and one value per run."""


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: the runs.
        public: what is as shareable as they are.
        settings: every key of their recipes whose values differ, dotted, and the value in each; None: not given.
        internal: what was measured on private or held-out records without noise, and with which samples.
        warnings: why internal numbers cannot be compared.
    """

    runs: tuple[Run, ...]
    public: Rows
    settings: tuple[tuple[str, tuple[Any, ...]], ...]
    internal: Rows
    warnings: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the runs."""
        return tuple(run.name for run in self.runs)

    @property
    def shareable_rows(self) -> Rows:
        """What is public, and the settings in words."""
        return *self.public, *((key, tuple(map(_in_words, values))) for key, values in self.settings)

    @property
    def rows(self) -> Rows:
        """All of them, the internal ones with that in their names."""
        return *self.shareable_rows, *((f"internal, not for sharing: {name}", values) for name, values in self.internal)

    def to_dict(self) -> dict[str, Any]:
        """As `pe compare --json` prints it (docs/evaluation.md): a list of values for each row, one per run."""
        rows = {"public": self.public, "settings": self.settings, "internal": self.internal}
        parts = {part: {name: list(row) for name, row in rows[part]} for part in rows}
        return {"runs": list(self.names), **parts, "warnings": list(self.warnings)}


def compare(runs: Sequence[Run]) -> Comparison:
    """What tells the runs apart, and what they came to.

    Raises:
        RunError: fewer than two runs.
    """
    if len(runs) < 2:
        raise RunError("A comparison takes at least two runs.")
    measured = [read_metrics(run) or {} for run in runs]
    public, internal = _rows([_public(run) for run in runs]), _rows([_internal(metrics) for metrics in measured])
    return Comparison(tuple(runs), public, _settings(runs), internal, _differences(measured))


def comparison_page(found: Comparison) -> str:
    """The comparison as an HTML page."""
    public, internal = ([(name, *values) for name, values in rows] for rows in (found.shareable_rows, found.internal))
    sheets = [sheet for run in found.runs if (sheet := _sheet(run))[2]]
    values = {"names": list(found.names), "public": public, "internal": internal, "sheets": sheets}
    return render("comparison.html", values | {"warnings": list(found.warnings)})


def _rows(columns: Sequence[dict[str, str]]) -> Rows:
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple((name, tuple(column.get(name, "–") for column in columns)) for name in names)


def _internal(metrics: Mapping[str, Any]) -> dict[str, str]:
    """What was measured, after the real samples it was measured with."""
    noun = _noun(metrics)
    real = {f"{name} set": _real(metrics[name], noun) for name in ("test", "reference") if name in metrics}
    return real | dict(headline_numbers(metrics))


def _noun(metrics: Mapping[str, Any]) -> str:
    """What people call the samples of an evaluated run."""
    return str((metrics.get("run") or {}).get("noun", "images"))


def _real(real: Mapping[str, Any], noun: str) -> str:
    left_out = f" ({real['left_out']:,} left out)" if real.get("left_out") else ""
    return f"{real['images']:,} {noun} of {real['path']}{left_out}"


def _differences(measured: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Why evaluations cannot be compared: they rest on different real samples; without a test set there is none."""
    for name, numbers in (("test", "internal numbers"), ("reference", "fidelity")):
        sets = [metrics.get(name, metrics["test"]) for metrics in measured if "test" in metrics]
        if len({real.get("sha256") for real in sets}) > 1:
            noun = _noun(measured[0])
            return (
                f"The {name} {noun} differ, so the {numbers} of these runs cannot be compared: evaluate all "
                f"of them with the same {name} set, read at the same size.",
            )
    return ()


def _public(run: Run) -> dict[str, str]:
    recipe, plan = public_plan(run)
    found = {"generator": recipe.api.kind, "embedding": recipe.embedding.kind, "ε": "not finished"}
    certificate = certificate_of(run)
    if certificate:
        epsilon, void = certificate["epsilon"], "" if certificate["holds"] else " (NO GUARANTEE)"
        if epsilon is None:
            found["ε"] = NO_EPSILON
        else:
            found |= {"ε": round_up(epsilon, 4) + void, "δ": f"{certificate['delta']:g}"}
    made, added = run.populations(), sum(map(len, run.extensions()))
    found |= {
        "iterations": f"{max(len(made) - 1, 0)} of {len(plan.steps)}" if plan.steps else "none",
        "synthetic samples": f"{len(made[-1]) if made else 0:,}" + (f" + {added:,} added" if added else ""),
    }
    return found


def _settings(runs: Sequence[Run]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The keys of the shareable recipes whose values differ; not those that other rows show."""
    each = [dict(_flat(read_yaml(run.folder / RECIPE))) for run in runs]
    keys = dict.fromkeys(key for one in each for key in one if key not in _SHOWN)
    rows = ((key, tuple(one.get(key) for one in each)) for key in keys)
    return tuple((key, values) for key, values in rows if any(value != values[0] for value in values))


def _flat(content: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys, and their values."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _in_words(value: object) -> str:
    if isinstance(value, list):
        told = ", ".join(map(_in_words, value)) or "none"
        return told if len(told) <= _MOST else f"{told[:_MOST]}… ({len(value):,} in all)"
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sheet(run: Run) -> tuple[str, list[str], list[list[Strip | None]]]:
    """A run's name, its labels, and for each iteration samples of every label that has some."""
    classes = list(public_plan(run)[1].classes)
    rows = [[sample_cell(population, label) for label in range(len(classes))] for population in run.populations()]
    return run.name, classes, rows
