"""Progress bars on stderr; plain lines when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.text import Text

from pe.errors import printable
from pe.progress import Progress, Task

_TEXTS = ("{task.fields[spent]}", "[yellow]{task.fields[waits]}[/]")

_WARM, _SHARE = 30.0, 0.1
"""Seconds of a phase, or a share of its items, after which the time left is estimated."""


class Bars(Progress):
    """Bars while stderr is a terminal, or in a notebook with ipywidgets; else a plain line per finished phase."""

    def __init__(
        self, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        """Draws on `console`, stderr by default; with a `clock` of its own it redraws only when something advances."""
        self._console = console or Console(stderr=True, highlight=False)
        self._quiet, self._clock = quiet, clock

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """A phase of `total` items."""
        if self._quiet:
            yield Task()
        elif self._console.is_terminal or _has_widgets(self._console):
            options: dict[str, Any] = {
                "console": self._console,
                "auto_refresh": self._clock is None,
                "get_time": self._clock,
            }
            with RichProgress(*_columns(total), **options) as bars:
                yield _Bar(bars, bars.add_task(description, total=total, spent="", waits=""))
                bars.refresh()  # rich leaves a notebook's bar as it was last drawn
        else:
            yield _Line(description)
            print(f"{description}: {'done' if total is None else f'{total} done'}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """A warning, as a line of its own."""
        self._console.print(f"warning: {printable(message)}", style="yellow", markup=False, soft_wrap=True)

    def tell(self, message: str) -> None:
        """A line of its own."""
        if not self._quiet:
            self._console.print(message, markup=False, soft_wrap=True)


def _has_widgets(console: Console) -> bool:
    """Whether rich can draw in a notebook."""
    return console.is_jupyter and find_spec("ipywidgets") is not None


def _columns(total: int | None) -> list[ProgressColumn]:
    """What a bar shows: for a phase of known size how many of how many, the time left and the cost so far."""
    name, elapsed = TextColumn("{task.description:<26}"), TimeElapsedColumn()
    if total is None:
        return [name, BarColumn(), elapsed]
    return [name, BarColumn(), MofNCompleteColumn(), elapsed, _TimeLeft(), *map(TextColumn, _TEXTS)]


class _TimeLeft(TimeRemainingColumn):
    """The time left, once the rate is known: at first a generator loads what it needs, and answers come in bursts."""

    def render(self, task: RichTask) -> Text:
        known = (task.elapsed or 0) >= _WARM or (task.total and task.completed >= _SHARE * task.total)
        return super().render(task) if known else Text("-:--:--", style="progress.remaining")


class _Bar(Task):
    def __init__(self, bars: RichProgress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, count: int, spent: str = "") -> None:
        self._bars.update(self._task, advance=count, spent=spent, refresh=not self._bars.live.auto_refresh)

    def wait(self, words: str) -> None:
        waits = escape(printable(words))
        self._bars.update(self._task, waits=waits, refresh=not self._bars.live.auto_refresh)


class _Line(Task):
    """Of a phase whose bar nobody sees."""

    def __init__(self, description: str) -> None:
        self._description = description

    def wait(self, words: str) -> None:
        if words:
            print(f"{self._description}: {printable(words)}", file=sys.stderr, flush=True)
