"""`pe plan`: what a recipe will ask for, cost and guarantee, before anything is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.plugins.protocols import GenerationAPI


@click.command()
@click.argument("recipe", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option(
    "--samples-per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="The generator's rate, to tell the time from.",
)
@click.option("--rate-of", "like", type=PATH, metavar="RUN", help="Take the rate measured in RUN.")
@click.option(
    "--dry-run", is_flag=True, help="Try a few steps of a generator's fit on random images, and tell time and memory."
)
@json_option
def plan(
    recipe: Path,
    changes: tuple[str, ...],
    samples_per_second: float | None,
    like: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Tell what RECIPE will ask for, cost and guarantee.

    Nothing is called, no private record is read; the data set's ledger file is, for its cap.
    """
    from pe.planning.build import set_up_generator
    from pe.planning.forecast import forecast
    from pe.planning.readiness import look_ahead
    from pe.recipe.schema import Recipe

    wanted = Recipe.load(recipe, changes)
    api, unknown = set_up_generator(wanted.api)
    rate = samples_per_second if like is None else _measure_rate(like, api, wanted.limits.max_concurrency)
    here = [*look_ahead(wanted, api), *([unknown] if unknown else [])]
    found = forecast(wanted, api, here, rate, dry_run)
    click.echo(json.dumps(found.to_dict()) if as_json else str(found))


def _measure_rate(run: Path, api: GenerationAPI | None, most: int | None) -> float:
    """Samples a second with as many requests at once as the plan will have, at the rate of one request in `run`."""
    from pe.errors import RunError
    from pe.store.run import Run
    from pe.store.writer import read_journal

    with read_journal(Run.open(run)) as journal:
        rate = journal.samples_per_second()
    if rate is None:
        raise RunError(f"{run} has no samples yet, so it tells no rate: state --samples-per-second.")
    concurrency = 1 if api is None else api.capabilities.concurrency
    return rate * min(concurrency, most or concurrency)
