"""`pe extend`: more samples from a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pe.cli.options import PATH, json_option, log_level_option, quiet_option
from pe.cli.share import tell_if_purged
from pe.cli.sign import tell_if_unsigned
from pe.cli.signals import stop_on_interrupt


@click.command()
@click.argument("run", type=PATH)
@click.option("-n", "count", type=click.IntRange(min=1), required=True, help="How many more samples.")
@click.option(
    "--degree", type=click.FloatRange(0, 1), help="0 = copies, 1 = as new; default: that of RUN's last iteration."
)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a limit or another machine setting.")
@json_option
@quiet_option
@log_level_option
def extend(run: Path, count: int, degree: float | None, changes: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Make more samples of the finished RUN, at no further ε.

    They are variations of its last population.
    """
    from pe.engine.bars import Bars
    from pe.engine.execution import Surroundings
    from pe.engine.extend import extend_run, last_degree

    degree = last_degree(run) if degree is None else degree
    with tell_if_unsigned(run), stop_on_interrupt() as stop:
        path = extend_run(run, count, degree, Surroundings(progress=Bars(quiet), stop=stop), changes)
    if as_json:
        click.echo(json.dumps({"samples": count, "degree": degree, "path": str(path)}))
    else:
        click.echo(f"{count} more samples: {path}")
        if not degree:
            click.echo("They are copies of the run's samples, as the degree is 0; a --degree above it varies them.")
    tell_if_purged(run)
