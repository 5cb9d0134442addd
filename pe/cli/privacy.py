"""`pe epsilon`, `pe calibrate` and `pe privacy`: the numbers, and a run's certificate checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pe.cli.options import PATH, json_option

_FILES = 20
"""Most covered files that are printed."""

_iterations = click.option("--iterations", type=int, required=True, help="T, histograms released.")
_delta = click.option("--delta", type=float, required=True, help="δ; there is no default.")
_relation = click.option(
    "--relation", type=click.Choice(["add_remove", "replace_one", "zero_out"]), default="add_remove", show_default=True
)


@click.command()
@click.option("--noise-multiplier", type=float, required=True, help="Noise standard deviation over sensitivity.")
@_iterations
@_delta
@_relation
@json_option
def epsilon(noise_multiplier: float, iterations: int, delta: float, relation: str, as_json: bool) -> None:
    """ε of T histograms with a given noise multiplier."""
    from pe.planning.budget import epsilon_for
    from pe.privacy.release import Relation
    from pe.privacy.words import round_up

    value = epsilon_for(noise_multiplier, iterations, delta, Relation(relation))
    click.echo(json.dumps({"epsilon": value}) if as_json else f"ε = {round_up(value)}")


@click.command()
@click.option("--epsilon", type=float, required=True, help="Target ε of all T histograms together.")
@_iterations
@_delta
@_relation
@json_option
def calibrate(epsilon: float, iterations: int, delta: float, relation: str, as_json: bool) -> None:
    """The least noise multiplier for T histograms at (ε, δ)."""
    from pe.planning.budget import noise_multiplier_for
    from pe.privacy.ledger import Budget
    from pe.privacy.release import Relation
    from pe.privacy.words import round_up

    value = noise_multiplier_for(Budget(epsilon, delta), iterations, Relation(relation))
    click.echo(json.dumps({"noise_multiplier": value}) if as_json else f"noise multiplier = {round_up(value)}")


@click.command()
@click.argument("run", type=PATH)
@json_option
def privacy(run: Path, as_json: bool) -> None:
    """Print the certificate of RUN and check it.

    RUN may be an exported folder. ε must follow from the releases, and every file have the hash that it was certified
    with. Of many files the number is printed; certificate.md names them.
    """
    from pe.errors import printable
    from pe.privacy.markdown import certificate_markdown
    from pe.store.export import examine

    certificate, problems = examine(run)
    if as_json:
        click.echo(json.dumps(certificate | {"problems": problems}))
    else:
        click.echo("\n".join(map(printable, _page(certificate, certificate_markdown).split("\n"))))
        for problem in problems:
            click.echo(f"✗ {printable(problem)}")
        if not problems:
            told = "ε follows from the releases" if certificate["holds"] else "It promises nothing: NO GUARANTEE"
            click.echo(f"✓ {told}, and every file is as it was certified.")
    if problems:
        raise click.exceptions.Exit(1)


def _page(certificate: dict[str, Any], markdown: Callable[[dict[str, Any], int], str]) -> str:
    """The certificate as it was checked, for people; a damaged one has no page."""
    try:
        return markdown(certificate, _FILES)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return "# Privacy certificate: DAMAGED\n"
