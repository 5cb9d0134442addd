"""The live page of a run, piece by piece.

Guarantee: the shareable page is post-processing of the releases and of the generator's answers. It holds no time, and
votes show only once something after them was asked or made (`pe.report.asked`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pe.data.population import Population
from pe.planning.build import price_of
from pe.planning.cautions import guarantee_warnings
from pe.planning.layout import plan_of
from pe.privacy.accounting import epsilon
from pe.privacy.words import NO_NOISE, finite
from pe.recipe.schema import Recipe
from pe.report.asked import Public, arriving, public_progress
from pe.report.diagnostics import generations
from pe.report.internal import costs
from pe.report.page import environment
from pe.report.pictures import strips
from pe.report.shareable import sorted_votes
from pe.steps import Plan
from pe.store.places import CERTIFICATE, RECIPE
from pe.store.run import Run
from pe.store.writer import has_journal, read_journal

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
