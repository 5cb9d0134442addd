"""The public clock of a run: its deadlines set before private work begins, and what misses them counted."""

from __future__ import annotations

import logging
from threading import Event

from pe.planning.deadlines import clock_terms, deadlines
from pe.planning.fitting import fit_dry_runs
from pe.plugins.protocols import Embedding, GenerationAPI
from pe.privacy.clock import PublicClock
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.steps import Plan
from pe.store.writer import RunWriter

log = logging.getLogger(__name__)


def public_clock(
    recipe: Recipe,
    plan: Plan,
    api: GenerationAPI,
    embedding: Embedding,
    run: RunWriter,
    progress: Progress,
    stop: Event,
) -> PublicClock:
    """The clock that the recipe asks for, its deadlines by tries on this machine; one without deadlines if it is off.

    If it is off although requests leave this process, that is warned of. A deadline that is missed is warned of, too,
    and stands among the run's events, which are confidential.

    Args:
        recipe: of the run.
        plan: of the recipe.
        api: asked whom it sends requests to.
        embedding: tried on blank samples.
        run: where missed deadlines are noted.
        progress: told of warnings.
        stop: set to wait for no deadline.
    """
    terms = clock_terms(recipe, api)
    if terms.warning:
        progress.warn(terms.warning)
    if not terms.on:
        return PublicClock()
    with progress.task("setting the public clock", None):
        private = recipe.private
        dry_runs = fit_dry_runs(recipe, private.labels, private.privacy_unit) if plan.fit else ()
        seconds, unheld = deadlines(recipe, plan, embedding, dry_runs)
    log.info("Public clock: %s; without a deadline: %s.", seconds, ", ".join(unheld) or "nothing")

    def overran(work: str) -> None:
        run.journal.add_event(f"overran {work}")
        progress.warn(
            f"Private work ({work}) took longer than its public deadline of {seconds[work]:g} s, so whoever watched "
            "the time has seen that; raise privacy.clock_slack before the run goes on."
        )

    return PublicClock(seconds, overran, stop)
