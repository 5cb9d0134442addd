"""`pe doctor`: what works on this machine, and attacks on the mechanism as shipped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option, tell_next
from pe.cli.pages import print_result

if TYPE_CHECKING:
    from pe.plugins.protocols import Finding

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}
_OPENAI = "openai_images"
# of the claim that is attacked, and in each world
_EPSILON = 1.0
_DELTA = 1e-5
_RUNS = 20_000
_CONFIDENCE = 0.999  # of all bounds at once
_SUSPECT = 1e-3


@click.command()
@click.argument("recipe", type=PATH, required=False)
@click.option("--endpoint", metavar="URL", help="Look at this endpoint alone, without a recipe.")
@click.option("--key-env", metavar="NAME", help="The variable that holds the key of --endpoint.")
@click.option(
    "--attack",
    is_flag=True,
    help="Attack the histogram as shipped, on made-up data: half a minute.",
)
@click.option(
    "--noise", is_flag=True, help="With --attack: test the noise's bits instead; some seconds."
)
@click.option(
    "--epsilon",
    type=float,
    help=f"With --attack: the claim, at δ = {_DELTA:g}; default: {_EPSILON:g}.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    help=f"With --attack: runs in each of the two worlds; default: {_RUNS}.",
)
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

    It names the command that installs what is missing. With RECIPE or --endpoint: whether that
    endpoint can be reached and takes the key, which server answers, which settings the server
    obeys, and whether it has RECIPE's model. RECIPE's keys, headers and certificates are used; no
    sample is made. If RECIPE has no endpoint: whether a run could start here.

    With --attack: runs the histogram on two neighbouring data sets, and measures a lower bound of
    its ε.
    Exit status 1 if a problem is found, or if an attack contradicts what is claimed.
    """
    from pe.engine.health import endpoint_findings, findings, recipe_findings
    from pe.recipe.schema import Recipe

    if attack and (recipe is not None or endpoint or key_env):
        raise click.UsageError("`--attack` needs no RECIPE and no endpoint. Leave them out.")
    if not attack and (noise or epsilon is not None or runs is not None):
        raise click.UsageError("`--noise`, `--epsilon` and `--runs` work only with `--attack`.")
    if recipe is not None and (endpoint or key_env):
        raise click.UsageError(
            "RECIPE names its endpoint and key. Leave `--endpoint` and `--key-env` out."
        )
    if attack:
        is_good = _attack_noise(as_json) if noise else _attack(epsilon, runs, as_json)
    else:
        found = findings()
        if recipe is not None:
            found = recipe_findings(Recipe.load(recipe))
        elif endpoint is not None:
            found = endpoint_findings(_OPENAI, {"base_url": endpoint, "key_env": key_env})
        is_good = _tell(found, as_json)
    # a script can tell by the status that something is wrong
    if not is_good:
        raise click.exceptions.Exit(1)
    if recipe is not None and not as_json:
        tell_next(["plan", recipe])


def _tell(findings: Iterable[Finding], as_json: bool) -> bool:
    """Print findings, each as soon as it is there. Return True if none is a problem."""
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
    """Attack the histogram and print what was found.

    Return True unless it contradicts the claim.
    """
    from pe.engine.loggers import Bars
    from pe.evaluation.audit import Claim, audit

    claim = Claim(1.0, _DELTA).within(_EPSILON if epsilon is None else epsilon)
    result = audit(claim, runs or _RUNS, _CONFIDENCE, progress=Bars())
    print_result(result.to_dict(), "audit", as_json, audit=result)
    return not result.violations


def _attack_noise(as_json: bool) -> bool:
    """Test the bits of the noise and print what was found.

    Return True unless they contradict the exact law.
    """
    from pe.evaluation.audit import audit_noise
    from pe.privacy.noise import SystemNoise

    check = audit_noise(SystemNoise())
    is_good = check.p_value >= _SUSPECT
    print_result(vars(check) | {"violation": not is_good}, "noise", as_json, noise=check)
    return is_good
