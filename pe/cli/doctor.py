"""`pe doctor`: what is installed, what works and what is missing."""

from __future__ import annotations

import click

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}


@click.command()
@click.option("--endpoint", metavar="URL", help="Look at this endpoint (OpenAI's API, `pe serve`) alone.")
@click.option("--key-env", metavar="NAME", help="The variable that holds the endpoint's key.")
def doctor(endpoint: str | None, key_env: str | None) -> None:
    """Tell what is installed, what works and what is missing.

    With the command that installs it.
    """
    from pe.engine.endpoint import endpoint_findings
    from pe.engine.health import findings

    problems = 0
    for finding in findings() if endpoint is None else endpoint_findings(endpoint, key_env):
        problems += finding.state == "problem"
        click.echo(f"{_MARKS[finding.state]} {finding.what}")
        if finding.remedy:
            click.echo(f"    {finding.remedy}")
    if problems:
        raise click.exceptions.Exit(1)
