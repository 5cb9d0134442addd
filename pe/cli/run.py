"""`pe run` and `pe resume`: carry out a recipe, and go on with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option, log_level_option, quiet_option
from pe.cli.signals import stop_on_interrupt

if TYPE_CHECKING:
    from pe.engine.execution import Surroundings
    from pe.store.run import Run


@click.command()
@click.argument("recipe", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option("--out", type=PATH, help="The run's directory; must not exist.")
@click.option("--resume", "go_on", is_flag=True, help="Go on with the run in --out, if there is one.")
@json_option
@quiet_option
@log_level_option
def run(recipe: Path, changes: tuple[str, ...], out: Path | None, go_on: bool, as_json: bool, quiet: bool) -> None:
    """Run RECIPE (a YAML file) to its end."""
    from pe.engine.start import resume_run, run_recipe
    from pe.recipe.schema import Recipe

    wanted = Recipe.load(recipe, changes)
    if go_on and out is None:
        raise click.UsageError("--resume needs --out, the directory of the run to go on with.")

    def carry_out(surroundings: Surroundings) -> Run:
        if go_on and out is not None and out.exists():
            return resume_run(out, surroundings, wanted)
        return run_recipe(wanted, out, surroundings)

    _report(carry_out, as_json, quiet)


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a limit or another machine setting.")
@json_option
@quiet_option
@log_level_option
def resume(run_folder: Path, changes: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Go on with RUN from its last committed chunk.

    Nothing that was answered is asked again.
    """
    from pe.engine.start import resume_run, stored_recipe

    recipe = stored_recipe(run_folder, changes)
    _report(lambda surroundings: resume_run(run_folder, surroundings, recipe), as_json, quiet)


def _report(carry_out: Callable[[Surroundings], Run], as_json: bool, quiet: bool) -> None:
    """Carry out and say what came of it."""
    from pe.engine.bars import Bars
    from pe.engine.execution import Surroundings
    from pe.engine.summary import summary
    from pe.privacy.words import NO_EPSILON, guarantee, round_up

    with stop_on_interrupt() as stop:
        finished = carry_out(Surroundings(progress=Bars(quiet), stop=stop))
    result, noun = summary(finished), finished.synthetic.samples.noun
    if as_json:
        click.echo(json.dumps(result))
        return
    spent = guarantee(result["epsilon"], result["delta"], 4, ", ")
    if all_runs := result["data_set"]:
        epsilon = all_runs["epsilon"]
        total = NO_EPSILON if epsilon is None else f"ε ≤ {round_up(epsilon, 4)}"
        spent += f"; all runs over these records ({all_runs['runs']}): {total}"
    click.echo(f"{spent}; {result['api_calls']} API calls.")
    different = "" if result["different"] == result["images"] else f", {result['different']:,} of them different"
    for sentence in result["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"Synthetic data: {finished.folder / 'synthetic.npz'}, {result['images']:,} {noun}{different}")
    click.echo(f"Its evolution:  {finished.folder / 'evolution.png'}")
    click.echo(f"Certificate:    {finished.folder / 'certificate.md'}")
    further = "" if result["epsilon"] is None else " at no further ε"
    click.echo(f"More {noun}{further}: pe extend {finished.folder} -n N")
