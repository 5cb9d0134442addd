"""Loggers of a run, and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Self, cast

from rich import progress as rich
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pe.errors import PEError, PluginError, RecipeError, printable
from pe.plugins.registry import load, require
from pe.progress import Progress, Task
from pe.report.loggers import Logged, Logger


def logger(spec: str | Logger) -> Logger:
    """Construct the logger that `NAME=WHERE` names.

    An object with a logger's methods is returned as it is.
    """
    if not isinstance(spec, str):
        for method in ("log", "close"):
            if not callable(getattr(spec, method, None)):
                raise PluginError(
                    f"The logger {type(spec).__name__} has no method '{method}': see pe.Logger."
                )
        return spec
    name, _, where = spec.partition("=")
    if not name or not where:
        raise RecipeError(f"The logger is '{spec}': give NAME=WHERE, such as tensorboard=logs.")
    require("pe.loggers", name)
    try:
        return cast(Logger, load("pe.loggers", name)(where))
    except PEError:
        raise
    except Exception as error:  # of whatever library it is
        raise PluginError(f"The logger '{name}' cannot be set up: {error}.") from error


@dataclass
class Logging:
    """Sends each population's numbers to the loggers, and closes them when the block ends."""

    loggers: Sequence[Logger]  # a logger that fails gets nothing more
    measure: Callable[[int], Logged]  # returns the shareable numbers of S_t
    live: bool  # True to send at once; False to send when the block ends without an error
    warn: Callable[[str], None]
    _waiting: list[Logged] = field(default_factory=list, init=False)

    def on_population(self, t: int) -> None:
        """Log S_t, which must be durable."""
        if self.loggers:
            self._waiting.append(self.measure(t))
            if self.live:
                self._send()

    def _send(self) -> None:
        for each in self._waiting:
            for one in self.loggers:
                self._try(one, partial(one.log, each))
        self._waiting.clear()

    def _try(self, one: Logger, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.loggers = [other for other in self.loggers if other is not one]
            self.warn(
                f"{type(one).__name__} failed ({printable(str(error))}) and is told no more of "
                "this run."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                self._send()
        finally:
            for one in self.loggers:
                self._try(one, one.close)


# Progress bars on stderr; plain lines when it is no terminal.


_TEXTS = ("{task.fields[spent]}", "[yellow]{task.fields[waits]}[/]")
_WARM = 30.0
_SHARE = 0.1
"""Seconds of a phase, or a share of its items, after which the time left is estimated."""


class Bars(Progress):
    """Progress bars on a terminal, or in a notebook with ipywidgets.

    Elsewhere a plain line is printed for each finished phase.
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Draw on `console`, stderr by default.

        With a `clock`, bars are redrawn only when something advances.
        """
        self._console = console or Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._clock = clock

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        """Show a phase of `total` items."""
        # Without ipywidgets, rich draws no bar in a notebook.
        has_widgets = self._console.is_jupyter and find_spec("ipywidgets") is not None
        if self._quiet:
            yield Task()
        elif self._console.is_terminal or has_widgets:
            options: dict[str, Any] = {
                "console": self._console,
                "auto_refresh": self._clock is None,
                "get_time": self._clock,
            }
            with rich.Progress(*_columns(total), **options) as bars:
                yield _Bar(bars, bars.add_task(description, total=total, spent="", waits=""))
                bars.refresh()  # rich leaves a notebook's bar as it was last drawn
        else:
            yield _Line(description)
            done = "done" if total is None else f"{total} done"
            print(f"{description}: {done}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Show a warning, as a line of its own."""
        self._console.print(
            f"warning: {printable(message)}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )

    def tell(self, message: str) -> None:
        """Show a message, as a line of its own, unless the bars are quiet."""
        if not self._quiet:
            self._console.print(message, markup=False, soft_wrap=True)


def _columns(total: int | None) -> list[rich.ProgressColumn]:
    """Return a bar's columns.

    A phase of known size shows its items, the time left and the cost so far, too.
    """
    name = rich.TextColumn("{task.description:<26}")
    clock = rich.TimeElapsedColumn()
    if total is None:
        return [name, rich.BarColumn(), clock]
    return [
        name,
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        clock,
        _TimeLeft(),
        *map(rich.TextColumn, _TEXTS),
    ]


class _TimeLeft(rich.TimeRemainingColumn):
    """The time left, once the rate is known.

    At first a generator loads what it needs, and answers come in bursts.
    """

    def render(self, task: rich.Task) -> Text:
        is_known = (task.elapsed or 0) >= _WARM or (
            task.total and task.completed >= _SHARE * task.total
        )
        return super().render(task) if is_known else Text("-:--:--", style="progress.remaining")


class _Bar(Task):
    def __init__(self, bars: rich.Progress, task: rich.TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, count: int, cost: str = "") -> None:
        self._update(advance=count, spent=cost)

    def wait(self, words: str) -> None:
        self._update(waits=escape(printable(words)))

    def _update(self, **values: Any) -> None:
        self._bars.update(self._task, refresh=not self._bars.live.auto_refresh, **values)


class _Line(Task):
    """A phase that is shown by plain lines, not by a bar."""

    def __init__(self, description: str) -> None:
        self._description = description

    def wait(self, words: str) -> None:
        if words:
            print(f"{self._description}: {printable(words)}", file=sys.stderr, flush=True)
