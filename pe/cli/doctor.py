"""`pe doctor`: what is installed, what works and what is missing."""

from __future__ import annotations

import click

_MARKS = {"ok": "✓", "missing": "-", "problem": "✗"}


@click.command()
def doctor() -> None:
    """Tell what is installed, which accelerators and backends work, and how to install what is missing."""
    from pe.system.health import findings

    problems = 0
    for finding in findings():
        problems += finding.state == "problem"
        click.echo(f"{_MARKS[finding.state]} {finding.what}")
        if finding.remedy:
            click.echo(f"    {finding.remedy}")
    if problems:
        raise click.exceptions.Exit(1)
