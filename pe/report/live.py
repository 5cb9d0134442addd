"""The live page of a run, piece by piece: public values, shown at moments that are public, too.

Guarantee: the shareable page is post-processing of the releases and of the generator's answers. No
time and no private record has a part in it, so it changes only when an answer comes; votes show
only once something after them was asked or made. A release is no sign of progress here: it is
stored when it is drawn, which may be long before its public deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pe.data.population import NO_PARENT, Population
from pe.dispatch.answers import decode
from pe.planning.notices import notices, sentences
from pe.planning.parts import price_of
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import NO_NOISE, finite
from pe.report.pages import costs, generations, public_plan
from pe.report.pictures import strips
from pe.report.render import environment, render
from pe.steps import Phase, Plan, by_label
from pe.store.journal import Journal, Totals
from pe.store.places import population_place
from pe.store.run import Run
from pe.store.writer import has_journal, read_journal

Pieces = dict[str, str]
"""Place on the page → HTML."""

_NEWEST = 12
_BYTES = 2**26  # of answers, read for one picture of what has arrived


@dataclass(frozen=True)
class Asked:
    """A phase in which the generator is asked, and how far it has come."""

    phase: Phase
    done: int  # samples answered
    over: bool  # something after it was asked, or its population is there


@dataclass(frozen=True)
class PublicProgress:
    """A run's progress by its journal's public parts: requests, answers and prices. No times."""

    phases: tuple[Asked, ...] = ()  # in order; empty: the journal is gone
    totals: Totals | None = None  # calls, samples, tokens and refusals; None: the journal is gone

    @property
    def now(self) -> Asked | None:
        """The phase under way or next. None: all are over."""
        return next((phase for phase in self.phases if not phase.over), None)

    @property
    def votes(self) -> int:
        """The number of iterations whose votes may show: something after them was asked or made."""
        return max(
            (each.phase.t for each in self.phases if each.phase.makes and (each.done or each.over)),
            default=0,
        )

    @property
    def left(self) -> int:
        """Samples that are still to be asked for, at the most."""
        return sum(max(each.phase.most - each.done, 0) for each in self.phases if not each.over)


def public_progress(plan: Plan, journal: Journal) -> PublicProgress:
    """Return a run's progress by the generator's answers alone.

    It changes only when an answer comes.
    """
    phases: list[Asked] = []
    later = False
    for phase in reversed(plan.phases):
        if not phase.asks:
            continue
        done = sum(row.answers for row in journal.chunks(phase.name))
        later = later or (phase.makes and bool(journal.files(f"{population_place(phase.t)}/")))
        phases.append(Asked(phase, done, later or (done >= phase.most > 0)))
        later = later or done > 0
    return PublicProgress(tuple(reversed(phases)), journal.totals())


def arriving(
    run: Run, plan: Plan, now: Asked | None, journal: Journal, t: int
) -> Population | None:
    """Return the newest answers of S_t, up to _NEWEST of each label, while S_t is being made.

    Returns None if there are none. Returns None, too, if label sizes are estimated, because the
    plan then does not tell the label of an answer.
    """
    if (
        now is None
        or not now.phase.makes
        or now.phase.t != t
        or not now.done
        or plan.class_counts is not None
    ):
        return None
    # the newest answers come first, and no more is read than a picture needs
    labels = by_label(plan.sizes_at(t))
    missing = np.full(len(plan.classes), _NEWEST)
    room = _BYTES
    parts = []
    for row in reversed(journal.chunks(now.phase.name)):
        if row.file is None:
            continue
        if room <= 0 or not missing.any():
            break
        content = np.fromfile(run.confidential / "chunks" / row.file, np.uint8)
        room -= content.size
        columns = decode(content)
        own = labels[columns.pop("items")]
        newest = np.concatenate(
            [np.flatnonzero(own == label)[::-1][:most] for label, most in enumerate(missing)]
        )
        missing -= np.bincount(own[newest], minlength=len(missing))
        parts.append({name: column[newest] for name, column in columns.items()})
        parts[-1]["labels"] = own[newest]
    if not parts:
        return None
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    whole["parents"] = np.full(len(whole["labels"]), NO_PARENT, np.int64)
    return Population.from_columns(whole)


class LivePage:
    """A run's live page. Made once for each server."""

    def __init__(self, run: Run, confidential: bool = False) -> None:
        """Make the page of `run`.

        A `confidential` one shows times and charges to the owner, too.
        """
        self.run = run
        self.confidential = confidential
        self.recipe, self.plan = public_plan(run)
        self._cache = dict[str, tuple[object, str]]()
        self._epsilon = (
            math.inf if run.noiseless else epsilon(self.plan.releases, self.recipe.privacy.delta)
        )

    def page(self) -> str:
        """Return the page without its pieces."""
        values = {
            "name": self.run.name,
            "confidential": self.confidential,
            "no_noise": NO_NOISE if self.run.noiseless else "",
            "steps": self.plan.steps,
            "warnings": sentences(
                notices(self.recipe, self.plan, self._epsilon), "guarantee", "votes"
            ),
        }
        return render("live.html", values)

    def pieces(
        self, state: str, waits: str = "", stands: dict[str, object] | None = None
    ) -> Pieces:
        """Return the current pieces of a run that is `running`, `stopped` or `finished`.

        Args:
            state: one of these three words.
            waits: what the run waits for.
            stands: the answer of `pe view --json`, for the owner's page alone.

        Raises:
            RunError: the run's files are damaged.
            OSError: a file has gone meanwhile; ask again.
        """
        progress = PublicProgress()
        populations = self.run.populations()
        count = len(populations)
        newest = None
        if has_journal(self.run):
            with read_journal(self.run) as journal:
                if journal.has_event("started"):  # else it was written after a purge
                    progress = public_progress(self.plan, journal)
                    newest = arriving(self.run, self.plan, progress.now, journal, count)
        pieces = {"standing": self._standing(progress, state, waits)}
        for t, one in enumerate(populations):
            pieces[f"S{t}"] = self._generation(one, t, "")
        now = progress.now
        if newest is not None and now is not None:
            note = f"; arriving, {now.done:,} of {now.phase.most:,}: the newest of each label"
            pieces[f"S{count}"] = self._generation(newest, count, note)
        votes = progress.votes
        # after a purge no journal tells it, but a finished run has all of its votes
        if self.run.is_finished and progress.totals is None:
            votes = len(self.plan.steps)
        pieces["votes"] = self._votes(min(votes, count), count)
        if self.confidential:
            values = costs(self.run) if has_journal(self.run) else {}
            pieces["private"] = render("live_private.html", values | {"stands": stands or {}})
        return pieces

    def _standing(self, progress: PublicProgress, state: str, waits: str) -> str:
        values = {
            "state": state,
            "progress": progress,
            "price": price_of(self.recipe),
            "recipe": self.recipe,
            "plan": self.plan,
            "epsilon": finite(self._epsilon),
            "waits": waits,
        }
        return render("live_standing.html", values)

    def _generation(self, population: Population, t: int, note: str) -> str:
        """Return S_t as a figure."""
        degree = self.plan.steps[t - 1].degree if t else None
        plan = self.plan

        def figure() -> str:
            return _part(
                "generation",
                strips(population, plan.classes),
                t,
                degree,
                plan.steps,
                plan.fit,
                note,
            )

        return self._remember(f"S{t}", note, figure)

    def _votes(self, votes: int, count: int) -> str:
        """Return the votes of the first `votes` iterations as charts and a table, or ""."""

        def figure() -> str:
            found = generations(self.run, self.recipe, self.plan)
            return _part("how_the_votes_went", [one for one in found if one.t <= votes])

        return self._remember("votes", (votes, count), figure) if votes else ""

    def _remember(self, piece: str, key: object, make: Callable[[], str]) -> str:
        if self._cache.get(piece, (None, ""))[0] != key:
            self._cache[piece] = (key, make())
        return self._cache[piece][1]


def _part(name: str, *values: object) -> str:
    """Return the HTML that the macro `name` of templates/parts.html makes of `values`."""
    return str(getattr(environment().get_template("parts.html").module, name)(*values))
