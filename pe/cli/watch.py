"""`pe watch`, `pe status` and `pe compare`, which show runs; the live page also for `pe run`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.engine.status import Phase, Progressed, Status
    from pe.report.compare import Comparison

_ENDS = 10.0  # seconds in which the page's process must have ended

watch_option = click.option("--watch", is_flag=True, help="Serve a live page meanwhile; see `pe watch`.")


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option("--confidential", is_flag=True, help="Show what is for the run's owner alone, times above all.")
@click.option("--port", type=click.IntRange(1024, 65535), help="Serve on this port; default: any that is free.")
@click.option("--beside", is_flag=True, hidden=True, help="Wait for RUN, and end when stdin does.")
def watch(run_folder: Path, confidential: bool, port: int | None, beside: bool) -> None:
    """Serve a live page of RUN, for this machine alone.

    RUN may be finished or go on; Ctrl-C ends the page, not the run. It shows what may be shared, like the report; with
    --confidential, times, too.
    """
    from pe.engine.watching import serve
    from pe.store.run import Run

    ending = Event()

    def end(*_: object) -> None:
        ending.set()

    def end_with_stdin() -> None:
        sys.stdin.read()
        end()

    if beside:
        Thread(target=end_with_stdin, daemon=True).start()
    else:
        Run.open(run_folder)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
    serve(run_folder, confidential=confidential, port=port or 0, tell=click.echo, end=ending)


@contextmanager
def watching(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Serve the live page of a run while the block makes the run, from another process that Ctrl-C does not reach."""
    words = ["watch", "--beside", str(folder)]
    code = f"import sys; sys.argv[1:] = {words!r}; from pe.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", code]  # -P: a file of the current folder is no part of it
    pipe = subprocess.PIPE

    def pass_on() -> None:
        for line in process.stdout or ():
            tell(f"Live page: {line.strip()}")

    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:  # noqa: S603
        Thread(target=pass_on, daemon=True).start()
        try:
            yield
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@json_option
def status(run_folder: Path, as_json: bool) -> None:
    """Tell where RUN stands. It may be running: nothing is changed. The answer is confidential: it tells times."""
    from pe.engine.status import status_of
    from pe.planning.parts import price_of
    from pe.planning.releases import plan_of
    from pe.recipe.schema import OBJECT, Recipe
    from pe.store.places import CERTIFICATE, RECIPE
    from pe.store.run import Run

    run = Run.open(run_folder)
    recipe = Recipe.load(run.folder / RECIPE)
    state = status_of(run, plan_of(run, recipe), price_of(recipe), recipe.privacy.delta)
    if as_json:
        names = {"run": str(run_folder), "noun": recipe.private.modality.noun}
        click.echo(json.dumps(names | state.to_dict()))
        return
    has_object = any(one.kind.startswith(OBJECT) for one in (recipe.api, recipe.embedding))
    click.echo(_status_page(run_folder, state, (run.folder / CERTIFICATE).is_file(), has_object))


def _status_page(folder: Path, status: Status, has_certificate: bool, has_object: bool) -> str:
    """Format the status for people; a run whose generator or embedding is a Python object is resumed from Python."""
    if status.journal is None:
        state = "finished; its" if has_certificate else "its"
        return f"{folder}: {state} journal is gone (purged, or not copied), so calls, cost and times are unknown."
    title = f"{folder}: {status.state}"
    if status.state == "running":
        title += " (process unknown)" if status.pid is None else f" (process {status.pid})"
    elif status.state == "stopped":
        extends = status.journal.phase is not None and status.journal.phase.extends
        command = f"`pe extend {folder}` with the same numbers" if extends else f"`pe run {folder}`"
        title += f"; {command} goes on" if not has_object else "; from Python it goes on, with the object of your own"
    if status.journal.since_purge:
        title += "; its first journal is gone (purged, or not copied), so what follows counts from then on"
    return "\n".join([title, *(f"  {key:<12}{value}" for key, value in _facts(status, status.journal))])


def _facts(status: Status, journal: Progressed) -> list[tuple[str, str]]:
    from pe.plugins.protocols import KINDS
    from pe.privacy.words import NO_EPSILON, round_up

    usage, refusals = journal.totals.usage, journal.totals.refusals
    epsilon_now, epsilon_at_end = (round_up(one, 4) for one in (journal.epsilon_charged, status.epsilon_planned))
    total = f"ε = {epsilon_now} charged of {epsilon_at_end}, δ = {status.delta:g}"
    facts = [
        ("Iteration", f"{status.iteration} of {status.iterations}"),
        ("Phase", "none is left" if journal.phase is None else _phase(journal.phase)),
        ("Samples", f"{usage.images:,} (calls: {usage.calls:,}, refused: {refusals:,})"),
        ("Cost", f"{status.cost:,.2f} {status.price.currency}" if not status.price.free else "free"),
        ("Privacy", total if status.promises else NO_EPSILON),
    ]
    if status.waits:
        facts.insert(2, ("Waits", status.waits))
    if status.degree is not None:
        facts.append(("Variations", f"as tried: {status.degree}"))
    if usage.tokens:
        counts = ((getattr(usage, kind), kind) for kind in KINDS)
        kinds = ", ".join(f"{kind}: {count:,}" for count, kind in counts if count)
        facts.insert(3, ("Tokens", f"{usage.tokens:,}{f' ({kinds})' if kinds else ''}"))
    if journal.events:
        (start, _), (at, event) = journal.events[0], journal.events[-1]
        facts += [("Begun", start), ("Last event", f"{event} {at}")]
    return facts


def _phase(phase: Phase) -> str:
    if phase.fits:
        return f"{phase.name}: the generator is being fitted on the private records"
    if phase.done is None or phase.total is None:
        return phase.name
    return f"{phase.name}: {phase.done:,} of {phase.total:,} samples ({phase.done / phase.total:.0%})"


@click.command()
@click.argument("run_folders", metavar="RUN RUN…", nargs=-1, type=PATH)
@click.option("--out", type=PATH, help="Also write the comparison as an HTML page.")
@json_option
def compare(run_folders: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Show several runs side by side. Rows from `pe evaluate` are internal, and marked so."""
    from pe.report.compare import compare as compare_runs
    from pe.report.compare import comparison_page
    from pe.store.durable import write_durably
    from pe.store.run import Run

    comparison = compare_runs([Run.open(folder) for folder in run_folders])
    click.echo(json.dumps(comparison.to_dict()) if as_json else _table(comparison))
    for sentence in comparison.warnings:
        click.echo(f"warning: {sentence}", err=True)
    if out is not None:
        write_durably(out, comparison_page(comparison).encode())
        click.echo(str(out), err=as_json)


def _table(comparison: Comparison) -> str:
    """Format a comparison for people."""
    rows = [("", *comparison.names), *((name, *values) for name, values in comparison.rows)]
    head, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(head), *(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))])
        for row in rows
    )
