"""`pe compare`: several runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.report.compare import Comparison


@click.command()
@click.argument("run_folders", metavar="RUN RUN…", nargs=-1, type=PATH)
@click.option("--out", type=PATH, help="Also write the comparison as an HTML page.")
@json_option
def compare(run_folders: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Show several runs side by side. Rows from `pe evaluate` are internal, and marked so."""
    from pe.report.compare import compare as side_by_side
    from pe.report.compare import comparison_page
    from pe.store.durable import write_durably
    from pe.store.run import Run

    found = side_by_side([Run.open(folder) for folder in run_folders])
    click.echo(json.dumps(found.to_dict()) if as_json else _table(found))
    for sentence in found.warnings:
        click.echo(f"warning: {sentence}", err=True)
    if out is not None:
        write_durably(out, comparison_page(found).encode())
        click.echo(str(out), err=as_json)


def _table(found: Comparison) -> str:
    """The comparison as a person reads it."""
    rows = [("", *found.names), *((name, *values) for name, values in found.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(found.names) + 1)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
