"""`pe doctor`: what is installed, what works and what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from pe.cli.options import PATH

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}
_OPENAI = "openai_images"


@click.command()
@click.argument("recipe", type=PATH, required=False)
@click.option("--endpoint", metavar="URL", help="Look at this endpoint alone, without a recipe.")
@click.option("--key-env", metavar="NAME", help="The variable that holds the key of --endpoint.")
def doctor(recipe: Path | None, endpoint: str | None, key_env: str | None) -> None:
    """Tell what is installed, what works and what is missing.

    With the command that installs it. With RECIPE or --endpoint: whether that endpoint can be reached and takes the
    key, which server answers, and what it heeds. A recipe's keys, headers and certificates are used; no image is asked
    for.
    """
    from pe.engine.endpoint import endpoint_findings
    from pe.engine.health import findings
    from pe.recipe.schema import Recipe

    if recipe is not None and (endpoint or key_env):
        raise click.UsageError("RECIPE names its endpoint and key: leave --endpoint and --key-env out.")
    if recipe is not None:
        api = Recipe.load(recipe).api
        found = endpoint_findings(api.kind, api.settings)
    elif endpoint is not None:
        found = endpoint_findings(_OPENAI, {"base_url": endpoint, "key_env": key_env})
    else:
        found = findings()
    problems = 0
    for finding in found:
        problems += finding.state == "problem"
        click.echo(f"{_MARKS[finding.state]} {finding.what}")
        if finding.remedy:
            click.echo(f"    {finding.remedy}")
    if problems:
        raise click.exceptions.Exit(1)
