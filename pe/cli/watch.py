"""`pe watch`: a run as a page that follows it; and the same page beside `pe run` and `pe resume`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import click

from pe.cli.options import PATH

_ENDS = 10.0  # seconds in which the page's process must have ended

watch_option = click.option("--watch", "watched", is_flag=True, help="Serve a live page meanwhile; see `pe watch`.")


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

    ended = Event()

    def end(*_: object) -> None:
        ended.set()

    def read_to_the_end() -> None:
        sys.stdin.read()
        end()

    if beside:
        Thread(target=read_to_the_end, daemon=True).start()
    else:
        Run.open(run_folder)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
    serve(run_folder, confidential=confidential, port=port or 0, tell=click.echo, ended=ended)


@contextmanager
def watching(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Serve the live page of a run while the block makes it, in a process of its own that Ctrl-C does not reach.

    Args:
        folder: the run's directory, which need not be there yet.
        tell: told the address, from another thread.
    """
    words = ["watch", "--beside", str(folder)]
    code = f"import sys; sys.argv[1:] = {words!r}; from pe.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", code]  # -P: a file of the current folder is no part of it
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:  # noqa: S603
        Thread(target=_pass_on, args=(process, tell), daemon=True).start()
        try:
            yield
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _pass_on(process: subprocess.Popen[str], tell: Callable[[str], None]) -> None:
    for line in process.stdout or ():
        tell(f"Live page: {line.strip()}")
