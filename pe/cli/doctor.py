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
@json_option
def doctor(recipe: Path | None, endpoint: str | None, key_env: str | None, as_json: bool) -> None:
    """Tell what is installed, what works and what is missing.

    With the command that installs it. With RECIPE or --endpoint: whether that endpoint can be reached and takes the
    key, which server answers, what it heeds, and whether it serves the model of RECIPE. A recipe's keys, headers and
    certificates are used; no sample is asked for. With a RECIPE that has no endpoint: whether a run could start here.
    """
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
    rows = []
    for finding in found:
        rows.append(asdict(finding))
        if not as_json:
            click.echo(
                f"{_MARKS[finding.state]} {finding.what}" + (f"\n    {finding.remedy}" if finding.remedy else "")
            )
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    if any(one["state"] == "problem" for one in rows):
        raise click.exceptions.Exit(1)
