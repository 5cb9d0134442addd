"""`pe demo`: Private Evolution on real handwritten digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pe.cli.options import json_option, log_level_option, quiet_option
from pe.cli.signals import stop_on_interrupt
from pe.engine.bars import Bars

_SAMPLES = {"glyphs": "glyphs", "diffusion": "samples"}


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
@click.option("--out", type=click.Path(path_type=Path), help="The run's directory; must not exist.")
@json_option
@quiet_option
@log_level_option
def demo(api: str, epsilon: float | None, seed: int | None, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Make a private synthetic version of handwritten digits.

    A minute or five; no GPU, no download.
    """
    from pe.engine.demo.digits import run_demo
    from pe.engine.execution import Surroundings

    with stop_on_interrupt() as stop:
        surroundings = Surroundings(progress=Bars(quiet), stop=stop)
        result = run_demo(api, epsilon=epsilon, seed=seed, out=out, surroundings=surroundings)
    click.echo(json.dumps(result) if as_json else _table(result, api))


def _table(result: dict[str, Any], api: str) -> str:
    """The result as a person reads it."""
    scores = result["accuracy"]
    rows = [
        ("synthetic", f"PE data, ε = {result['epsilon']:.3g}, δ = {result['delta']:g}"),
        ("unevolved", f"as many un-evolved {_SAMPLES[api]} (no private data used)"),
        ("real", "the real private digits (not DP; public demo data)"),
    ]
    lines = ["", "Accuracy on 1,000 held-out real digits when trained on", ""]
    lines.append(f"  {'':<52}{'logistic regression':>20}{'MLP':>9}")
    for key, meaning in rows:
        logistic, mlp = scores["logistic_regression"][key], scores["mlp"][key]
        lines.append(f"  {meaning:<52}{logistic:>20.1%}{mlp:>9.1%}")
    run = Path(result["run"])
    lines += [
        "",
        f"Synthetic images     {run / 'synthetic.npz'}",
        f"Picture of evolution {run / 'evolution.png'}",
        f"{result['api_calls']} API calls, {result['seconds']:.0f} s in all",
    ]
    return "\n".join(lines)
