"""`pe probe`: one call of each API, or a ladder of degrees, looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.engine.probe import Probe
    from pe.engine.probe_ladder import LadderProbe


@click.command()
@click.argument("recipe", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option("--label", help="The label to ask for; the recipe's first.")
@click.option("--ladder", is_flag=True, help="Vary five samples at 0, 0.1, 0.3, 0.6 and 1, and tell how far they move.")
@click.option("--degree", "degrees", type=float, multiple=True, help="Of the variation; of the ladder, again for each.")
@click.option("--out", type=PATH, default=Path("probe.png"), show_default=True, help="The picture.")
@json_option
def probe(
    recipe: Path,
    changes: tuple[str, ...],
    label: str | None,
    ladder: bool,
    degrees: tuple[float, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Ask RECIPE's generator for a few samples and variations.

    They are saved side by side. No private record is read, no run is made. It costs two calls; with --ladder five
    samples, and five more for each degree.
    """
    from pe.engine.probe import probe as ask
    from pe.engine.probe_ladder import DEGREES, probe_ladder
    from pe.recipe.schema import Recipe

    if len(degrees) > 1 and not ladder:
        raise click.UsageError("Several degrees make a ladder: give --ladder too, or one --degree.")
    wanted = Recipe.load(recipe, changes)
    found: Probe | LadderProbe
    if ladder:
        found = rungs = probe_ladder(wanted, label, degrees or DEGREES)
        page = f"{rungs}\nPicture {out}: a row for each parent, which its variations follow"
    else:
        found = once = ask(wanted, label, *degrees)
        page = _page(once, out)
    out.write_bytes(found.picture())
    click.echo(json.dumps(found.to_dict() | {"picture": str(out)}) if as_json else page)


def _page(found: Probe, out: Path) -> str:
    """The probe as a person reads it."""
    lines = [f"Label '{found.label}'"]
    lines += [f"Condition of the first sample: {name} = {value}" for name, value in found.conditions.items()]
    for call in found.calls:
        lines.append(call.line(found.currency))
        lines += [f"  missing: {reason}" for reason in call.missing]
    degree = f"Degree {found.degree:g}" + (f": {found.meaning}" if found.meaning else "")
    return "\n".join([*lines, degree, f"Picture {out}: new samples above, their variations below"])
