"""`pe evaluate`: how good a run's synthetic data is, against real samples."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, aligned, json_option, machine_option, quiet_option, stop_on_interrupt, tell_next
from pe.cli.share import tell_if_purged

if TYPE_CHECKING:
    from pe.plugins.specs import PluginSpec

_CLASSIFIERS = (
    "Of linear_probe, logistic_regression, mlp, resnet9; of texts linear_probe, tfidf_regression; of rows "
    "linear_probe, logistic_regression, random_forest, boosted_trees."
)
_WIDTH = 110  # of a paragraph


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _specs(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[PluginSpec, ...]:
    return tuple(map(_spec, texts))


def _spec(text: str) -> PluginSpec:
    """Read `pixels:size=32,blur=0` as an embedding and its settings; values are YAML."""
    import yaml

    from pe.errors import RecipeError
    from pe.plugins.specs import PluginSpec

    kind, _, settings = text.partition(":")
    pairs = [part.partition("=") for part in settings.split(",") if part]
    if not kind or not all(key and equals for key, equals, _ in pairs):
        raise RecipeError(f"--embedding {text} is not of the form NAME or NAME:key=value,key=value.")
    try:
        return PluginSpec.model_validate({"kind": kind} | {key: yaml.safe_load(value) for key, _, value in pairs})
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError(f"--embedding {text}: {' '.join(str(error).split())}.") from error


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option(
    "--test", required=True, help="Real samples that no run has seen: a folder or file, as the private ones are."
)
@click.option(
    "--metrics", callback=_names, help="Of fidelity, utility, memorisation, with commas; default: all possible."
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Trainings per classifier.")
@click.option(
    "--embedding",
    "embeddings",
    multiple=True,
    callback=_specs,
    help="NAME or NAME:key=value,…; default: the run's. Repeat.",
)
@click.option("--classifiers", callback=_names, help=_CLASSIFIERS)
@click.option("--epochs", type=click.IntRange(min=1), default=20, show_default=True, help="Of ResNet-9.")
@click.option("--flip", is_flag=True, help="Mirror images in ResNet-9's training; not for digits or text.")
@click.option("--device", help="Of ResNet-9: cpu, cuda, cuda:1; default: the GPU if there is one.")
@click.option("--reference", help="Samples that fidelity compares with, public ones too; default: the test set.")
@click.option("--canaries", type=PATH, help="A file with strings planted among the private texts, one in each line.")
@click.option(
    "--random-selection/--no-random-selection",
    default=None,
    help="Make that control, which calls the generator; default: where it is free and quick.",
)
@click.option("--one-vote/--no-one-vote", default=None, help="Likewise; it reads the private records once more.")
@machine_option
@json_option
@quiet_option
def evaluate(run_folder: Path, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Measure the data of RUN against real samples: did votes help?

    The answer is internal: it is computed from real records without noise. It goes to confidential/metrics.json.
    """
    from pe.engine.loggers import Bars
    from pe.engine.process import logging_to
    from pe.evaluation.evaluate import METRICS_FILE, evaluate_run
    from pe.evaluation.labelled import NetworkSettings
    from pe.evaluation.sets import Request
    from pe.store.run import Run

    networks = NetworkSettings(settings.pop("epochs"), settings.pop("flip"), settings.pop("device"))
    request = Request(networks=networks, **settings)
    run = Run.open_own(run_folder, "pe evaluate")
    run.confidential.mkdir(mode=0o700, exist_ok=True)
    with stop_on_interrupt() as stop, logging_to(run.confidential / "log.txt"):
        values = evaluate_run(run, request, Bars(quiet), stop)
    click.echo(json.dumps(values) if as_json else _page(values, run_folder / METRICS_FILE))
    for sentence in values["memorisation"]["warnings"] if "memorisation" in values else ():
        click.echo(f"warning: {sentence}", err=True)
    tell_if_purged(run_folder)
    if not (as_json or quiet):
        has_remedies = values.get("verdict", {}).get("remedies")
        tell_next(["view", run_folder, "--confidential"] if has_remedies else ["export", run_folder, "TO"])


def _page(values: dict[str, Any], path: Path) -> str:
    """Format an evaluation for people."""
    from pe.report.sections import constraint_rows, fidelity_rows, table_rows, utility_rows

    run, test = values["run"], values["test"]
    state = "" if run["finished"] else f" (not finished: S_{run['iteration']} of S_{run['iterations']})"
    against = f"against {test['images']:,} of {test['path']}"
    lines = [f"INTERNAL. {run['name']}{state}: {run['images']:,} {run['noun']}, {against}"]
    lines += ["", *_grade(values["grade"]["lines"])]
    if "verdict" in values:
        lines += ["", *_verdict(values["verdict"])]
    for name, fidelity in values.get("fidelity", {}).items():
        lines += ["", f"Fidelity under {name}", *aligned(fidelity_rows(fidelity))]
    if "fidelity" in values:
        lines.append("Lower is nearer to the real samples in the first two columns, higher in the others.")
    if rows := table_rows(values):
        lines += ["", "Total variation of values, alone and together; difference of associations", *aligned(rows)]
    if rows := constraint_rows(values):
        lines += ["", "Share that breaks what is declared", *aligned(rows)]
    if "utility" in values:
        lines += ["", "Accuracy; macro-F1; AUC", *aligned(utility_rows(values))]
        lines.append("* the classifier chosen on held-out parts of the training set, never on the test set")
    if "memorisation" in values:
        lines += ["", *_memorisation(values["memorisation"], run["noun"])]
    return "\n".join([*lines, "", f"Not covered by the certificate. Written to {path}"])


def _grade(lines: list[list[str]]) -> list[str]:
    wrapped: list[str] = []
    for name, text in lines:
        wrapped += textwrap.wrap(f"{name:<12}{text}", _WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
    return wrapped


def _verdict(verdict: dict[str, Any]) -> list[str]:
    lines = [line for each in (verdict["sentence"], *verdict["collapsed"]) for line in textwrap.wrap(each, _WIDTH)]
    if verdict["remedies"][1:]:
        lines.append("What else may help:")
    for remedy in verdict["remedies"][1:]:
        lines += textwrap.wrap(remedy, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return lines


def _memorisation(values: dict[str, Any], noun: str) -> list[str]:
    attack, copies = values["membership"], values["copies"]
    return [
        f"Memorisation under {values['embedding']}",
        f"membership by distance: AUC {attack['auc']:.3f} ({100 * attack['level']:g} % interval {attack['low']:.3f} to "
        f"{attack['high']:.3f}; 0.5 tells nothing)",
        f"copies of private records: {copies['exact']:,} exact, {copies['near']:,} near, of {copies['generated']:,} "
        f"generated {noun} (near, of {copies['heldout']:,} held-out ones: {copies['heldout_near']:,})",
    ]
