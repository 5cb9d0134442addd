"""Loggers of a run: found by name, told of each population when that tells no time of private work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from pe.errors import PEError, PluginError, RecipeError, printable
from pe.planning.build import price_of
from pe.plugins.registry import load, require
from pe.privacy.ledger import Ledger
from pe.privacy.words import finite
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.report.logged import Logged, Logger, logged
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
