"""`pe probe`: one call of each API, looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.engine.probe import Call, Probe


@click.command()
@click.argument("recipe", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option("--label", help="The label to ask for; the recipe's first.")
@click.option("--degree", type=float, help="Of the variation; the first iteration's.")
@click.option("--out", type=PATH, default=Path("probe.png"), show_default=True, help="The picture.")
@json_option
def probe(
    recipe: Path, changes: tuple[str, ...], label: str | None, degree: float | None, out: Path, as_json: bool
) -> None:
    """Ask RECIPE's generator for a few samples and variations.

    They are saved side by side. No private record is read, no run is made. It costs two calls.
    """
    from pe.engine.probe import probe as ask
    from pe.recipe.schema import Recipe

    found = ask(Recipe.load(recipe, changes), label, degree)
    out.write_bytes(found.picture())
    click.echo(json.dumps(found.to_dict() | {"picture": str(out)}) if as_json else _page(found, out))


def _page(found: Probe, out: Path) -> str:
    """The probe as a person reads it."""
    lines = [f"Label '{found.label}'"]
    lines += [f"Condition of the first sample: {name} = {value}" for name, value in found.conditions.items()]
    for call in found.calls:
        lines.append(_line(call, found.currency))
        lines += [f"  missing: {reason}" for reason in call.missing]
    degree = f"Degree {found.degree:g}" + (f": {found.meaning}" if found.meaning else "")
    return "\n".join([*lines, degree, f"Picture {out}: new samples above, their variations below"])


def _line(call: Call, currency: str) -> str:
    shape = "×".join(map(str, call.samples.shape))
    cost = f", {call.cost:.4g} {currency}" if call.cost else ""
    tokens = f", {call.usage.tokens:,} tokens" if call.usage.tokens else ""
    calls = f" in {call.usage.calls} calls" if call.usage.calls != 1 else ""
    size = f"{len(call.samples)} of {shape}"
    return f"{call.api:<14}{size}{calls}, {call.seconds:.2f} s{tokens}{cost}"
