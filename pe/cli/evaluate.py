"""`pe evaluate`: how good a run's synthetic data is, against real samples."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, json_option, quiet_option, stop_on_interrupt, tell_next
from pe.cli.share import tell_if_purged

if TYPE_CHECKING:
    from pe.plugins.specs import PluginSpec

_SETS = {
    "synthetic": "the run's data",
    "unevolved": "un-evolved samples",
    "random_selection": "parents chosen at random",
    "one_vote": "chosen by one vote, not varied",
    "pool_labels": "the pool by its own labels",
    "real": "the private records: the ceiling",
}
_CLASSIFIERS = "Of linear_probe, logistic_regression, mlp, resnet9; of texts linear_probe, tfidf_regression."
_WIDTH = 110  # of a paragraph


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option(
    "--test", required=True, help="Real samples that no run has seen: a folder or file, as the private ones are."
)
@click.option("--metrics", help="Of fidelity, utility, memorisation, with commas; default: all possible.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Trainings per classifier.")
@click.option("--embedding", "embeddings", multiple=True, help="NAME or NAME:key=value,…; default: the run's. Repeat.")
@click.option("--classifiers", help=_CLASSIFIERS)
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
@json_option
@quiet_option
def evaluate(
    run_folder: Path,
    test: str,
    metrics: str | None,
    seeds: int,
    embeddings: tuple[str, ...],
    classifiers: str | None,
    epochs: int,
    flip: bool,
    device: str | None,
    reference: str | None,
    canaries: Path | None,
    random_selection: bool | None,
    one_vote: bool | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure the data of RUN against real samples: did votes help?

    The answer is internal: it is computed from real records without noise. It goes to confidential/metrics.json.
    """
    from pe.engine.loggers import Bars
    from pe.engine.process import logging_to
    from pe.evaluation.evaluate import METRICS_FILE, evaluate_run
    from pe.evaluation.labelled import NetworkSettings
    from pe.evaluation.sets import Request
    from pe.store.run import Run

    request = Request(
        test=test,
        metrics=_names(metrics),
        seeds=seeds,
        embeddings=tuple(_spec(text) for text in embeddings),
        classifiers=_names(classifiers),
        networks=NetworkSettings(epochs, flip, device),
        reference=reference,
        canaries=canaries,
        random_selection=random_selection,
        one_vote=one_vote,
    )
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


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


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


def _page(values: dict[str, Any], path: Path) -> str:
    """Format an evaluation for people."""
    run, test = values["run"], values["test"]
    state = "" if run["finished"] else f" (not finished: S_{run['iteration']} of S_{run['iterations']})"
    against = f"against {test['images']:,} of {test['path']}"
    lines = [f"INTERNAL. {run['name']}{state}: {run['images']:,} {run['noun']}, {against}"]
    lines += ["", *_grade(values["grade"]["lines"])]
    if "verdict" in values:
        lines += ["", *_verdict(values["verdict"])]
    for name, fidelity in values.get("fidelity", {}).items():
        lines += ["", *_fidelity(name, fidelity)]
    if "fidelity" in values:
        lines.append("  Lower is nearer to the real samples in the first two columns, higher in the others.")
    if "utility" in values:
        lines += ["", *_utility(values)]
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


def _fidelity(name: str, fidelity: dict[str, Any]) -> list[str]:
    heads = ("FID", "KID") if fidelity["standard_inception"] else ("Fréchet", "kernel")
    columns = ["precision", "recall", "density", "coverage"]
    title = f"Fidelity under {name}:"
    lines = [f"{title} {heads[0]:>9}{heads[1] + ' ± s.e.':>22}" + "".join(f"{c:>11}" for c in columns)]
    for key, row in {"synthetic": fidelity, **fidelity["controls"]}.items():
        error = row["kernel"]["standard_error"]
        kernel = f"{row['kernel']['mean']:.4g}" + ("" if error is None else f" ± {error:.2g}")
        shares = "".join(f"{row[c]:>11.3f}" if c in row else f"{'–':>11}" for c in columns)
        lines.append(f"{'  ' + key:<{len(title)}} {row['frechet']:>9.4g}{kernel:>22}{shares}")
    return lines


def _utility(values: dict[str, Any]) -> list[str]:
    results, best = values["utility"], values["chosen_classifier"]
    widths = [max(24, len(name) + 2) for name in results]
    lines = [f"{'Accuracy, macro-F1':<26}" + "".join(map(str.rjust, results, widths))]
    for name in best:
        cells = []
        for classifier, by_set in results.items():
            accuracy, macro_f1 = by_set[name]["accuracy"], by_set[name]["macro_f1"]["mean"]
            spread = "" if accuracy["std"] is None else f" ± {100 * accuracy['std']:.1f}"
            mark = "*" if best[name] == classifier else " "
            cells.append(f"{100 * accuracy['mean']:.1f}{spread} %{mark} {macro_f1:.3f}")
        lines.append(f"{'  ' + name:<26}" + "".join(map(str.rjust, cells, widths)) + f"  {_SETS[name]}")
    return [*lines, "  * the classifier chosen on held-out parts of the training set, never on the test set"]


def _memorisation(values: dict[str, Any], noun: str) -> list[str]:
    distance = {key: values[key]["quantiles"][50] for key in ("generated_to_private", "heldout_to_private")}
    attack, copies = values["membership"], values["copies"]
    lines = [
        f"Memorisation under {values['embedding']}",
        f"  nearest private record, median distance: generated {distance['generated_to_private']:.4g}, "
        f"held-out {distance['heldout_to_private']:.4g}",
        f"  membership by distance: AUC {attack['auc']:.3f} ({100 * attack['level']:g} % interval {attack['low']:.3f} "
        f"to {attack['high']:.3f}; 0.5 tells nothing)",
        f"  copies of private records: {copies['exact']:,} exact, {copies['near']:,} near, of {copies['generated']:,} "
        f"generated {noun} (near, of {copies['heldout']:,} held-out ones: {copies['heldout_near']:,})",
    ]
    if by_loss := values.get("membership_by_loss"):  # of a fitted model
        hits, limits = by_loss["tpr"], by_loss["allowed"]
        bound = "no guarantee bounds it"
        if limits is not None:
            bound = f"the fit's guarantee allows {100 * limits['tpr']:.1f} %"
        lines.append(
            f"  membership by the loss of {by_loss['model']}: {100 * hits['share']:.1f} % of records found at "
            f"{100 * by_loss['fpr']:.0f} % false alarms ({100 * hits['level']:g} % interval {100 * hits['low']:.1f} to "
            f"{100 * hits['high']:.1f}; {bound}), AUC {by_loss['auc']['auc']:.3f}"
        )
    if overlap := values.get("overlap"):  # of texts
        lines.append(
            f"  {overlap['run']} words in a row of a private record: {overlap['with_a_run']:,} of "
            f"{overlap['generated']:,} different generated texts (of {overlap['heldout']:,} held-out ones: "
            f"{overlap['heldout_with_a_run']:,})"
        )
    if canaries := values.get("canaries"):
        leaks = sum(one["generated"] > 0 for one in canaries)
        lines.append(f"  canaries in generated texts: {leaks} of {len(canaries)}")
    return [*lines, f"  nearest pairs: {', '.join(values['nearest_pairs']['files'])}"]
