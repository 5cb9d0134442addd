"""The ledger: budget, durable store, public clock, and the only door to noise."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event

import numpy as np

from pe.data.quiet import quiet
from pe.data.samples import Array
from pe.errors import BudgetExceeded, PEError, PrivacyError
from pe.privacy.accounting import epsilon
from pe.privacy.mechanisms import check_delta
from pe.privacy.noise import Noise, SystemNoise
from pe.privacy.release import Relation, Release

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicClock:
    """Holds private work back until deadlines that follow from public numbers alone.

    How long a search or an embedding takes depends on the number of private records and on their
    values. Whoever gets the next request, or sees the console, must not learn how long it took.

    Attributes:
        deadlines: kind of work → seconds from its start; work without a deadline is not held back.
        overran: called with the name of work that took longer than its deadline.
        stop: once set, nothing is held back any longer: the run stops before anything that could
            tell the time.
    """

    deadlines: Mapping[str, float] = field(default_factory=dict)
    overran: Callable[[str], None] = lambda work: None
    stop: Event = field(default_factory=Event)

    @contextmanager
    def hold(self, work: str) -> Iterator[None]:
        """End the block, which does the work of this name, at its deadline and not before.

        Guarantee: while the work meets its deadline, the end of the block does not depend on how
        long the work took, except for the time that the system takes to wake a process. Work that
        raises is not held back: the run ends.
        """
        deadline = self.deadlines.get(kind_of(work))
        start = time.monotonic()
        yield
        if deadline is None:
            return
        wait = start + deadline - time.monotonic()
        if wait < 0:
            self.overran(work)
        else:
            self.stop.wait(wait)


def kind_of(work: str) -> str:
    """Return the kind of private work that a release's name tells: `histogram` for histogram/2."""
    return work.partition("/")[0]


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """A release that was charged, with its declaration at that time."""

    release: Release
    charges: int  # ≥ 1; more than one after a crash that may have left traces
    unsafe: bool  # True if any of its draws came from unsafe noise
    array: Array | None  # the noisy array; None until it is kept


class MemoryStore:
    """Records of charges and noisy arrays, in this process alone: for tests, and without a run.

    A subclass makes them durable: the effect of a method that has returned then survives a crash of
    the process and the machine.
    """

    def __init__(self) -> None:
        self._releases: dict[str, StoredRelease] = {}

    def find(self, name: str) -> StoredRelease | None:
        """Return the record of the release `name`, or None if it was never charged."""
        return self._releases.get(name)

    def charges(self) -> Sequence[StoredRelease]:
        """Return every release ever charged, in the order of the first charge."""
        return tuple(self._releases.values())

    def charge(self, release: Release, unsafe: bool) -> None:
        """Record one more charge of `release`, to be drawn from safe or unsafe noise."""
        before = self._releases.get(release.name, StoredRelease(release, 0, False, None))
        self._releases[release.name] = replace(
            before, charges=before.charges + 1, unsafe=before.unsafe or unsafe
        )

    def keep(self, name: str, array: Array) -> None:
        """Store the noisy array of a charged release, read-only, all of it or nothing."""
        before = self._releases.get(name)
        if before is None or before.array is not None:
            raise PrivacyError(
                f"Release '{name}' cannot be kept: it was not charged, or is kept already."
            )
        array = np.array(array)
        array.setflags(write=False)
        self._releases[name] = replace(before, array=array)

    def traces(self, name: str) -> bool:
        """Return True if anything of a draw of `name` that was never kept may still exist anywhere.

        A draw lives in memory until `keep`, so a process that ended leaves none. In the process
        that made it, its memory may be alive still. A partly written file, a checkpoint or a
        swapped page may survive both. When in doubt, return True.
        """
        return True


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: (epsilon, delta). There is no default for delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(
                f"A budget's `epsilon` must be a finite number above 0, not {self.epsilon!r}."
            )


class Ledger:
    """Composes a run's releases, and refuses what would exceed the budget before it is charged.

    `release` charges durably, draws, keeps durably and returns, in this order. An array that is
    kept is returned again without a new draw. So the total never under-counts, at whatever instant
    the process crashes.

    Guarantee: all that ever left `release`, together, is (budget.epsilon, budget.delta)-DP under
    `relation` for one `unit`, provided each release's declared sensitivity holds. The planned
    releases are reserved: the total counts them from the start, also when the run stops early.
    There is no guarantee without a budget.

    `clock` holds each new release back until its deadline, if it has one.

    Args:
        budget: the most that all may cost; None: nothing is promised, so nothing is refused, and
            all is marked unsafe.
        relation: the one neighbouring relation.
        unit: the one privacy unit.
        plan: every release that the run intends, by unique name.
        store: where charges and arrays are durable.
        noise: the source of noise; None: the system's entropy. Only tests give another source.

    Raises:
        BudgetExceeded: the plan, with what was charged beyond it, does not fit the budget.
        PrivacyError: relations, units or declarations differ, or two planned releases have one
            name.
    """

    def __init__(
        self,
        budget: Budget | None,
        relation: Relation,
        unit: str,
        plan: Sequence[Release],
        store: MemoryStore,
        noise: Noise | None = None,
    ) -> None:
        self.budget = budget
        self.relation = Relation(relation)
        self.unit = unit
        self.plan = tuple(plan)
        self._store = store
        self._noise = SystemNoise() if noise is None else noise
        self.clock = PublicClock()
        self._lock = threading.RLock()
        if len({release.name for release in self.plan}) < len(self.plan):
            raise PrivacyError(
                "Two planned releases have the same name. Give each release of a run its own name."
            )
        # what an earlier process charged counts as well, and may not be in this plan
        for release in (*self.plan, *(one.release for one in store.charges())):
            self._check_kind(release)
        for release in self.plan:
            self._check_same(release, store.find(release.name))
        self._check_affordable(self.events(), "The plan")

    def release(self, release: Release, draw: Callable[[Noise], Array]) -> Array:
        """Return the read-only noisy array of `release`, the kept one or a new one at its deadline.

        Args:
            release: its declaration, equal to the planned one of that name if there is one.
            draw: adds noise from its argument to the clean quantity; called once at most. It must
                let nothing out in any other way than by its return value.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged or drawn.
            PrivacyError: another relation, unit or declaration than the ledger, plan or store has;
                or `draw` raised an error other than a PEError.
        """
        with self._lock:
            self._check_kind(release)
            own = next((other for other in self.plan if other.name == release.name), release)
            if own != release:
                raise PrivacyError(
                    f"Release '{release.name}' differs from the planned one. Start a new run for "
                    "it."
                )
            before = self._store.find(release.name)
            self._check_same(release, before)
            if before is not None and before.array is not None:
                return before.array
            with self.clock.hold(release.name):
                self._charge(release, before)
                return self._draw(release, draw)

    def has_drawn(self, release: Release) -> bool:
        """Return True if `release` would return a kept array, without a new draw."""
        before = self._store.find(release.name)
        return before is not None and before.array is not None

    def total(self, delta: float | None = None) -> float:
        """Return ε of all that is planned or was charged, at `delta` (default: the budget's).

        It is infinite without a budget.
        """
        if self.budget is None:
            return math.inf
        return epsilon(self.events(), self.budget.delta if delta is None else delta)

    def epsilon_at(self, deltas: Iterable[float]) -> dict[float, float]:
        """Return ε of all planned or charged releases, at each δ that can be resolved."""
        totals = {}
        for delta in deltas:
            with suppress(PrivacyError):
                totals[delta] = self.total(delta)
        return totals

    def events(self, extra: Release | None = None) -> list[Release]:
        """Return every planned or charged release, as often as charged and at least once.

        `extra` is counted as if it were charged once more.
        """
        with self._lock:
            times = {release.name: (release, 0) for release in self.plan}
            times |= {one.release.name: (one.release, one.charges) for one in self._store.charges()}
        if extra is not None:
            times[extra.name] = extra, times.get(extra.name, (extra, 0))[1] + 1
        return [release for release, charges in times.values() for _ in range(max(1, charges))]

    def charges(self) -> Sequence[StoredRelease]:
        """Return every release charged so far."""
        return self._store.charges()

    @property
    def unsafe(self) -> bool:
        """True if there is no guarantee: noise is or was unsafe, or no budget was given."""
        return (
            self.budget is None
            or self._noise.unsafe
            or any(one.unsafe for one in self._store.charges())
        )

    def _charge(self, release: Release, before: StoredRelease | None) -> None:
        """Charge, unless an earlier charge whose draw left no trace still covers this draw."""
        covers = before is not None and (before.unsafe or not self._noise.unsafe)
        if covers and not self._store.traces(release.name):
            return
        self._check_affordable(self.events(release), f"Release '{release.name}'")
        self._store.charge(release, self._noise.unsafe)

    def _draw(self, release: Release, draw: Callable[[Noise], Array]) -> Array:
        failure = ""
        try:
            with quiet():
                array = draw(self._noise)
        except PEError:
            raise
        except Exception as error:  # its words may be about a private record
            log.error("Release '%s' was not drawn.", release.name, exc_info=error)
            failure = type(error).__name__
        if failure:
            raise PrivacyError(
                f"Release '{release.name}' was not drawn ({failure}). The log says why."
            )
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise PrivacyError(
                f"Release '{release.name}' drew {type(array).__name__}, not an array of numbers."
            )
        self._store.keep(release.name, array)
        after = self._store.find(release.name)
        if after is None or after.array is None:
            raise PrivacyError(
                f"Release '{release.name}' is not used, because its store did not keep it."
            )
        return after.array

    def _check_affordable(self, events: Sequence[Release], what: str) -> None:
        if self.budget is None:
            return
        total = epsilon(events, self.budget.delta)
        if total > self.budget.epsilon:
            raise BudgetExceeded(
                f"{what} would bring the total to ε = {total:.6g} at δ = {self.budget.delta:g}, "
                f"above the budget of ε = {self.budget.epsilon:.6g}. Nothing was released."
            )

    def _check_kind(self, release: Release) -> None:
        if release.relation is not self.relation or release.unit != self.unit:
            raise PrivacyError(
                f"Release '{release.name}' is for {release.relation}/{release.unit}, but this "
                f"ledger protects {self.relation}/{self.unit}. Use one ledger for each relation "
                "and unit."
            )

    @staticmethod
    def _check_same(release: Release, before: StoredRelease | None) -> None:
        if before is not None and before.release != release:
            raise PrivacyError(
                f"Release '{release.name}' was charged with other parameters before. Start a new "
                "run for it."
            )
