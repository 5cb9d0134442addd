"""The state of a run, read from outside while another process may be writing it.

For its owner: it tells times.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pe.data.bounded import read_bytes
from pe.errors import DamagedFile, printable
from pe.fit.trainer import FIT, MODEL
from pe.planning.calls import PARENTS
from pe.plugins.price import Price
from pe.plugins.protocols import Usage
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import finite
from pe.privacy.release import Release
from pe.steps import Plan
from pe.store.certified import read_json_file
from pe.store.journal import Journal, Totals, has_tables
from pe.store.places import EXTENSION, FOUNDERS, PURGED, WAITING, population_place
from pe.store.run import Run
from pe.store.writer import read_journal, stored_charges

State = Literal["running", "stopped", "finished", "purged"]


@dataclass(frozen=True)
class PhaseProgress:
    """A phase of a run's work."""

    # as in the journal: degree/0.4, population/2, lookahead/2, histogram/2, class_counts,
    # extension/1; while a generator is fitted, fit/… for each release of the fit, and then fit
    name: str
    iteration: int  # t
    done: int | None = None  # samples answered; None for a release, which has none
    # samples wanted, at most: what the votes keep is not asked for; None for a release
    total: int | None = None

    @property
    def extends(self) -> bool:
        """True for more samples of a finished run."""
        return self.name.startswith("extension/")

    @property
    def fits(self) -> bool:
        """True while the generator is fitted on the private records."""
        return f"{self.name}/".startswith(FIT)


def phases(
    run: Run,
    plan: Plan,
    journal: Journal,
    is_purged: bool,
) -> Iterator[tuple[PhaseProgress, bool]]:
    """Yield each phase of a run, in order, with True if it is over.

    After a purge, only phases that have begun since are known.
    """
    # The trial's phases are over once it has a result.
    if run.degree is None:
        names = [name for name in journal.phases() if name.startswith("degree/")]
        for name in names:
            done = _count_answered(journal, name)
            yield PhaseProgress(name, 0, done, PARENTS), name != names[-1]
    if not is_purged:
        yield from _phases_to_the_end(plan, journal)
        yield PhaseProgress("results", len(plan.steps)), journal.has_event("finished")
    extension = pending_extension(run)
    if extension and not extension.get("finished"):
        name = f"extension/{extension['index']}"
        done = _count_answered(journal, name)
        yield PhaseProgress(name, len(plan.steps), done, extension["count"]), False


def _phases_to_the_end(plan: Plan, journal: Journal) -> Iterator[tuple[PhaseProgress, bool]]:
    is_fitted = bool(journal.files(f"{MODEL}/"))
    for phase in plan.phases:
        if f"{phase.name}/".startswith(FIT):
            yield PhaseProgress(phase.name, 0), is_fitted or _is_drawn(phase.release, journal)
        elif phase.release is not None:
            yield PhaseProgress(phase.name, phase.t), _is_drawn(phase.release, journal)
        else:
            answers = _count_answered(journal, phase.name)
            over = bool(journal.files(f"{population_place(phase.t)}/"))
            if phase.name == "founders":
                over = over or bool(journal.files(FOUNDERS))
            elif not phase.makes:  # a lookahead, whose answers are deleted after the votes
                over = answers == phase.most or _is_drawn(plan.steps[phase.t - 1].release, journal)
            yield PhaseProgress(phase.name, phase.t, answers, phase.most), over


def _is_drawn(release: Release | None, journal: Journal) -> bool:
    return release is not None and journal.release(release.name) is not None


def _count_answered(journal: Journal, phase: str) -> int:
    return sum(row.answers for row in journal.chunks(phase))


def pending_extension(run: Run) -> dict[str, Any] | None:
    """Return the index, count and degree of the extension under way, or None.

    An extension that is finished, but was not told of, counts as under way.
    """
    path = run.folder / EXTENSION
    if not path.is_file():
        return None
    pending = read_json_file(path)
    types = [type(pending.get(name)) for name in ("index", "count")]
    if types != [int, int] or "degree" not in pending:
        raise DamagedFile(f"{path} is damaged: delete it, and a new extension begins.")
    return pending


@dataclass(frozen=True)
class Progressed:
    """The progress of a run, as its journal tells it."""

    phase: PhaseProgress | None  # the work under way, or next; None: none is left
    totals: Totals
    epsilon_charged: float  # ε of everything charged, at the recipe's δ
    events: list[tuple[str, str]]  # (time in UTC, event), in order
    # True if the journal was begun after the run's first one was purged, or not copied
    since_purge: bool = False


@dataclass(frozen=True)
class Status:
    """The state of a run."""

    # running, stopped (it can be resumed), finished, or purged: there is no journal, because the
    # confidential side was deleted (a later evaluation may have made a new one), or this is a copy
    state: State
    # of the process that writes the run; None: there is none, or it has not noted its pid yet
    pid: int | None
    iterations: int  # T
    # ε of everything planned, which the certificate states of a run that stops early, too; infinite
    # where no ε holds
    epsilon_planned: float
    delta: float
    price: Price
    journal: Progressed | None
    waits: str = ""  # what the run waits for; empty if it waits for nothing
    # the result of the trial of the generator's variations (`Run.degree`); None: there was no trial
    # yet
    degree: str | None = None

    @property
    def iteration(self) -> int:
        """Iteration t of the phase under way. T when none is left."""
        phase = self.journal.phase if self.journal else None
        return phase.iteration if phase else self.iterations

    @property
    def promises(self) -> bool:
        """True if an ε holds, as it does not for a run without noise."""
        return finite(self.epsilon_planned) is not None

    @property
    def cost(self) -> float | None:
        """The cost of everything answered, in the price's currency. None: purged."""
        return self.price.of(self.journal.totals.usage) if self.journal else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values. Null for what a purge has deleted."""
        journal = self.journal
        # After a purge the keys stay, with null, so that a reader finds the same ones.
        usage: dict[str, Any] = dict.fromkeys(field.name for field in fields(Usage))
        events: list[tuple[Any, Any]] = [(None, None)]
        if journal:
            usage = asdict(journal.totals.usage)
            events = journal.events or events
        return {
            "state": self.state,
            "waits": self.waits or None,
            "pid": self.pid,
            "iteration": self.iteration,
            "iterations": self.iterations,
            "phase": asdict(journal.phase) if journal and journal.phase else None,
            **usage,
            "refused": journal.totals.refusals if journal else None,
            "answered": journal.totals.answers if journal else None,
            "cost": self.cost,
            "currency": self.price.currency,
            "epsilon_charged": finite(journal.epsilon_charged)
            if journal and self.promises
            else None,
            "epsilon_planned": finite(self.epsilon_planned),
            "delta": self.delta if self.promises else None,
            "degree": self.degree,
            "started": events[0][0],
            "last_event": events[-1][1],
            "last_event_at": events[-1][0],
        }


def status_of(run: Run, plan: Plan, price: Price, delta: float) -> Status:
    """Return the state of `run`, whose recipe has this plan, price and δ.

    Changes nothing, and waits for no lock.
    """
    running, pid = writer_of(run)
    progress = _read_progress(run, plan, delta)
    if running:
        state: State = "running"
    elif progress is None:
        state = "purged"
    else:
        state = "stopped" if progress.phase else "finished"
    return Status(
        state=state,
        pid=pid,
        iterations=len(plan.steps),
        epsilon_planned=math.inf if run.noiseless else epsilon(plan.releases, delta),
        delta=delta,
        price=price,
        journal=progress,
        waits=waits_of(run) if running else "",
        degree=run.degree,
    )


def waits_of(run: Run) -> str:
    """Return what a running run waits for, or "" if it waits for nothing."""
    try:
        return printable(read_bytes(run.folder / WAITING).decode(errors="replace"))
    except FileNotFoundError:
        return ""


def _read_progress(run: Run, plan: Plan, delta: float) -> Progressed | None:
    has_certificate = run.is_finished
    if not has_tables(run.confidential / "journal.sqlite"):
        if not run.confidential.is_dir() or has_certificate:
            return None
        return Progressed(PhaseProgress("population/0", 0, 0, sum(plan.sizes)), Totals(), 0.0, [])
    with read_journal(run) as journal:
        is_purged = (run.folder / PURGED).is_file() or (
            has_certificate and not journal.has_event("started")  # or not copied
        )
        epsilon_charged = run.guarantee["epsilon"] if is_purged else None
        if epsilon_charged is None:
            epsilon_charged = epsilon([release for release, _ in stored_charges(journal)], delta)
        phase = next(
            (phase for phase, over in phases(run, plan, journal, is_purged) if not over),
            None,
        )
        return Progressed(phase, journal.totals(), epsilon_charged, journal.events(), is_purged)


def writer_of(run: Run) -> tuple[bool, int | None]:
    """Return whether a process writes the run, and the id of this process if it is known.

    The test is a shared lock, so that two readers do not take each other for a writer; it is
    released at once, and not tried at all while nobody has ever written.
    """
    try:
        # Without O_NONBLOCK, a pipe in the lock's place would be waited for.
        descriptor = os.open(run.confidential / "lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # another user's, or no run's
        return False, None
    holder = ""
    try:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        if holder:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False, None
    except OSError:
        return bool(holder), int(holder) if holder.isdecimal() else None
    finally:
        os.close(descriptor)


def is_writer(run: Run, pid: int) -> bool:
    """True if process `pid` of this machine has the run's lock open.

    Also true if the system does not tell (no /proc). A lock on a shared folder may be held in
    another container, where the number is another process's.
    """
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        lock = (run.confidential / "lock").stat()
        return any(
            os.path.samestat(each.stat(), lock)
            for each in Path(f"/proc/{pid}/fd").iterdir()
            if each.exists()
        )
    except OSError:  # it has ended, or is another user's
        return False
