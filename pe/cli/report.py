"""`pe report`: a run as a page."""

from __future__ import annotations

from pathlib import Path

import click

from pe.cli.options import PATH
from pe.cli.sign import tell_if_unsigned


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option("--confidential", is_flag=True, help="Write the owner's page, into confidential/, not the shareable one.")
def report(run_folder: Path, confidential: bool) -> None:
    """Write RUN's report, one HTML file that needs nothing else.

    It may be shared; with --confidential, it may not.
    """
    from pe.engine.report import write_report

    with tell_if_unsigned(run_folder):
        click.echo(str(write_report(run_folder, confidential=confidential)))
