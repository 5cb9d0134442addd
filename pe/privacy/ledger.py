"""The ledger: the only door to noise.

`release` charges durably, draws, keeps durably and returns, in this order; what is kept is returned again
without a new draw. So the total never under-counts, whatever instant a crash picks.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pe.data.quiet import quiet
from pe.errors import BudgetExceeded, PEError, PrivacyError
from pe.privacy.accounting import delta as delta_of
from pe.privacy.accounting import epsilon as epsilon_of
from pe.privacy.clock import PublicClock
from pe.privacy.closed_form import check_delta
from pe.privacy.mechanisms import check_same_kind
from pe.privacy.noise import Noise, SystemNoise
from pe.privacy.release import Relation, Release
from pe.privacy.store import Array, ReleaseStore, StoredRelease

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: (epsilon, delta). There is no default for delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(f"A budget's epsilon is a finite number above 0, not {self.epsilon!r}.")


class Ledger:
    """Composes a run's releases and refuses, before the act, what would exceed the budget.

    Guarantee: all that ever left `release`, together, is (budget.epsilon, budget.delta)-DP under `relation`
    for one `unit`, provided each release's declared sensitivity holds. The planned releases are
    reserved: the total counts them from the start, also when the run stops early. Without a budget: none.

    Attributes:
        clock: holds each new release back until its deadline, if it has one.

    Args:
        budget: the most that all may cost; None: nothing is promised, so nothing is refused, and all is marked unsafe.
        relation: the one neighbouring relation.
        unit: the one privacy unit.
        planned: every release that the run intends, by unique name.
        store: where charges and arrays are durable.
        noise: what draws; the system's entropy unless a test says otherwise.

    Raises:
        BudgetExceeded: the plan, with what was charged beyond it, does not fit the budget.
        PrivacyError: relations or units differ, or a name stands twice.
    """

    def __init__(
        self,
        budget: Budget | None,
        relation: Relation,
        unit: str,
        planned: Sequence[Release],
        store: ReleaseStore,
        noise: Noise | None = None,
    ) -> None:
        self.budget = budget
        self.relation = Relation(relation)
        self.unit = unit
        self.planned = tuple(planned)
        self._store = store
        self._noise: Noise = SystemNoise() if noise is None else noise
        self.clock = PublicClock()
        self._lock = threading.RLock()
        names = [release.name for release in self.planned]
        if len(set(names)) < len(names):
            raise PrivacyError("Two planned releases have the same name: a name is unique within a run.")
        check_same_kind([*self.planned, *(one.release for one in store.charged())], self.relation, unit)
        for release in self.planned:
            self._check_same(release, store.find(release.name))
        self._check_affordable(self._events(), "The plan")

    def release(self, release: Release, draw: Callable[[Noise], Array]) -> Array:
        """The noisy array of `release`: the kept one, or a new one drawn by `draw` and kept first, at its deadline.

        Args:
            release: its declaration, equal to the planned one of that name if there is one.
            draw: adds noise from its argument to the clean quantity; called once at most. It must let
                nothing out by another way than its return value.

        Returns:
            A read-only array.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged or drawn.
            PrivacyError: another relation, unit or declaration than the ledger, plan or store has; or `draw` raised
                what is no PEError.
        """
        with self._lock:
            check_same_kind([release], self.relation, self.unit)
            planned = next((other for other in self.planned if other.name == release.name), release)
            if planned != release:
                raise PrivacyError(f"Release '{release.name}' differs from the planned one: start a new run for it.")
            stored = self._store.find(release.name)
            self._check_same(release, stored)
            if stored is not None and stored.array is not None:
                return stored.array
            with self.clock.hold(release.name):
                self._charge(release, stored)
                return self._draw(release, draw)

    def drawn(self, release: Release) -> bool:
        """Whether `release` would return a kept array, without a new draw."""
        stored = self._store.find(release.name)
        return stored is not None and stored.array is not None

    def total(self, delta: float | None = None) -> float:
        """ε of all that is planned or was charged, at `delta` (the budget's, if None); infinite without a budget."""
        if self.budget is None:
            return math.inf
        return epsilon_of(self.events(), self.budget.delta if delta is None else delta)

    def epsilon_at(self, deltas: Iterable[float]) -> dict[float, float]:
        """ε of all that is planned or was charged, at each of `deltas` but those that the accountant cannot resolve."""
        found = {}
        for delta in deltas:
            with suppress(PrivacyError):
                found[delta] = self.total(delta)
        return found

    def delta_at(self, epsilon: float) -> float:
        """δ of all that is planned or was charged, at `epsilon`."""
        return delta_of(self.events(), epsilon)

    def events(self) -> list[Release]:
        """Every planned or charged release, as often as it counts."""
        with self._lock:
            return self._events()

    def stored(self) -> Sequence[StoredRelease]:
        """Every release charged so far."""
        return self._store.charged()

    @property
    def unsafe(self) -> bool:
        """Whether unsafe noise was or will be used, or no budget was given: then there is no guarantee."""
        return self.budget is None or self._noise.unsafe or any(one.unsafe for one in self._store.charged())

    def _events(self, extra: Release | None = None) -> list[Release]:
        """Planned ∪ charged, each as often as charged and at least once, with one more charge of `extra`."""
        charges = {one.release.name: one.charges for one in self._store.charged()}
        known = {release.name: release for release in self.planned}
        known |= {one.release.name: one.release for one in self._store.charged()}
        if extra is not None:
            known[extra.name] = extra
            charges[extra.name] = charges.get(extra.name, 0) + 1
        return [release for name, release in known.items() for _ in range(max(1, charges.get(name, 0)))]

    def _charge(self, release: Release, stored: StoredRelease | None) -> None:
        """Charge, unless an earlier charge whose draw left no trace still covers this draw."""
        covered = stored is not None and not self._store.traces(release.name)
        if covered and stored is not None and (stored.unsafe or not self._noise.unsafe):
            return
        self._check_affordable(self._events(release), f"Release '{release.name}'")
        self._store.charge(release, self._noise.unsafe)

    def _draw(self, release: Release, draw: Callable[[Noise], Array]) -> Array:
        try:
            with quiet():
                array = draw(self._noise)
        except PEError:
            raise
        except Exception as error:  # its words may be about a private record
            log.error("Release '%s' was not drawn.", release.name, exc_info=error)
            failed = type(error).__name__
        else:
            failed = ""
        if failed:
            raise PrivacyError(f"Release '{release.name}' was not drawn ({failed}): the log says why.")
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise PrivacyError(f"Release '{release.name}' drew {type(array).__name__}, not an array of numbers.")
        self._store.keep(release.name, array)
        kept = self._store.find(release.name)
        if kept is None or kept.array is None:
            raise PrivacyError(f"Release '{release.name}' was not kept by its store: it is not used.")
        return kept.array

    def _check_affordable(self, events: Sequence[Release], what: str) -> None:
        if self.budget is None:
            return
        total = epsilon_of(events, self.budget.delta)
        if total > self.budget.epsilon:
            raise BudgetExceeded(
                f"{what} would bring the total to ε = {total:.6g} at δ = {self.budget.delta:g}, "
                f"above the budget of ε = {self.budget.epsilon:.6g}; nothing was released."
            )

    @staticmethod
    def _check_same(release: Release, stored: StoredRelease | None) -> None:
        if stored is not None and stored.release != release:
            raise PrivacyError(
                f"Release '{release.name}' was charged with other parameters before: start a new run for it."
            )
