"""`pe view`: runs on pages and in words. `pe run` uses the live page, too."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, aligned
from pe.cli.pages import page
from pe.cli.share import tell_if_unsigned
from pe.errors import printable

if TYPE_CHECKING:
    from pe.report.compare import Comparison
    from pe.store.run import Run


@click.command()
@click.argument("places", metavar="[RUN|FOLDER]…", nargs=-1, type=PATH)
@click.option(
    "--text", is_flag=True, help="Print the state of a run, or a table of several, and exit."
)
@click.option("--json", "as_json", is_flag=True, help="Print only that, as JSON, and exit.")
@click.option(
    "--write", is_flag=True, help="Write RUN's report.html, which its certificate covers, and end."
)
@click.option(
    "--html",
    "file",
    type=PATH,
    metavar="FILE",
    help="Write a report, or several runs compared, and end.",
)
@click.option(
    "--confidential",
    is_flag=True,
    help="Show or write what is for the owner alone, times above all.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    help="Serve on this port; default: any that is free.",
)
def view(
    places: tuple[Path, ...],
    text: bool,
    as_json: bool,
    write: bool,
    file: Path | None,
    confidential: bool,
    port: int | None,
) -> None:
    """Show runs on pages, or print where they stand.

    The pages are served for this machine alone. One RUN: its live page while it works, and its
    report; two or more: side by side; a FOLDER (default: runs): all runs in it. Ctrl-C ends the
    pages, not a run. They show what may be shared; with --confidential, times and what `pe
    evaluate` measured, too.

    The printed text is for the owner, because it shows times. A written report shows none and may
    be shared. With --confidential it goes to confidential/ and must not be shared. A comparison
    marks what `pe evaluate` measured.
    """
    from pe.engine.viewing import runs_at, serve
    from pe.report.compare import compare

    places = places or (Path("runs"),)
    runs = [*runs_at(places).values()]
    # a folder lists all runs in it, even a single one
    is_folder = any(run.folder not in places for run in runs)
    if is_folder and file:
        runs = [*_comparable(runs)] or runs
    comparison = compare(runs) if len(runs) > 1 and (file or not is_folder) else None
    if write or file is not None:
        click.echo(str(_write(runs, comparison, file, confidential)), err=as_json)
    if text or as_json or not (write or file):
        _tell(runs, comparison, is_folder, as_json)
    for sentence in comparison.warnings if comparison else ():
        click.echo(f"warning: {sentence}", err=True)
    if not (text or as_json or write or file):
        ending = Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ending.set())
        serve(places, confidential=confidential, port=port or 0, tell=click.echo, end=ending)


def _comparable(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs that a page can show, with a warning for each of the others."""
    from pe.report.compare import compare, comparison_page

    for run in runs:
        try:
            comparison_page(compare([run, run]))
            yield run
        except Exception as error:
            click.echo(f"warning: {run.folder} is left out: {error}", err=True)


def _write(
    runs: Sequence[Run], comparison: Comparison | None, file: Path | None, confidential: bool
) -> Path:
    """Write the report of one run, or the comparison of several. Return where."""
    from pe.engine.report import write_report
    from pe.report.compare import comparison_page
    from pe.report.pages import internal_report, shareable_report
    from pe.store.durable import write_durably

    if file is None:
        if len(runs) > 1:
            raise click.UsageError(
                "`--write` writes the report of one run. For a comparison, give `--html` a FILE."
            )
        with tell_if_unsigned(runs[0].folder):
            return write_report(runs[0].folder, confidential=confidential)
    # a file that no certificate covers would make the run look changed
    if any(file.resolve().is_relative_to(run.folder.resolve()) for run in runs):
        raise click.UsageError(
            f"{file} lies inside a run, whose certificate would not cover it. Use `--write`."
        )
    if comparison is not None:
        page = comparison_page(comparison)
    else:
        page = internal_report(runs[0]) if confidential else shareable_report(runs[0])
    write_durably(file, page.encode())
    return file


def _tell(
    runs: Sequence[Run], comparison: Comparison | None, is_folder: bool, as_json: bool
) -> None:
    """Print where a run stands, one line for each run of a folder, or the comparison of several."""
    values: Any
    lines: list[str] = []
    if comparison is not None and not is_folder:
        values = comparison.to_dict()
        head = ("", *(run.name for run in comparison.runs))
        lines = aligned([head, *((name, *row) for name, row in comparison.rows.items())])
    elif not is_folder:
        values, page = _status(runs[0])
        lines = page.split("\n")
    else:
        values = []
        for run in runs:
            try:
                status, page = _status(run)
            except Exception as error:  # an odd folder does not hide the others
                status = {"run": str(run.folder), "error": str(error)}
                page = f"{run.folder}: {error}"
            values.append(status)
            lines.append(page.split("\n")[0])
    click.echo(json.dumps(values) if as_json else "\n".join(map(printable, lines)))


@contextmanager
def live_page(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Serve the live page of a run from a thread while the block makes the run.

    The run need not be there yet.
    """
    from pe.engine.viewing import serve

    ending = Event()

    server = Thread(
        target=serve,
        args=[[folder]],
        kwargs={
            "confidential": False,
            "port": 0,
            "tell": lambda address: tell(f"Live page: {address}"),
            "end": ending,
        },
    )
    server.start()
    try:
        yield
    finally:
        ending.set()
        server.join()


def _status(run: Run) -> tuple[dict[str, Any], str]:
    """Return where a run stands, as JSON values and as a page for people.

    It may be running: nothing is changed.
    """
    from pe.engine.status import status_of
    from pe.planning.parts import price_of
    from pe.plugins.protocols import KINDS
    from pe.recipe.schema import OBJECT
    from pe.report.pages import public_plan

    recipe, plan = public_plan(run)
    state = status_of(run, plan, price_of(recipe), recipe.privacy.delta)
    names = {"run": str(run.folder), "noun": recipe.private.modality.noun}
    shown = {
        "folder": run.folder,
        "status": state,
        "is_finished": run.is_finished,
        # a run whose generator or embedding is a Python object is resumed from Python
        "has_object": any(one.kind.startswith(OBJECT) for one in (recipe.api, recipe.embedding)),
        "token_kinds": KINDS,
    }
    return names | state.to_dict(), page("status", shown)
