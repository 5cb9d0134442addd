"""`pe evaluate`: how good a run's synthetic data is, measured against real samples."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, json_option, quiet_option, stop_on_interrupt
from pe.cli.share import tell_if_purged

if TYPE_CHECKING:
    from pe.evaluation.audit import Audit, NoiseAudit
    from pe.plugins.specs import PluginSpec


_WHAT = {
    "synthetic": "the run's data",
    "unevolved": "un-evolved samples",
    "random_selection": "parents chosen at random",
    "one_vote": "chosen by one vote, not varied",
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
    from pe.evaluation.classifiers import NetworkSettings
    from pe.evaluation.evaluate import METRICS_FILE, evaluate_run
    from pe.evaluation.sets import Request
    from pe.store.run import Run

    request = Request(
        test=test,
        metrics=None if metrics is None else _names(metrics),
        seeds=seeds,
        embeddings=tuple(_spec(text) for text in embeddings),
        classifiers=None if classifiers is None else _names(classifiers),
        networks=NetworkSettings(epochs, flip, device),
        reference=reference,
        canaries=canaries,
        random_selection=random_selection,
        one_vote=one_vote,
    )
    opened = Run.open_own(run_folder, "pe evaluate")
    opened.confidential.mkdir(mode=0o700, exist_ok=True)
    with stop_on_interrupt() as stop, logging_to(opened.confidential / "log.txt"):
        values = evaluate_run(opened, request, Bars(quiet), stop)
    click.echo(json.dumps(values) if as_json else _page(values, run_folder / METRICS_FILE))
    for sentence in values["memorisation"]["warnings"] if "memorisation" in values else ():
        click.echo(f"warning: {sentence}", err=True)
    tell_if_purged(run_folder)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _spec(text: str) -> PluginSpec:
    """`pixels:size=32,blur=0` as an embedding and its settings; values are YAML."""
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
    """The result as a person reads it."""
    run, test = values["run"], values["test"]
    state = "" if run["finished"] else f" (not finished: S_{run['iteration']} of S_{run['iterations']})"
    lines = [
        f"INTERNAL. {run['name']}{state}: {run['images']:,} {run['noun']}, against {test['images']:,} "
        f"of {test['path']}",
    ]
    if "verdict" in values:
        lines += ["", *_verdict(values["verdict"])]
    for name, found in values.get("fidelity", {}).items():
        lines += ["", *_fidelity(name, found)]
    if "fidelity" in values:
        lines.append("  Lower is nearer to the real samples in the first two columns, higher in the others.")
        lines += farther_than_unevolved(values["fidelity"])
    if "utility" in values:
        lines += ["", *_utility(values)]
    if "memorisation" in values:
        lines += ["", *_memorisation(values["memorisation"], run["noun"])]
    return "\n".join([*lines, "", f"Not covered by the certificate. Written to {path}"])


def _verdict(found: dict[str, Any]) -> list[str]:
    lines = [line for each in (found["sentence"], *found["collapsed"]) for line in textwrap.wrap(each, _WIDTH)]
    if found["remedies"]:
        lines.append("What to change, the most probable cause first:")
    for remedy in found["remedies"]:
        lines += textwrap.wrap(remedy, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return lines


def _fidelity(name: str, found: dict[str, Any]) -> list[str]:
    heads = ("FID", "KID") if found["standard_inception"] else ("Fréchet", "kernel")
    columns = ["precision", "recall", "density", "coverage"]
    lines = [f"Fidelity under {name}: {heads[0]:>9}{heads[1] + ' ± s.e.':>22}" + "".join(f"{c:>11}" for c in columns)]
    width = len(f"Fidelity under {name}:")
    for key, row in {"synthetic": found, **found["controls"]}.items():
        error = row["kernel"]["standard_error"]
        kernel = f"{row['kernel']['mean']:.4g}" + ("" if error is None else f" ± {error:.2g}")
        shares = "".join(f"{row[c]:>11.3f}" if c in row else f"{'–':>11}" for c in columns)
        lines.append(f"{'  ' + key:<{width}} {row['frechet']:>9.4g}{kernel:>22}{shares}")
    return lines


def farther_than_unevolved(fidelity: dict[str, Any]) -> list[str]:
    """Under which embeddings the run's data are farther from the real samples than un-evolved ones."""
    unevolved = {name: found["controls"].get("unevolved") for name, found in fidelity.items()}
    names = [name for name, other in unevolved.items() if other and fidelity[name]["frechet"] > other["frechet"]]
    farther = "the run's data are farther (Fréchet) than un-evolved ones: the verdict is on labels alone."
    return [f"  Under {', '.join(names)} {farther}"] if names else []


def _utility(values: dict[str, Any]) -> list[str]:
    results, best = values["utility"], values["chosen_classifier"]
    sets = list(best)
    widths = [max(24, len(name) + 2) for name in results]
    heads = "".join(f"{name:>{width}}" for name, width in zip(results, widths, strict=True))
    lines = [f"{'Accuracy, macro-F1':<26}{heads}"]
    for name in sets:
        cells = []
        for classifier in results:
            accuracy = results[classifier][name]["accuracy"]
            spread = "" if accuracy["std"] is None else f" ± {100 * accuracy['std']:.1f}"
            mark = "*" if best[name] == classifier else " "
            macro_f1 = results[classifier][name]["macro_f1"]["mean"]
            cells.append(f"{100 * accuracy['mean']:.1f}{spread} %{mark} {macro_f1:.3f}")
        lines.append(f"{'  ' + name:<26}" + "".join(map(str.rjust, cells, widths)) + f"  {_WHAT[name]}")
    return [*lines, "  * the classifier chosen on held-out parts of the training set, never on the test set"]


def _memorisation(found: dict[str, Any], noun: str) -> list[str]:
    middle = {key: found[key]["quantiles"][50] for key in ("generated_to_private", "heldout_to_private")}
    attack, copies = found["membership"], found["copies"]
    return [
        f"Memorisation under {found['embedding']}",
        f"  nearest private record, median distance: generated {middle['generated_to_private']:.4g}, "
        f"held-out {middle['heldout_to_private']:.4g}",
        f"  membership by distance: AUC {attack['auc']:.3f} ({100 * attack['level']:g} % interval {attack['low']:.3f} "
        f"to {attack['high']:.3f}; 0.5 tells nothing)",
        f"  copies of private records: {copies['exact']:,} exact, {copies['near']:,} near, of {copies['generated']:,} "
        f"generated {noun} (near, of {copies['heldout']:,} held-out ones: {copies['heldout_near']:,})",
        *_by_loss(found),
        *_of_texts(found),
        f"  nearest pairs: {', '.join(found['nearest_pairs']['files'])}",
    ]


def _by_loss(found: dict[str, Any]) -> list[str]:
    """The attack on a fitted model, where there is one."""
    if (attack := found.get("membership_by_loss")) is None:
        return []
    hits, allowed = attack["tpr"], attack["allowed"]
    bound = "no guarantee bounds it" if allowed is None else f"the fit's guarantee allows {100 * allowed['tpr']:.1f} %"
    return [
        f"  membership by the loss of {attack['model']}: {100 * hits['share']:.1f} % of records found at "
        f"{100 * attack['fpr']:.0f} % false alarms ({100 * hits['level']:g} % interval {100 * hits['low']:.1f} to "
        f"{100 * hits['high']:.1f}; {bound}), AUC {attack['auc']['auc']:.3f}",
    ]


def _of_texts(found: dict[str, Any]) -> list[str]:
    """What is told of texts alone."""
    lines, shared = [], found.get("overlap")
    if shared:
        lines.append(
            f"  {shared['run']} words in a row of a private record: {shared['with_a_run']:,} of "
            f"{shared['generated']:,} different generated texts (of {shared['heldout']:,} held-out ones: "
            f"{shared['heldout_with_a_run']:,})"
        )
    if canaries := found.get("canaries"):
        leaked = sum(one["generated"] > 0 for one in canaries)
        lines.append(f"  canaries in generated texts: {leaked} of {len(canaries)}")
    return lines


# `pe audit`: attacks on the mechanism as shipped: its ε, its noise.


_SUSPECT = 1e-3


@click.command()
@click.option("--epsilon", type=float, help="ε that is claimed for all iterations together; 1 if nothing is given.")
@click.option("--noise-multiplier", type=float, help="The noise multiplier instead of --epsilon.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of the claim.")
@click.option("--iterations", type=int, default=1, show_default=True, help="T; the time grows with it.")
@click.option("--relation", type=click.Choice(["add_remove", "replace_one", "zero_out"]), default="add_remove")
@click.option("--neighbors", type=int, default=1, show_default=True, help="q, candidates each record votes for.")
@click.option("--unit", type=click.Choice(["record", "user"]), default="record", help="What the canary is.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=20_000, show_default=True, help="In each of the two worlds."
)
@click.option("--confidence", type=float, default=0.999, show_default=True, help="Of all bounds at once.")
@click.option("--noise", is_flag=True, help="Test the noise's bits instead; some seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, and nothing else there.")
def audit(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    iterations: int,
    relation: str,
    neighbors: int,
    unit: str,
    runs: int,
    confidence: float,
    noise: bool,
    as_json: bool,
) -> None:
    """Attack the histogram as shipped; bound its ε from below.

    Half a minute, on made-up data. Exit status 1 if what is found contradicts what is claimed.
    """
    if noise:
        _noise(as_json)
    else:
        given = epsilon, noise_multiplier, delta, iterations, relation, neighbors, unit
        _epsilon(*given, runs=runs, confidence=confidence, as_json=as_json)


def _noise(as_json: bool) -> None:
    from pe.evaluation.audit import audit_noise
    from pe.privacy.noise import SystemNoise

    found = audit_noise(SystemNoise())
    click.echo(json.dumps(vars(found) | {"violation": found.p_value < _SUSPECT}) if as_json else _noise_text(found))
    if found.p_value < _SUSPECT:
        raise click.exceptions.Exit(1)


def _noise_text(found: NoiseAudit) -> str:
    rows = [f"  p = {value:<8.3g}{name}" for name, value in found.p_values.items()]
    verdict = "Nothing speaks against exact noise."
    if found.p_value < _SUSPECT:
        verdict = f"This is not exact noise: it would come out so once in {1 / max(found.p_value, 1e-300):.3g} times."
    head = f"{found.draws:,} draws of the shipped noise, {found.tail:,} of them in the tail, against the exact law:"
    return "\n".join([head, "", *rows, "", verdict])


def _epsilon(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    iterations: int,
    relation: str,
    neighbors: int,
    unit: str,
    *,
    runs: int,
    confidence: float,
    as_json: bool,
) -> None:
    from pe.engine.loggers import Bars
    from pe.evaluation.audit import Claim
    from pe.evaluation.audit import audit as run_audit
    from pe.privacy.release import Relation

    if epsilon is not None and noise_multiplier is not None:
        raise click.UsageError("Give --epsilon or --noise-multiplier, not both.")
    settings = (delta, iterations, Relation(relation), unit, neighbors)
    if noise_multiplier is None:
        claim = Claim(1.0, *settings).within(1.0 if epsilon is None else epsilon)
    else:
        claim = Claim(noise_multiplier, *settings)
    found = run_audit(claim, runs, confidence, progress=Bars())
    click.echo(json.dumps(found.to_dict()) if as_json else _text(found))
    if found.violations:
        raise click.exceptions.Exit(1)


def _text(found: Audit) -> str:
    """The result as a person reads it."""
    claim = found.claim
    iterations = "1 iteration" if claim.iterations == 1 else f"{claim.iterations} iterations"
    rows = [
        (
            f"ε = {claim.epsilon:.4g}",
            f"claimed at δ = {claim.delta:g}, for noise multiplier {claim.noise_multiplier:.4g}",
        ),
        (
            f"ε ≥ {found.epsilon_gaussian:.4g}",
            f"measured, if the noise is Gaussian of whatever size (μ ≥ {found.mu:.4g})",
        ),
        (f"ε ≥ {found.epsilon_any:.4g}", "measured, whatever the noise is"),
    ]
    return "\n".join(
        [
            f"The shipped histogram, {found.runs:,} runs in each of two neighbouring worlds: {iterations}, "
            f"{claim.relation}, one {claim.unit}, {claim.neighbors} vote(s) a record.",
            "",
            *(f"  {number:<12}{meaning}" for number, meaning in rows),
            "",
            f"The measured bounds hold together with a confidence of {100 * found.confidence:g} %: a mechanism that "
            f"keeps its claim is called a violation at most once in {1 / (1 - found.confidence):,.0f} audits.",
            f"Noise of two thirds of its claimed size would be found with probability {found.chance_to_flag:.4g} by "
            f"the first bound; the second, which assumes nothing, would need {_require(found)} runs a world for that.",
            "",
            found.verdict,
        ]
    )


def _require(found: Audit) -> str:
    needed = found.runs_without_assumption
    return f"about {float(f'{needed:.1g}'):,.0f}" if needed < 1e12 else "more than 10¹²"
