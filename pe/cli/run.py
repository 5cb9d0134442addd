"""`pe run`, `pe extend` and `pe demo`: commands that make samples."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import (
    PATH,
    json_option,
    log_level_option,
    machine_option,
    quiet_option,
    recipe_option,
    stop_on_interrupt,
    tell_next,
)
from pe.cli.pages import print_result
from pe.cli.share import tell_if_purged, tell_if_unsigned
from pe.cli.view import live_page
from pe.errors import quoted

if TYPE_CHECKING:
    from pe.histogram import PrivateWork
    from pe.recipe.schema import Recipe


@click.command()
@click.argument("what", metavar="RECIPE|RUN", type=PATH)
@recipe_option
@click.option("--out", type=PATH, help="The run's directory; must not exist.")
@click.option(
    "--resume", "go_on", is_flag=True, help="Go on with the run in --out, if there is one."
)
@click.option(
    "--ray",
    metavar="auto|HOST:PORT",
    help="Embed records and count votes on Ray: `auto` starts it here, HOST:PORT joins a cluster.",
)
@click.option("--view", is_flag=True, help="Serve a live page during the run; see `pe view`.")
@click.option(
    "--logger",
    "loggers",
    multiple=True,
    metavar="NAME=WHERE",
    help="Log each iteration: tensorboard=DIR, mlflow=URI, wandb=PROJECT.",
)
@json_option
@quiet_option
@log_level_option
def run(
    what: Path,
    changes: tuple[str, ...],
    out: Path | None,
    go_on: bool,
    ray: str | None,
    view: bool,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run RECIPE, a YAML file, or continue RUN, a folder.

    A run continues from its last committed chunk: no answered request is repeated. You may change
    limits and machine settings.
    """
    from pe.engine.execution import RunContext, resume_run, run_recipe, stored_recipe, summary
    from pe.engine.extend import last_degree
    from pe.engine.loggers import Bars, logger
    from pe.recipe.schema import Recipe
    from pe.store.places import CERTIFICATE

    if what.is_dir():
        if out is not None or go_on:
            raise click.UsageError(
                f"{what} is a folder, so `pe run {quoted(what)}` goes on with the run in it. Leave "
                "`--out` and `--resume` out."
            )
        content = stored_recipe(what, changes)
        out = what
        go_on = True
    else:
        content = Recipe.load(what, changes)
    if go_on and out is None:
        raise click.UsageError("`--resume` needs `--out`, the directory of the run to go on with.")
    if view and out is None:
        raise click.UsageError("`--view` needs `--out`, the directory of the run to show.")

    earlier = out if go_on and out is not None and out.exists() else None
    if earlier is not None and (earlier / CERTIFICATE).is_file():
        _tell(f"{earlier} is finished already, so it is checked, and nothing is asked.")
    page = live_page(out, _tell) if view and out is not None else nullcontext()
    # Ray sets a handler of its own for signals, so ours is set after it
    with page, _private_work(ray, content) as work, stop_on_interrupt() as stop:
        context = RunContext(
            progress=Bars(quiet), stop=stop, work=work, loggers=tuple(map(logger, loggers))
        )
        if earlier is not None:
            made = resume_run(earlier, context, content)
        else:
            made = run_recipe(content, out, context)
    result = summary(made)
    print_result(result, "run", as_json, extends=last_degree(made.folder) > 0)
    if as_json:
        return
    for sentence in result["warnings"]:
        _tell(f"warning: {sentence}")
    if not quiet:
        folder = made.folder
        tell_next(
            ["view", folder], ["evaluate", folder, "--test", "PATH"], ["export", folder, "TO"]
        )


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _private_work(ray: str | None, recipe: Recipe) -> AbstractContextManager[PrivateWork]:
    """Return a context whose value does the private work, in this process or on Ray."""
    if ray is None:
        from pe.histogram import InThisProcess

        return nullcontext(InThisProcess())
    from pe.cluster.work import on_ray

    return on_ray(ray, recipe)


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "-n", "count", type=click.IntRange(min=1), required=True, help="How many more samples."
)
@click.option(
    "--degree",
    type=click.FloatRange(0, 1),
    help="0 copies, 1 makes new samples; default: the degree of RUN's last iteration.",
)
@click.option(
    "--examples",
    type=click.IntRange(1, 50),
    help="Show the language model this many texts of RUN and ask for another.",
)
@machine_option
@json_option
@quiet_option
@log_level_option
def extend(
    run: Path,
    count: int,
    degree: float | None,
    examples: int | None,
    changes: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Make more samples of the finished RUN, at no further ε.

    They are variations of its last population, or the next best candidates of a pool.
    """
    from pe.engine.execution import RunContext
    from pe.engine.extend import continues_ranking, extend_run, last_degree, novelty
    from pe.engine.loggers import Bars
    from pe.recipe.schema import Recipe
    from pe.store.places import RECIPE

    at = degree
    if at is None:
        # a text that is shown examples is as new as one without
        at = 1.0 if examples else last_degree(run)

    def tell(path: Path) -> None:
        are_copies = not at and not continues_ranking(Recipe.load(run / RECIPE), at)
        values = {"samples": count, "degree": at, "path": str(path)}
        share = novelty(path) if examples else None
        print_result(values, "extension", as_json, novelty=share, are_copies=are_copies)

    with tell_if_unsigned(run), stop_on_interrupt() as stop:
        extend_run(
            run,
            count,
            at,
            RunContext(progress=Bars(quiet), stop=stop),
            changes,
            examples or 0,
            tell,
        )
    tell_if_purged(run)
    if not (as_json or quiet):
        tell_next(["export", run, "TO"])


@click.command()
@click.option(
    "--api",
    type=click.Choice(["glyphs", "diffusion"]),
    default="glyphs",
    show_default=True,
    help="The generator: drawn text, or a small diffusion model (extra `diffusion`).",
)
@click.option("--epsilon", type=float, help="Target ε; the recipe's is 1.")
@click.option("--seed", type=int, help="Seed of everything but the noise.")
@click.option("--out", type=PATH, help="The run's directory; must not exist.")
@json_option
@quiet_option
@log_level_option
def demo(
    api: str, epsilon: float | None, seed: int | None, out: Path | None, as_json: bool, quiet: bool
) -> None:
    """Make a private synthetic version of handwritten digits.

    It takes one to five minutes, and needs no GPU and no download.
    """
    from pe.engine.demo import run_demo
    from pe.engine.execution import RunContext
    from pe.engine.loggers import Bars

    with stop_on_interrupt() as stop:
        context = RunContext(progress=Bars(quiet), stop=stop)
        result = run_demo(api, epsilon=epsilon, seed=seed, out=out, context=context)
    print_result(result, "demo", as_json, api=api)
    if not (as_json or quiet):
        tell_next(["view", result["run"]], ["init", "YOUR_DATA"])
