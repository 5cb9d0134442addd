"""The phases of a run in their order, and how far each is, by its journal."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pe.errors import DamagedFile, printable
from pe.fit.trainer import FIT, MODEL
from pe.planning.calls import PARENTS
from pe.plugins.price import Price
from pe.plugins.protocols import Usage
from pe.privacy.accounting import epsilon
from pe.privacy.words import finite
from pe.steps import Plan
from pe.store.certified import read_json_file
from pe.store.journal import Journal, Totals, has_tables
from pe.store.places import CERTIFICATE, EXTENSION, FOUNDERS, PURGED, WAITING, population_place
from pe.store.run import Run
from pe.store.writer import read_journal, stored_charges


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
        new = sum(plan.founders)
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


# Where a run stands, read from outside while another process may be writing it. For its owner: it tells times.


State = Literal["running", "stopped", "finished", "purged"]


@dataclass(frozen=True)
class Progressed:
    """What the journal tells of a run.

    Attributes:
        phase: the work under way, or next; None: none is left.
        totals: calls, images, tokens and refusals; of the journal that is there.
        since_purge: whether it was begun after the run's first one was purged, or not copied.
        epsilon_charged: ε of everything charged, at the recipe's δ.
        events: (time in UTC, event), in order.
    """

    phase: Phase | None
    totals: Totals
    epsilon_charged: float
    events: list[tuple[str, str]]
    since_purge: bool = False


@dataclass(frozen=True)
class Status:
    """Where a run stands.

    Attributes:
        state: running, stopped (it can be gone on with), finished, or purged: there is no journal, because the
            confidential side was deleted or this is a copy; what stands there now an evaluation has written since.
        pid: of the process that writes it; None: there is none, or it has not said yet.
        iterations: T.
        epsilon_planned: ε of everything planned, which the certificate states of a run that stops early, too; infinite
            where no ε holds.
        delta: δ.
        price: the recipe's.
        journal: what the journal tells; None: it was purged.
        waits: what it waits for; empty: for nothing.
        degree: what a try of the generator's variations found (`Run.degree`); None: nothing.
    """

    state: State
    pid: int | None
    iterations: int
    epsilon_planned: float
    delta: float
    price: Price
    journal: Progressed | None
    waits: str = ""
    degree: str | None = None

    @property
    def iteration(self) -> int:
        """Iteration t of the phase under way; T when none is left."""
        phase = self.journal.phase if self.journal else None
        return phase.iteration if phase else self.iterations

    @property
    def promises(self) -> bool:
        """Whether an ε holds; not for a run without noise."""
        return finite(self.epsilon_planned) is not None

    @property
    def cost(self) -> float | None:
        """Of everything answered, in the price's currency; None: purged."""
        spent = self.journal.totals if self.journal else None
        return self.price.of(spent.usage) if spent else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; what a purge has deleted is null."""
        found = self.journal
        billed = asdict(found.totals.usage) if found else dict.fromkeys(field.name for field in fields(Usage))
        at, event = found.events[-1] if found and found.events else (None, None)
        return {
            "state": self.state,
            "waits": self.waits or None,
            "pid": self.pid,
            "iteration": self.iteration,
            "iterations": self.iterations,
            "phase": asdict(found.phase) if found and found.phase else None,
            **billed,
            "refused": found.totals.refused if found else None,
            "answered": found.totals.answered if found else None,
            "cost": self.cost,
            "currency": self.price.currency,
            "epsilon_charged": finite(found.epsilon_charged) if found and self.promises else None,
            "epsilon_planned": finite(self.epsilon_planned),
            "delta": self.delta if self.promises else None,
            "degree": self.degree,
            "started": found.events[0][0] if found and found.events else None,
            "last_event": event,
            "last_event_at": at,
        }


def status_of(run: Run, plan: Plan, price: Price, delta: float) -> Status:
    """Where `run` stands. Changes nothing, and holds no lock for longer than an instant.

    Args:
        run: the run.
        plan: that of its recipe.
        price: that of its recipe.
        delta: that of its recipe.

    Raises:
        RunError: the journal is damaged, or of another version of this software.
    """
    running, pid = writer_of(run)
    found = _read_progress(run, plan, delta)
    planned = math.inf if run.noiseless else epsilon(plan.releases, delta)
    return Status(
        state=_state(running, found),
        pid=pid,
        iterations=len(plan.steps),
        epsilon_planned=planned,
        delta=delta,
        price=price,
        journal=found,
        waits=waits_of(run) if running else "",
        degree=run.degree,
    )


def waits_of(run: Run) -> str:
    """What a running run waits for; empty: for nothing."""
    try:
        return printable((run.folder / WAITING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""


def _state(running: bool, found: Progressed | None) -> State:
    if running:
        return "running"
    if found is None:
        return "purged"
    return "stopped" if found.phase else "finished"


def _read_progress(run: Run, plan: Plan, delta: float) -> Progressed | None:
    if not has_tables(run.confidential / "journal.sqlite"):
        if not run.confidential.is_dir() or (run.folder / CERTIFICATE).is_file():
            return None
        return Progressed(Phase("population/0", 0, 0, sum(plan.sizes)), Totals(), 0.0, [])
    with read_journal(run) as journal:
        charges = [release for release, _ in stored_charges(journal)]
        purged = _lost_journal(run, journal)
        certified = run.guarantee["epsilon"] if purged else None
        charged = epsilon(charges, delta) if certified is None else certified
        phases = chain(phases_of_trying(run, journal), phases_of(run, plan, journal, purged))
        phase = next((phase for phase, over in phases if not over), None)
        return Progressed(phase, journal.totals(), charged, journal.events(), purged)


def _lost_journal(run: Run, journal: Journal) -> bool:
    """Whether the journal that the run was made with is gone: purged, or not copied; this one was begun after it."""
    if (run.folder / PURGED).is_file():
        return True
    return (run.folder / CERTIFICATE).is_file() and not journal.happened("started")


def writer_of(run: Run) -> tuple[bool, int | None]:
    """Whether a process writes the run, and its id.

    The probe is a shared lock, so that two readers do not take each other for a writer; it is let go of at
    once, and not tried at all while nobody has ever written.
    """
    try:
        descriptor = os.open(run.confidential / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False, None
    try:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        if holder:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False, None
    except BlockingIOError:
        return True, int(holder) if holder.isdecimal() else None
    finally:
        os.close(descriptor)


def is_writer(run: Run, pid: int) -> bool:
    """Whether process `pid` of this machine has the run's lock open; true where the system does not tell (no /proc).

    A lock on a shared folder may be held in another container, where the number is another process's.
    """
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        lock = (run.confidential / "lock").stat()
        return any(os.path.samestat(each.stat(), lock) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists())
    except OSError:  # it has ended, or is another user's
        return False
