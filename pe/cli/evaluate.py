"""`pe evaluate`: how good a run's synthetic data is, against real samples."""

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

_CLASSIFIERS = (
    "Of linear_probe, logistic_regression, mlp, resnet9; of texts linear_probe, tfidf_regression; "
    "of rows linear_probe, logistic_regression, random_forest, boosted_trees."
)


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
    help="Of fidelity, utility, memorisation, with commas; default: all possible.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Trainings per classifier.",
)
@click.option(
    "--embedding",
    "embeddings",
    multiple=True,
    callback=_specs,
    help="NAME or NAME:key=value,…; default: the run's. Repeat.",
)
@click.option("--classifiers", callback=_names, help=_CLASSIFIERS)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Epochs of ResNet-9.",
)
@click.option(
    "--flip", is_flag=True, help="Mirror images in ResNet-9's training; not for digits or text."
)
@click.option(
    "--device", help="Device for ResNet-9: cpu, cuda, cuda:1; default: the GPU if there is one."
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
    "--random-selection/--no-random-selection",
    default=None,
    help="Make that control, which calls the generator; default: where it is free and quick.",
)
@click.option(
    "--one-vote/--no-one-vote",
    default=None,
    help="Make the one-vote control, which reads the private records once more.",
)
@machine_option
@json_option
@quiet_option
def evaluate(run_folder: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Measure the data of RUN against real samples.

    It shows whether the votes helped.
    The answer is internal: it is computed from real records without noise. It goes to
    confidential/metrics.json.
    """
    from pe.engine.loggers import Bars
    from pe.engine.process import logging_to
    from pe.evaluation.evaluate import METRICS_FILE, evaluate_run
    from pe.evaluation.labelled import NetworkSettings
    from pe.evaluation.sets import Request
    from pe.report.pages import constraint_rows, fidelity_rows, table_rows, utility_rows
    from pe.store.run import Run

    networks = NetworkSettings(settings.pop("epochs"), settings.pop("flip"), settings.pop("device"))
    request = Request(networks=networks, **settings)
    run = Run.open_own(run_folder, "pe evaluate")
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    with stop_on_interrupt() as stop, logging_to(run.confidential / "log.txt"):
        values = evaluate_run(run, request, Bars(quiet), stop)
    tables = {
        "fidelity_rows": fidelity_rows,
        "table_rows": table_rows(values),
        "constraint_rows": constraint_rows(values),
        "utility_rows": utility_rows(values),
    }
    print_result(values, "evaluation", as_json, path=run_folder / METRICS_FILE, **tables)
    for sentence in values["memorisation"]["warnings"] if "memorisation" in values else ():
        click.echo(f"warning: {sentence}", err=True)
    tell_if_purged(run_folder)
    if not (as_json or quiet):
        has_remedies = values.get("verdict", {}).get("remedies")
        tell_next(
            ["view", run_folder, "--confidential"] if has_remedies else ["export", run_folder, "TO"]
        )
