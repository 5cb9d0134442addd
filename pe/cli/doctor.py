"""`pe doctor`: what is installed, what works and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from pe.cli.options import PATH, json_option

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}
_OPENAI = "openai_images"


@click.command()
@click.argument("recipe", type=PATH, required=False)
@click.option("--endpoint", metavar="URL", help="Look at this endpoint alone, without a recipe.")
@click.option("--key-env", metavar="NAME", help="The variable that holds the key of --endpoint.")
@click.option("--gpu", is_flag=True, help="Check the GPU instead: a quarter of an hour, random weights, no download.")
@click.option("--quick", is_flag=True, help="With --gpu: smaller shapes.")
@click.option("--only", multiple=True, metavar="CHECK", help="With --gpu: this check; again for several.")
@json_option
def doctor(
    recipe: Path | None,
    endpoint: str | None,
    key_env: str | None,
    gpu: bool,
    quick: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell what is installed, what works and what is missing.

    With the command that installs it. With RECIPE or --endpoint: whether that endpoint can be reached and takes the
    key, which server answers, what it heeds, and whether it serves the model of RECIPE. A recipe's keys, headers and
    certificates are used; no sample is asked for. With a RECIPE that has no endpoint: whether a run could start here.
    With --gpu: whether what we claim holds on this machine's first GPU, and what it can do.
    """
    if gpu:
        if recipe is not None or endpoint or key_env:
            raise click.UsageError("--gpu checks this machine: leave RECIPE, --endpoint and --key-env out.")
        _check_gpu(quick, only, as_json)
        return
    if quick or only:
        raise click.UsageError("--quick and --only go with --gpu.")
    from pe.engine.endpoint import endpoint_findings, recipe_findings
    from pe.engine.health import findings
    from pe.recipe.schema import Recipe

    if recipe is not None and (endpoint or key_env):
        raise click.UsageError("RECIPE names its endpoint and key: leave --endpoint and --key-env out.")
    if recipe is not None:
        found = recipe_findings(Recipe.load(recipe))
    elif endpoint is not None:
        found = endpoint_findings(_OPENAI, {"base_url": endpoint, "key_env": key_env})
    else:
        found = findings()
    told = []
    for finding in found:
        told.append(asdict(finding))
        if not as_json:
            click.echo(
                f"{_MARKS[finding.state]} {finding.what}" + (f"\n    {finding.remedy}" if finding.remedy else "")
            )
    if as_json:
        click.echo(json.dumps(told, indent=1))
    if any(one["state"] == "problem" for one in told):
        raise click.exceptions.Exit(1)


def _check_gpu(quick: bool, only: tuple[str, ...], as_json: bool) -> None:
    """Run the checks, and print each as it ends; status 1 if one failed."""
    from pe.engine.gpu_check.runner import DEVICE, check_names, report, require_gpu, run_check

    names = check_names(only)
    require_gpu()
    checked = []
    for number, name in enumerate(names, start=1):
        click.echo(f"{number} of {len(names)}: {name} …", err=True)
        checked.append(run_check(name, DEVICE, "small" if quick else "real"))
        if not as_json:
            click.echo(str(checked[-1]))
    if as_json:
        click.echo(json.dumps(report(checked, DEVICE, "small" if quick else "real"), indent=1))
    if any(each.found.state == "fail" for each in checked):
        raise click.exceptions.Exit(1)
