"""`pe plan`: what a recipe will ask for, cost and guarantee, before anything is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import json_option

if TYPE_CHECKING:
    from pe.recipe.calls import Span
    from pe.recipe.forecast import Forecast, Iteration

_DEGREES = {
    "exact": "the generator obeys it exactly",
    "wording": "the generator is told it in words and obeys it roughly",
    "none": "the generator does not obey it: every variation is as large as it makes it",
    None: "unknown",
}
_HEAD = ("t", "calls", "images", "degree", "candidates", "votes/candidate", "σ, votes", "H, votes")


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option(
    "--images-per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="The generator's rate, to tell the time from.",
)
@json_option
def plan(recipe: Path, changes: tuple[str, ...], images_per_second: float | None, as_json: bool) -> None:
    """Tell what RECIPE will ask for, cost and guarantee; nothing is called, no private record is read."""
    from pe.recipe.calls import capabilities_of
    from pe.recipe.forecast import forecast
    from pe.recipe.schema import Recipe

    wanted = Recipe.load(recipe, changes)
    found = forecast(wanted, *capabilities_of(wanted.api), images_per_second)
    click.echo(json.dumps(found.to_dict()) if as_json else _page(wanted.name, found))


def _page(name: str, found: Forecast) -> str:
    """The forecast as a person reads it."""
    rows = [_HEAD, *(_row(one) for one in found.iterations), ("all", _calls(found.calls), f"{found.images:,}")]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(_HEAD))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    facts = [f"{key:<12}{value}" for key, value in _facts(found)]
    warnings = [f"warning: {sentence}" for sentence in found.warnings]
    return "\n".join(
        [f"Plan of '{name}': nothing was called, no private record was read.", "", *table, "", *facts]
        + (["", *warnings] if warnings else [])
    )


def _row(one: Iteration) -> tuple[str, ...]:
    start = (str(one.t), _calls(one.calls), f"{one.images:,}")
    signal = one.signal
    if signal is None:
        return start
    votes = "unknown" if signal.fewest is None else f"{signal.fewest:.3g}"
    return (
        *start,
        f"{one.degree:g}",
        f"{signal.candidates:,}",
        votes,
        f"{signal.sigma:.3g}",
        f"{signal.threshold:.3g}",
    )


def _facts(found: Forecast) -> list[tuple[str, str]]:
    multipliers = list(dict.fromkeys(f"{signal.noise_multiplier:.4g}" for signal in found.signals))
    return [
        ("Calls", f"{_calls(found.random)} of RANDOM_API, {_calls(found.variation)} of VARIATION_API"),
        ("Cost", "unknown" if found.cost is None else f"{found.cost:,.2f} {found.currency}" if found.cost else "free"),
        ("Time", "unknown (state --images-per-second)" if found.seconds is None else _duration(found.seconds)),
        ("Guarantee", f"ε = {found.epsilon:.4g}, δ = {found.delta:g}"),
        ("Noise", f"multiplier {', '.join(multipliers)}" if multipliers else "no histogram is released"),
        ("Degree", _DEGREES[found.degree]),
    ]


def _calls(span: Span | None) -> str:
    """One number, or from the fewest to the most."""
    if span is None:
        return "unknown"
    return f"{span.most:,}" if span.least == span.most else f"{span.least:,}–{span.most:,}"


def _duration(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, hours below two days, days from there."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
