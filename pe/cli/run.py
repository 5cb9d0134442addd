"""`pe run` and `pe resume`: carry out a recipe, and go on with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option, log_level_option, quiet_option
from pe.cli.signals import stop_on_interrupt
from pe.cli.watch import watch_option, watching

if TYPE_CHECKING:
    from pe.engine.execution import Surroundings
    from pe.private_work import PrivateWork
    from pe.recipe.schema import Recipe
    from pe.store.run import Run

ray_option = click.option(
    "--ray",
    metavar="auto|HOST:PORT",
    help="Embed records and count votes on Ray: of its own on this machine, or a cluster to join.",
)
logger_option = click.option(
    "--logger",
    "loggers",
    multiple=True,
    metavar="NAME=WHERE",
    help="Log each iteration: tensorboard=DIR, mlflow=URI, wandb=PROJECT.",
)


@click.command()
@click.argument("recipe", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a value of the recipe.")
@click.option("--out", type=PATH, help="The run's directory; must not exist.")
@click.option("--resume", "go_on", is_flag=True, help="Go on with the run in --out, if there is one.")
@ray_option
@watch_option
@logger_option
@json_option
@quiet_option
@log_level_option
def run(
    recipe: Path,
    changes: tuple[str, ...],
    out: Path | None,
    go_on: bool,
    ray: str | None,
    watched: bool,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run RECIPE (a YAML file) to its end."""
    from pe.engine.start import resume_run, run_recipe
    from pe.recipe.schema import Recipe

    wanted = Recipe.load(recipe, changes)
    if go_on and out is None:
        raise click.UsageError("--resume needs --out, the directory of the run to go on with.")
    if watched and out is None:
        raise click.UsageError("--watch needs --out, the directory of the run to follow.")

    def carry_out(surroundings: Surroundings) -> Run:
        if go_on and out is not None and out.exists():
            return resume_run(out, surroundings, wanted)
        return run_recipe(wanted, out, surroundings)

    _tell_if_finished(out if go_on else None)
    with watching(out, _tell) if watched and out is not None else nullcontext():
        _report(carry_out, wanted, ray, loggers, as_json, quiet)


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option("--set", "changes", multiple=True, metavar="A.B=VALUE", help="Change a limit or another machine setting.")
@ray_option
@watch_option
@logger_option
@json_option
@quiet_option
@log_level_option
def resume(
    run_folder: Path,
    changes: tuple[str, ...],
    ray: str | None,
    watched: bool,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Go on with RUN from its last committed chunk.

    Nothing that was answered is asked again.
    """
    from pe.engine.start import resume_run, stored_recipe

    recipe = stored_recipe(run_folder, changes)
    _tell_if_finished(run_folder)
    with watching(run_folder, _tell) if watched else nullcontext():
        _report(lambda surroundings: resume_run(run_folder, surroundings, recipe), recipe, ray, loggers, as_json, quiet)


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _tell_if_finished(folder: Path | None) -> None:
    """Of a run that is gone on with: that there is nothing to do."""
    from pe.store.places import CERTIFICATE

    if folder is not None and (folder / CERTIFICATE).is_file():
        _tell(f"{folder} is finished already, so it is checked, and nothing is asked.")


def _private_work(ray: str | None, recipe: Recipe) -> AbstractContextManager[PrivateWork]:
    """Who does the private work: this process, or a Ray cluster."""
    if ray is None:
        from pe.private_work import InThisProcess

        return nullcontext(InThisProcess())
    from pe.cluster.start import on_ray

    return on_ray(ray, recipe)


def _report(
    carry_out: Callable[[Surroundings], Run],
    recipe: Recipe,
    ray: str | None,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Carry out and say what came of it."""
    from pe.engine.bars import Bars
    from pe.engine.execution import Surroundings
    from pe.engine.extend import last_degree
    from pe.engine.loggers import logger
    from pe.engine.summary import summary
    from pe.privacy.words import NO_EPSILON, guarantee, round_up

    with _private_work(ray, recipe) as work, stop_on_interrupt() as stop:  # Ray sets a handler of its own
        told = tuple(map(logger, loggers))
        finished = carry_out(Surroundings(progress=Bars(quiet), stop=stop, work=work, loggers=told))
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
    all_differ = result["different"] == result["images"]
    different = "" if all_differ else f", {result['different']:,} of them different per label"
    for sentence in result["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"Synthetic data: {finished.folder / 'synthetic.npz'}, {result['images']:,} {noun}{different}")
    click.echo(f"Its evolution:  {finished.folder / 'evolution.png'}")
    click.echo(f"Certificate:    {finished.folder / 'certificate.md'}")
    further = "" if result["epsilon"] is None else " at no further ε"
    if last_degree(finished.folder):
        click.echo(f"More {noun}{further}: pe extend {finished.folder} -n N")
