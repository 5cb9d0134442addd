"""Progress bars on stderr; plain lines when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from pe.run.progress import Progress, Task


class Bars(Progress):
    """Bars while stderr is a terminal; one plain line per finished phase otherwise."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """A phase of `total` items."""
        if not self._console.is_terminal:
            yield Task()
            click.echo(f"{description}: {'done' if total is None else f'{total} done'}", file=sys.stderr)
            return
        count = [MofNCompleteColumn()] if total is not None else []
        columns = (TextColumn("{task.description:<18}"), BarColumn(), *count, TimeElapsedColumn())
        with RichProgress(*columns, console=self._console) as bars:
            yield _Bar(bars, bars.add_task(description, total=total))

    def warn(self, message: str) -> None:
        """A warning, as a line of its own."""
        self._console.print(f"[yellow]warning:[/yellow] {message}", soft_wrap=True)


class _Bar(Task):
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)
