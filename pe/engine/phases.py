"""The phases of a run in their order, and how far each is, by its journal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pe.errors import DamagedFile
from pe.fit.trainer import FIT, MODEL
from pe.planning.calls import founders
from pe.planning.measuring import PARENTS
from pe.steps import Plan
from pe.store.certified import read_json_file
from pe.store.journal import Journal
from pe.store.places import EXTENSION, FOUNDERS, population_place
from pe.store.run import Run


@dataclass(frozen=True)
class Phase:
    """A stretch of work.

    Attributes:
        name: as in the journal: degree/1, population/2, lookahead/2, histogram/2, class_counts, extension/1; of a
            generator that is fitted the next of its releases, fit/…, and then fit.
        iteration: t.
        done: samples answered; None for a release, which has none.
        total: samples wanted; None for a release, and for offspring where the lookahead made, or the votes kept, some.
    """

    name: str
    iteration: int
    done: int | None = None
    total: int | None = None

    @property
    def extends(self) -> bool:
        """Whether it is more samples of a finished run."""
        return self.name.startswith("extension/")

    @property
    def fits(self) -> bool:
        """Whether the generator is being fitted on the private records."""
        return f"{self.name}/".startswith(FIT)


def phases_of_trying(run: Run, journal: Journal) -> Iterator[tuple[Phase, bool]]:
    """The phases in which the degree is tried, from the first of their answers on."""
    if run.degree is None:
        begun = [name for name in journal.phases() if name.startswith("degree/")]
        yield from ((Phase(name, 0, _count_answered(journal, name), PARENTS), name != begun[-1]) for name in begun)


def phases_of(run: Run, plan: Plan, journal: Journal, purged: bool) -> Iterator[tuple[Phase, bool]]:
    """The phases of a run in order, and whether each is over; after a purge only those since."""
    if not purged:
        yield from _evolution(plan, journal)
        yield Phase("results", len(plan.steps)), journal.happened("finished")
    extension = pending_extension(run)
    if extension:
        name = f"extension/{extension['index']}"
        yield Phase(name, len(plan.steps), _count_answered(journal, name), extension["count"]), False


def _evolution(plan: Plan, journal: Journal) -> Iterator[tuple[Phase, bool]]:
    """The phases up to S_T, and whether each is over."""
    if plan.class_counts is not None:
        yield Phase(plan.class_counts.name, 0), journal.release(plan.class_counts.name) is not None
    if plan.fit:
        fitted = bool(journal.files(f"{MODEL}/"))
        yield from ((Phase(one.name, 0), fitted or journal.release(one.name) is not None) for one in plan.fit)
        yield Phase(FIT.rstrip("/"), 0), fitted
    size, made = sum(plan.sizes), _has_population(journal, 0)
    wanted: int | None = size
    if plan.initial_variations:
        new = sum(founders(plan))
        wanted = size - new
        yield Phase("founders", 0, _count_answered(journal, "founders"), new), made or bool(journal.files(FOUNDERS))
    yield Phase("population/0", 0, _count_answered(journal, "population/0"), wanted), made
    for step in plan.steps:
        drawn = journal.release(step.release.name) is not None
        if step.lookahead:
            name = f"lookahead/{step.t}"
            answered = _count_answered(journal, name)
            yield Phase(name, step.t, answered, step.lookahead * size), drawn or answered == step.lookahead * size
        yield Phase(step.release.name, step.t), drawn
        size, name = sum(step.sizes), f"population/{step.t}"
        wanted = None if step.reuse or step.descent.keep != "none" or not step.degree else size
        yield Phase(name, step.t, _count_answered(journal, name), wanted), _has_population(journal, step.t)


def _count_answered(journal: Journal, phase: str) -> int:
    return sum(row.answered for row in journal.chunks(phase))


def _has_population(journal: Journal, t: int) -> bool:
    return bool(journal.files(f"{population_place(t)}/"))


def pending_extension(run: Run) -> dict[str, Any] | None:
    """The extension under way: its index, count and degree.

    Raises:
        DamagedFile: its file is damaged.
    """
    path = run.folder / EXTENSION
    if not path.is_file():
        return None
    pending = read_json_file(path)
    if [type(pending.get(name)) for name in ("index", "count")] != [int, int] or "degree" not in pending:
        raise DamagedFile(f"{path} is damaged: delete it, and a new extension begins.")
    return pending
