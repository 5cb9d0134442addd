"""How far a run is, by what its generator was asked and has answered: public things, at public moments.

Guarantee: no release, no time and no private record has a part in it, so it changes only when an answer comes. A
release is no sign of progress here: it is stored when it is drawn, which may be long before its public deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pe.data.population import NO_PARENT, Population, parse_columns
from pe.dispatch.answers import decode
from pe.planning.build import price_of
from pe.planning.checks import guarantee_warnings
from pe.planning.layout import plan_of
from pe.privacy.accounting import epsilon
from pe.privacy.words import NO_NOISE, finite
from pe.recipe.schema import Recipe
from pe.report.page import environment
from pe.report.pictures import strips
from pe.report.sections import costs, generations, sorted_votes
from pe.steps import Plan, by_label
from pe.store.journal import Journal, Totals
from pe.store.places import CERTIFICATE, RECIPE, population_place
from pe.store.run import Run
from pe.store.writer import has_journal, read_journal

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
    found: list[Asked] = []
    later = False
    for phase in reversed(plan.phases):
        name, t, most = phase.name, phase.t, phase.most
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


# The live page of a run, piece by piece.
#
# Guarantee: the shareable page is post-processing of the releases and of the generator's answers. It holds no time,
# and votes show only once something after them was asked or made (`pe.report.live`).


Pieces = dict[str, str]
"""Place on the page → HTML."""


@dataclass
class LivePage:
    """A run's live page, piece by piece; made once for each server.

    Attributes:
        run: the run.
        confidential: whether the owner asked for times and for what is charged, too.
    """

    run: Run
    confidential: bool = False
    recipe: Recipe = field(init=False)
    plan: Plan = field(init=False)
    _epsilon: float = field(init=False)
    _kept: dict[str, tuple[object, str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.recipe = Recipe.load(self.run.folder / RECIPE)
        self.plan = plan_of(self.run, self.recipe)
        delta = self.recipe.privacy.delta
        self._epsilon = math.inf if self.run.noiseless else epsilon(self.plan.releases, delta)

    def page(self, nonce: str) -> str:
        """The page without its pieces; `nonce` is its script's."""
        plan, run = self.plan, self.run
        values = {
            "name": run.name,
            "nonce": nonce,
            "confidential": self.confidential,
            "no_noise": NO_NOISE if run.noiseless else "",
            "steps": plan.steps,
            "warnings": guarantee_warnings(self.recipe, plan, self._epsilon),
        }
        return environment().get_template("live.html").render(values)

    def pieces(self, running: bool, waits: str, stands: dict[str, object] | None = None) -> Pieces:
        """What the page shows now.

        Args:
            running: whether a process writes the run.
            waits: what it waits for.
            stands: what `pe status` says; for the owner's page alone.

        Raises:
            RunError: the run's files are damaged.
            OSError: a file has gone meanwhile; ask again.
        """
        found, made = Public(), self.run.populations()
        newest: Population | None = None
        if has_journal(self.run):
            with read_journal(self.run) as journal:
                if journal.happened("started"):  # else what is there was written after a purge
                    found = public_progress(self.plan, journal)
                    newest = arriving(self.run, self.plan, found, journal, len(made))
        shown = {f"S{t}": self._generation(one, t, "") for t, one in enumerate(made)}
        if newest is not None and found.now is not None:
            note = f"; arriving, {found.now.done:,} of {found.now.most:,}: the newest of each label"
            shown[f"S{len(made)}"] = self._generation(newest, len(made), note)
        finished = (self.run.folder / CERTIFICATE).is_file()
        votes = len(self.plan.steps) if finished and found.totals is None else found.votes
        standing = self._standing(found, running=running, finished=finished, waits=waits)
        pieces = {"standing": standing, **shown, "votes": self._votes(min(votes, len(made)), len(made))}
        if self.confidential:
            values = costs(self.run) if has_journal(self.run) else {"phases": [], "events": []}
            pieces["private"] = _part("live_private.html", values | {"stands": stands or {}})
        return pieces

    def _standing(self, found: Public, *, running: bool, finished: bool, waits: str) -> str:
        price = price_of(self.recipe)
        cost = None if found.totals is None or price.free else price.of(found.totals.usage)
        values = {
            "state": "running" if running else "finished" if finished else "stopped",
            "found": found,
            "now": found.now,
            "cost": cost,
            "price": price,
            "limits": self.recipe.limits,
            "plan": self.plan,
            "epsilon": finite(self._epsilon),
            "delta": self.recipe.privacy.delta,
            "waits": waits if running else "",
        }
        return _part("live_standing.html", values)

    def _generation(self, population: Population, t: int, note: str) -> str:
        """S_t as a figure; that of a whole population is made once."""
        degree = self.plan.steps[t - 1].degree if t else None

        def make() -> str:
            parts = environment().get_template("parts.html").module
            rows = strips(population, self.plan.classes)
            return str(parts.generation(rows, t, degree, self.plan.steps, self.plan.fit, note))  # type: ignore[attr-defined]

        return self._once(f"S{t}", note, make)

    def _votes(self, votes: int, made: int) -> str:
        """How the first `votes` votes went."""
        if not votes:
            return ""

        def make() -> str:
            found = [one for one in generations(self.run, self.recipe, self.plan) if one.t <= votes]
            parts = environment().get_template("parts.html").module
            passing = [100 * one.passing for one in found]
            return str(parts.how_the_votes_went(found, [*map(sorted_votes, found)], passing))  # type: ignore[attr-defined]

        return self._once("votes", (votes, made), make)

    def _once(self, piece: str, key: object, make: Callable[[], str]) -> str:
        if self._kept.get(piece, (None, ""))[0] != key:
            self._kept[piece] = (key, make())
        return self._kept[piece][1]


def _part(template: str, values: Mapping[str, object]) -> str:
    return environment().get_template(template).render(values)
