"""`pe run`: run a recipe."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from pe.cli.logs import log_level_option
from pe.cli.progress import Bars


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's directory; must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@log_level_option
def run(recipe: Path, changes: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Run RECIPE (a YAML file) to its end."""
    from pe.engine import run_recipe, summary
    from pe.recipe.schema import Recipe

    started = time.monotonic()
    finished = run_recipe(Recipe.load(recipe, changes), out=out, progress=Bars())
    result = summary(finished) | {"seconds": round(time.monotonic() - started, 1)}
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"ε = {result['epsilon']:.4g}, δ = {result['delta']:g}; {result['api_calls']} API calls.")
    click.echo(f"Synthetic data: {finished.folder / 'synthetic.npz'}")
    click.echo(f"Its evolution:  {finished.folder / 'evolution.png'}")
