"""`pe evaluate`: what a run's synthetic data are good for, measured against real samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import (
    PATH,
    json_option,
    machine_option,
    quiet_option,
    stop_on_interrupt,
    tell_next,
)
from pe.cli.pages import print_result
from pe.cli.share import tell_if_purged

if TYPE_CHECKING:
    from pe.plugins.specs import PluginSpec


def _names(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _specs(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[PluginSpec, ...]:
    return tuple(map(_spec, texts))


def _spec(text: str) -> PluginSpec:
    """Read `pixels:size=32,blur=0` as an embedding and its settings. Values are YAML."""
    import yaml

    from pe.errors import RecipeError
    from pe.plugins.specs import PluginSpec

    kind, _, settings = text.partition(":")
    pairs = [part.partition("=") for part in settings.split(",") if part]
    if not kind or not all(key and equals for key, equals, _ in pairs):
        raise RecipeError(
            f"`--embedding {text}` does not have the form NAME or NAME:key=value,key=value."
        )
    try:
        return PluginSpec.model_validate(
            {"kind": kind} | {key: yaml.safe_load(value) for key, _, value in pairs}
        )
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"`--embedding {text}`: {' '.join(str(error).split())}.") from error


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option(
    "--test",
    required=True,
    help="Real samples that no run has seen: a folder or file, as the private ones are.",
)
@click.option(
    "--metrics",
    callback=_names,
    help="Of judgement, fidelity, memorisation (default: these), and of other packages.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Trainings per classifier that learns by chance.",
)
@click.option(
    "--embedding",
    "embeddings",
    multiple=True,
    callback=_specs,
    help="NAME or NAME:key=value,…; default: the run's. Repeat.",
)
@click.option(
    "--reference",
    help="Samples that fidelity compares with, public ones too; default: the test set.",
)
@click.option(
    "--canaries",
    type=PATH,
    help="A file with strings planted among the private texts, one in each line.",
)
@click.option(
    "--one-vote/--no-one-vote",
    default=None,
    help="Make the one-vote control, which asks the generator and reads the private records once "
    "more; default: if it is free and quick.",
)
@machine_option
@json_option
@quiet_option
def evaluate(run_folder: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Measure the data of RUN against real samples.

    It says what they are good for, and what the votes brought.
    The answer is internal: it is computed from real records without noise. It goes to
    confidential/metrics.json.
    """
    from pe.engine.loggers import Bars
    from pe.engine.process import logging_to
    from pe.evaluation.evaluate import METRICS_FILE, evaluate_run
    from pe.evaluation.sets import Request
    from pe.report.pages import constraint_rows, fidelity_rows, table_rows, trained_rows
    from pe.store.run import Run

    request = Request(**settings)
    run = Run.open_own(run_folder, "pe evaluate")
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    with stop_on_interrupt() as stop, logging_to(run.confidential / "log.txt"):
        values = evaluate_run(run, request, Bars(quiet), stop)
    tables = {
        "fidelity_rows": fidelity_rows,
        "table_rows": table_rows(values),
        "constraint_rows": constraint_rows(values),
        "trained_rows": trained_rows(values),
    }
    print_result(values, "evaluation", as_json, path=run_folder / METRICS_FILE, **tables)
    for sentence in values["memorisation"]["warnings"] if "memorisation" in values else ():
        click.echo(f"warning: {sentence}", err=True)
    tell_if_purged(run_folder)
    if not (as_json or quiet):
        has_remedies = values.get("judgement", {}).get("more")
        tell_next(
            ["view", run_folder, "--confidential"] if has_remedies else ["export", run_folder, "TO"]
        )
