"""`pe audit`: attacks on the mechanism as shipped: its ε, its noise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pe.evaluation.audit import Audit
    from pe.evaluation.audit_noise import NoiseAudit

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
    from pe.evaluation.audit_noise import audit_noise
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
    from pe.engine.bars import Bars
    from pe.evaluation.audit import audit as run_audit
    from pe.evaluation.audit_worlds import Claim
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
