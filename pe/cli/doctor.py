"""`pe doctor`: what works on this machine, and attacks on the mechanism as shipped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option, tell_next

if TYPE_CHECKING:
    from pe.evaluation.audit import Audit, NoiseAudit
    from pe.plugins.protocols import Finding

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}
_OPENAI = "openai_images"
_EPSILON, _DELTA, _RUNS = 1.0, 1e-5, 20_000  # of the claim that is attacked, and in each world
_CONFIDENCE = 0.999  # of all bounds at once
_SUSPECT = 1e-3


@click.command()
@click.argument("recipe", type=PATH, required=False)
@click.option("--endpoint", metavar="URL", help="Look at this endpoint alone, without a recipe.")
@click.option("--key-env", metavar="NAME", help="The variable that holds the key of --endpoint.")
@click.option("--attack", is_flag=True, help="Attack the histogram as shipped, on made-up data: half a minute.")
@click.option("--noise", is_flag=True, help="With --attack: test the noise's bits instead; some seconds.")
@click.option("--epsilon", type=float, help=f"With --attack: the claim, at δ = {_DELTA:g}; default: {_EPSILON:g}.")
@click.option("--runs", type=click.IntRange(min=1), help=f"With --attack: in each of two worlds; default: {_RUNS}.")
@json_option
def doctor(
    recipe: Path | None,
    endpoint: str | None,
    key_env: str | None,
    attack: bool,
    noise: bool,
    epsilon: float | None,
    runs: int | None,
    as_json: bool,
) -> None:
    """Tell what is installed, what works and what is missing.

    It names the command that installs what is missing. With RECIPE or --endpoint: whether that endpoint can be reached
    and takes the key, which server answers, what the server heeds, and if it has the model of RECIPE. RECIPE's keys,
    headers and certificates are used; no sample is made. If RECIPE has no endpoint: whether a run could start here.

    With --attack: the histogram runs in two neighbouring worlds, and its ε is bounded from below. Exit status 1 if a
    problem is found, or if an attack contradicts what is claimed.
    """
    from pe.engine.health import endpoint_findings, findings, recipe_findings
    from pe.recipe.schema import Recipe

    if attack and (recipe is not None or endpoint or key_env):
        raise click.UsageError("--attack takes no RECIPE and no endpoint: leave them out.")
    if not attack and (noise or epsilon is not None or runs is not None):
        raise click.UsageError("--noise, --epsilon and --runs belong to --attack: give it, too.")
    if recipe is not None and (endpoint or key_env):
        raise click.UsageError("RECIPE names its endpoint and key: leave --endpoint and --key-env out.")
    if attack:
        is_good = _attack_noise(as_json) if noise else _attack(epsilon, runs, as_json)
    elif recipe is not None:
        is_good = _tell(recipe_findings(Recipe.load(recipe)), as_json)
    elif endpoint is not None:
        is_good = _tell(endpoint_findings(_OPENAI, {"base_url": endpoint, "key_env": key_env}), as_json)
    else:
        is_good = _tell(findings(), as_json)
    if not is_good:
        raise click.exceptions.Exit(1)
    if recipe is not None and not as_json:
        tell_next(["plan", recipe])


def _tell(findings: Iterable[Finding], as_json: bool) -> bool:
    """Print findings, each as soon as it is there; return True if none is a problem."""
    rows = []
    for finding in findings:
        rows.append(asdict(finding))
        if not as_json:
            remedy = f"\n    {finding.remedy}" if finding.remedy else ""
            click.echo(f"{_MARKS[finding.state]} {finding.what}{remedy}")
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    return all(one["state"] != "problem" for one in rows)


def _attack(epsilon: float | None, runs: int | None, as_json: bool) -> bool:
    """Attack the histogram and print what was found; return True unless it contradicts the claim."""
    from pe.engine.loggers import Bars
    from pe.evaluation.audit import Claim, audit

    claim = Claim(1.0, _DELTA).within(_EPSILON if epsilon is None else epsilon)
    result = audit(claim, runs or _RUNS, _CONFIDENCE, progress=Bars())
    click.echo(json.dumps(result.to_dict()) if as_json else _audit_page(result))
    return not result.violations


def _attack_noise(as_json: bool) -> bool:
    """Test the bits of the noise and print what was found; return True unless they contradict the exact law."""
    from pe.evaluation.audit import audit_noise
    from pe.privacy.noise import SystemNoise

    check = audit_noise(SystemNoise())
    is_good = check.p_value >= _SUSPECT
    click.echo(json.dumps(vars(check) | {"violation": not is_good}) if as_json else _noise_page(check))
    return is_good


def _noise_page(result: NoiseAudit) -> str:
    rows = [f"  p = {value:<8.3g}{name}" for name, value in result.p_values.items()]
    verdict = "Nothing speaks against exact noise."
    if result.p_value < _SUSPECT:
        verdict = f"This is not exact noise: it would come out so once in {1 / max(result.p_value, 1e-300):.3g} times."
    head = f"{result.draws:,} draws of the shipped noise, {result.tail:,} of them in the tail, against the exact law:"
    return "\n".join([head, "", *rows, "", verdict])


def _audit_page(result: Audit) -> str:
    """Format an audit for people."""
    claim = result.claim
    iterations = "1 iteration" if claim.iterations == 1 else f"{claim.iterations} iterations"
    claim_text = f"claimed at δ = {claim.delta:g}, for noise multiplier {claim.noise_multiplier:.4g}"
    gaussian = f"measured, if the noise is Gaussian of whatever size (μ ≥ {result.mu:.4g})"
    return "\n".join(
        [
            f"The shipped histogram, {result.runs:,} runs in each of two neighbouring worlds: {iterations}, "
            f"{claim.relation}, one {claim.unit}, {claim.neighbors} vote(s) a record.",
            "",
            f"  {f'ε = {claim.epsilon:.4g}':<12}{claim_text}",
            f"  {f'ε ≥ {result.epsilon_gaussian:.4g}':<12}{gaussian}",
            f"  {f'ε ≥ {result.epsilon_any:.4g}':<12}measured, whatever the noise is",
            "",
            f"The measured bounds hold together with a confidence of {100 * result.confidence:g} %: a mechanism that "
            f"keeps its claim is called a violation at most once in {1 / (1 - result.confidence):,.0f} audits.",
            f"The first bound would find noise of two thirds of its claimed size with probability "
            f"{result.chance_to_flag:.4g}; the second, which assumes nothing, needs far more runs for that.",
            "",
            result.verdict,
        ]
    )
