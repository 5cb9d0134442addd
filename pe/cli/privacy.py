"""`pe epsilon` computes ε from noise, or noise from ε. `pe ledger` shows a data set's total."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option
from pe.cli.pages import print_result

if TYPE_CHECKING:
    from pe.privacy.data_set import DataSetLedger


@click.command()
@click.option(
    "--noise-multiplier", type=float, help="Noise standard deviation over sensitivity: gives ε."
)
@click.option(
    "--epsilon", "target", type=float, help="ε of all T together: gives the least noise multiplier."
)
@click.option("--iterations", type=int, required=True, help="T, histograms released.")
@click.option("--delta", type=float, required=True, help="δ; there is no default.")
@click.option(
    "--relation",
    type=click.Choice(["add_remove", "replace_one", "zero_out"]),
    default="add_remove",
    show_default=True,
)
@json_option
def epsilon(
    noise_multiplier: float | None,
    target: float | None,
    iterations: int,
    delta: float,
    relation: str,
    as_json: bool,
) -> None:
    """Compute ε of T histograms from their noise, or the noise from ε."""
    from pe.planning.releases import epsilon_for, noise_multiplier_for
    from pe.privacy.ledger import Budget
    from pe.privacy.release import Relation

    if noise_multiplier is not None and target is None:
        values = {
            "epsilon": epsilon_for(noise_multiplier, iterations, delta, Relation(relation)),
        }
    elif target is not None and noise_multiplier is None:
        budget = Budget(target, delta)
        values = {
            "noise_multiplier": noise_multiplier_for(budget, iterations, Relation(relation)),
        }
    else:
        raise click.UsageError("Give either `--noise-multiplier` or `--epsilon`.")
    print_result(values, "epsilon", as_json)


@click.command()
@click.argument("data", type=PATH, required=False)
@click.option(
    "--file", "place", type=PATH, help="The ledger file, where private.ledger_file puts it."
)
@click.option(
    "--delta",
    type=float,
    help="δ of the total; default: the cap's, or the runs' smallest.",
)
@click.option(
    "--cap-epsilon", type=float, help="Refuse every run that would bring the total above this."
)
@click.option("--cap-delta", type=float, help="δ of the cap.")
@click.option(
    "--add",
    type=click.Path(exists=True, path_type=Path),
    help="Count the runs of this ledger file here, too.",
)
@click.option(
    "--forget",
    type=PATH,
    metavar="RUN",
    help="Remove RUN from the ledger. Refused if it has drawn any noise.",
)
@click.option("--no-cap", is_flag=True, help="Take the cap away.")
@json_option
def ledger(
    data: Path | None,
    place: Path | None,
    delta: float | None,
    add: Path | None,
    cap_epsilon: float | None,
    cap_delta: float | None,
    forget: Path | None,
    no_cap: bool,
    as_json: bool,
) -> None:
    """Show the total that all runs over DATA have spent, and the cap.

    DATA is the folder or file of private records; its ledger lies beside it, or else in --file.
    """
    from pe.privacy.data_set import DataSetLedger
    from pe.privacy.ledger import Budget

    if (cap_epsilon is None) != (cap_delta is None) or (no_cap and cap_epsilon is not None):
        raise click.UsageError("Give `--cap-epsilon` and `--cap-delta` together, or `--no-cap`.")
    # a cap, or the runs of another file, are what a new ledger may begin with
    file = _open(data, place, may_be_new=cap_epsilon is not None or add is not None)
    if add is not None:
        file.add(DataSetLedger(add))
    if forget is not None:
        from pe.engine.private_side import forget_run

        forget_run(forget, file)
    if no_cap and file.path.exists():
        file.cap(None)
    elif cap_epsilon is not None and cap_delta is not None:
        file.cap(Budget(cap_epsilon, cap_delta))
    _tell(file, delta, as_json)


def _open(data: Path | None, place: Path | None, may_be_new: bool) -> DataSetLedger:
    """Return the ledger beside `data`, or in the file `place`.

    `place` must exist unless it `may_be_new`.
    """
    from pe.privacy.data_set import DataSetLedger

    if data is not None and place is None:
        if data.exists():
            return DataSetLedger.beside(data)
        raise click.UsageError(f"{data} does not exist.")
    if place is None or data is not None:
        raise click.UsageError("Name either DATA, the private records, or `--file`, their ledger.")
    if place.exists() or may_be_new:
        return DataSetLedger(place)
    raise click.UsageError(f"{place} does not exist.")


def _tell(file: DataSetLedger, delta: float | None, as_json: bool) -> None:
    """Print the total, the number of runs, and the cap."""
    from pe.privacy.certificate_text import finite
    from pe.privacy.data_set import MIXED, total_epsilon, whom

    content = file.read()
    cap = content["cap"]
    runs = content["runs"]
    if delta is None:
        # at the smallest δ no run promises more than it does at its own
        deltas = [cap["delta"]] if cap else [content["deltas"].get(run) for run in runs]
        if None in deltas:
            raise click.UsageError(
                f"{file.path} does not say at which δ its runs were made. Give `--delta`."
            )
        delta = min(deltas, default=None)
    total = 0.0 if delta is None else total_epsilon(runs, delta)
    place = str(file.path) if file.path.exists() else None
    if place is None:
        click.echo(
            f"There is no ledger file {file.path}, so no run is counted and there is no cap. Check "
            "that DATA is what `private.path` names, or give `--file` what `private.ledger_file` "
            "names.",
            err=as_json,
        )
    if as_json or place is not None:
        values = {
            "epsilon": finite(total),
            "delta": None if finite(total) is None else delta,
            "runs": len(runs),
            "cap": cap,
            "file": place,
        }
        print_result(
            values, "ledger", as_json, total=total, at=delta, neighbours=whom(runs), mixed=MIXED
        )
    if not as_json and cap and total_epsilon(runs, cap["delta"]) >= cap["epsilon"]:
        click.echo(
            "warning: the runs there are have reached the cap, so every further run is refused.",
            err=True,
        )
