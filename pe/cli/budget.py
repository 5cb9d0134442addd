"""`pe budget`: what all runs over a data set have spent together."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pe.cli.options import json_option


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--delta", type=float, default=1e-5, show_default=True, help="At which the total is stated, without a cap."
)
@click.option("--cap-epsilon", type=float, help="Refuse every run that would bring the total above this.")
@click.option("--cap-delta", type=float, help="δ of the cap.")
@click.option("--no-cap", is_flag=True, help="Take the cap away.")
@json_option
def budget(
    data: Path, delta: float, cap_epsilon: float | None, cap_delta: float | None, no_cap: bool, as_json: bool
) -> None:
    """What all runs over DATA (a folder or file of private records) have spent together, and its cap."""
    from pe.privacy.data_set import DataSetBudget, total_epsilon
    from pe.privacy.ledger import Budget

    if (cap_epsilon is None) != (cap_delta is None) or (no_cap and cap_epsilon is not None):
        raise click.UsageError("Give --cap-epsilon and --cap-delta together, or --no-cap.")
    if not data.exists():
        raise click.UsageError(f"{data} does not exist.")
    file = DataSetBudget.beside(data)
    if no_cap:
        file.cap(None)
    elif cap_epsilon is not None and cap_delta is not None:
        file.cap(Budget(cap_epsilon, cap_delta))
    content = file.read()
    cap = content["cap"]
    at = cap["delta"] if cap else delta
    total = total_epsilon(content["runs"], at)
    if as_json:
        click.echo(json.dumps({"epsilon": total, "delta": at, "runs": len(content["runs"]), "cap": cap}))
        return
    click.echo(f"{len(content['runs'])} runs: ε = {total:.6g} at δ = {at:g}.")
    click.echo(f"Cap: {'none' if cap is None else 'ε = {epsilon:g} at δ = {delta:g}'.format(**cap)}  ({file.path})")
