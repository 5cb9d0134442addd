"""Where a run stands, read from outside while another process may be writing it. For its owner: it tells times."""

from __future__ import annotations

import fcntl
import math
import os
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pe.engine.phases import Phase, phases_of, phases_of_trying
from pe.errors import printable
from pe.plugins.price import Price
from pe.plugins.usage import Usage
from pe.privacy.accounting import epsilon
from pe.privacy.words import finite
from pe.steps import Plan
from pe.store.journal import Journal, Totals, has_tables
from pe.store.places import CERTIFICATE, PURGED, WAITING
from pe.store.releases import stored_charges
from pe.store.run import Run
from pe.store.writer import read_journal

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
