"""How far a run is, by what its generator was asked and has answered: public things, at public moments.

Guarantee: no release, no time and no private record has a part in it, so it changes only when an answer comes. A
release is no sign of progress here: it is stored when it is drawn, which may be long before its public deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.population import NO_PARENT, Population, parse_columns
from pe.dispatch.packing import decode
from pe.planning.calls import founders
from pe.steps import Plan, by_label
from pe.store.journal import Journal, Totals
from pe.store.places import population_place
from pe.store.run import Run

_NEWEST = 12
_BYTES = 2**26  # of answers, read for one picture of what has arrived


@dataclass(frozen=True)
class Asked:
    """A phase in which the generator is asked.

    Attributes:
        name: as in the journal.
        t: the iteration.
        done: samples answered.
        most: samples wanted at the most: what the votes keep, or the lookahead has made, is not asked for.
        over: whether something after it was asked, or what it makes is there.
    """

    name: str
    t: int
    done: int
    most: int
    over: bool

    @property
    def makes(self) -> bool:
        """Whether its answers are members of S_t."""
        return self.name.startswith("population/")


@dataclass(frozen=True)
class Public:
    """What the journal tells of a run that everyone may know: requests, answers and prices are public, times are not.

    Attributes:
        phases: in order; empty: the journal is gone.
        totals: calls, samples, tokens and refusals; None: the journal is gone.
    """

    phases: tuple[Asked, ...] = ()
    totals: Totals | None = None

    @property
    def now(self) -> Asked | None:
        """The phase under way or next; None: all are over."""
        return next((phase for phase in self.phases if not phase.over), None)

    @property
    def votes(self) -> int:
        """How many iterations' votes may show: something after them was asked or made."""
        return max((each.t for each in self.phases if each.makes and (each.done or each.over)), default=0)

    @property
    def left(self) -> int:
        """Samples that are still to be asked for, at the most."""
        return sum(max(each.most - each.done, 0) for each in self.phases if not each.over)


def public_progress(plan: Plan, journal: Journal) -> Public:
    """How far the run is, by the generator's answers alone.

    Guarantee: no release and no time has a part in it, so that it changes only when an answer comes.
    """
    kinds = [] if not plan.initial_variations else [("founders", 0, sum(founders(plan)))]
    kinds.append(("population/0", 0, sum(plan.sizes) - sum(most for *_, most in kinds)))
    size = sum(plan.sizes)
    for step in plan.steps:
        if step.lookahead:
            kinds.append((f"lookahead/{step.t}", step.t, step.lookahead * size))
        size = sum(step.sizes)
        kinds.append((f"population/{step.t}", step.t, size if step.degree else 0))
    found: list[Asked] = []
    later = False
    for name, t, most in reversed(kinds):
        done = sum(row.answered for row in journal.chunks(name))
        later = later or (name.startswith("population/") and bool(journal.files(f"{population_place(t)}/")))
        found.append(Asked(name, t, done, most, later or (done >= most > 0)))
        later = later or done > 0
    return Public(tuple(reversed(found)), journal.totals())


def arriving(run: Run, plan: Plan, found: Public, journal: Journal, t: int) -> Population | None:
    """The newest answers of S_t, up to _NEWEST of each label, while S_t is being made; None: there are none.

    None, too, where label sizes are estimated: which label an answer is of does not follow from the plan then.

    Raises:
        OSError: answers were deleted meanwhile, because the population is there.
    """
    now = found.now
    if now is None or not now.makes or now.t != t or not now.done or plan.class_counts is not None:
        return None
    labels = by_label(plan.steps[t - 1].sizes if t else plan.sizes)
    missing, room = np.full(len(plan.classes), _NEWEST), _BYTES
    parts: list[Population] = []
    for row in reversed(journal.chunks(now.name)):
        if row.file is None:
            continue
        if room <= 0 or not missing.any():
            break
        stored = np.fromfile(run.confidential / "chunks" / row.file, np.uint8)
        room -= stored.size
        columns = decode(stored)
        own = labels[columns.pop("items")]
        newest = [np.flatnonzero(own == label)[::-1][: missing[label]] for label in range(len(missing))]
        missing -= [len(each) for each in newest]
        rows = np.concatenate(newest)
        samples, conditions = parse_columns(columns)
        nobody = np.full(len(rows), NO_PARENT, np.int64)
        parts.append(Population(samples.take(rows), own[rows], conditions.take(rows), nobody))
    return _joined(parts) if parts else None


def _joined(parts: Sequence[Population]) -> Population:
    columns = [
        Population.columns(each.samples, each.conditions, labels=each.labels, parents=each.parents) for each in parts
    ]
    return Population.from_columns({name: np.concatenate([each[name] for each in columns]) for name in columns[0]})
