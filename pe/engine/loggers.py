"""Loggers of a run: found by name, told of each population when that tells no time of private work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

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

from pe.errors import PEError, PluginError, RecipeError, printable
from pe.planning.build import price_of
from pe.plugins.registry import load, require
from pe.privacy.ledger import Ledger
from pe.privacy.words import finite
from pe.progress import Progress, Task
from pe.recipe.schema import Recipe
from pe.report.loggers import Logged, Logger, logged
from pe.steps import Plan
from pe.store.places import population_place
from pe.store.writer import RunWriter


def logger(given: str | Logger) -> Logger:
    """The logger that `NAME=WHERE` names; an object with the methods of one as it is.

    Raises:
        RecipeError: it is of another form.
        PluginError: there is none of this name, it cannot be set up, or the object lacks a method.
        MissingDependency: its library is not installed.
    """
    if not isinstance(given, str):
        if lacking := [method for method in ("log", "close") if not callable(getattr(given, method, None))]:
            raise PluginError(f"The logger {type(given).__name__} has no method '{lacking[0]}': see pe.Logger.")
        return given
    name, _, where = given.partition("=")
    if not name or not where:
        raise RecipeError(f"The logger is '{given}': give NAME=WHERE, such as tensorboard=logs.")
    require("pe.loggers", name)
    try:
        return cast(Logger, load("pe.loggers", name)(where))
    except PEError:
        raise
    except Exception as error:  # of whatever library it is
        raise PluginError(f"The logger '{name}' cannot be set up: {error}.") from error


@contextmanager
def logging_of(
    recipe: Recipe, plan: Plan, run: RunWriter, ledger: Ledger, *, told: Sequence[Logger], progress: Progress
) -> Iterator[Callable[[int], None]]:
    """What is to be called with t when S_t is there; when the block ends, the loggers are closed.

    Where private work is held back by a public clock, to the last release of the plan, or nothing is protected, loggers
    are told at once. Else the moment would tell how long private work took, so they are told once the run has ended.
    """
    live = recipe.privacy.noiseless or all(one.name in ledger.clock.deadlines for one in plan.releases)
    loggers = _Loggers(told, recipe, plan, run, finite(ledger.total()) if told else None, live, progress)
    try:
        yield loggers.tell
        loggers.send()
    finally:
        loggers.close()


@dataclass
class _Loggers:
    told: Sequence[Logger]
    recipe: Recipe
    plan: Plan
    run: RunWriter
    epsilon: float | None
    live: bool
    progress: Progress
    _waiting: list[Logged] = field(default_factory=list)

    def __post_init__(self) -> None:
        places = map(population_place, range(len(self.plan.steps) + 1))
        self._before = sum(bool(self.run.journal.files(f"{place}/")) for place in places)

    def tell(self, t: int) -> None:
        """S_t is there."""
        if not self.told:
            return
        usage = self.run.journal.totals().usage if t >= self._before else None
        images, cost = (None, None) if usage is None else (usage.images, price_of(self.recipe).of(usage))
        delta = self.recipe.privacy.delta
        self._waiting.append(logged(self.run.run, self.plan, t, self.epsilon, delta, images, cost))
        if self.live:
            self.send()

    def send(self) -> None:
        """Tell what is not told yet."""
        for each in self._waiting:
            for one in self.told:
                self._try(one, partial(one.log, each))
        self._waiting.clear()

    def close(self) -> None:
        """The run has ended, or stopped."""
        for one in self.told:
            self._try(one, one.close)

    def _try(self, one: Logger, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.told = [other for other in self.told if other is not one]
            name, what = type(one).__name__, printable(str(error))
            self.progress.warn(f"{name} failed ({what}) and is told no more of this run.")


# Progress bars on stderr; plain lines when it is no terminal.


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
