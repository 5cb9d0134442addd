"""`pe status`: where a run stands, also while another process writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.options import PATH, json_option

if TYPE_CHECKING:
    from pe.engine.phases import Phase
    from pe.engine.status import Progressed, Status


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@json_option
def status(run_folder: Path, as_json: bool) -> None:
    """Tell where RUN stands. It may be running: nothing is changed. The answer is confidential: it tells times."""
    from pe.engine.status import status_of
    from pe.planning.build import price_of
    from pe.planning.layout import plan_of
    from pe.recipe.schema import OBJECT, Recipe
    from pe.store.places import CERTIFICATE, RECIPE
    from pe.store.run import Run

    run = Run.open(run_folder)
    recipe = Recipe.load(run.folder / RECIPE)
    found = status_of(run, plan_of(run, recipe), price_of(recipe), recipe.privacy.delta)
    finished = (run.folder / CERTIFICATE).is_file()
    own = any(one.kind.startswith(OBJECT) for one in (recipe.api, recipe.embedding))
    known = {"run": str(run_folder), "noun": recipe.private.modality.noun}
    click.echo(json.dumps(known | found.to_dict()) if as_json else _page(run_folder, found, finished, own))


def _page(folder: Path, found: Status, certified: bool, own: bool) -> str:
    """The status as a person reads it; `own`: the run has an object of the user's, which Python alone hands over."""
    if found.journal is None:
        state = "finished; its" if certified else "its"
        return f"{folder}: {state} journal is gone (purged, or not copied), so calls, cost and times are unknown."
    title = f"{folder}: {found.state}"
    if found.state == "running":
        title += " (process unknown)" if found.pid is None else f" (process {found.pid})"
    elif found.state == "stopped":
        extends = found.journal.phase is not None and found.journal.phase.extends
        command = f"`pe extend {folder}` with the same numbers" if extends else f"`pe resume {folder}`"
        title += f"; {command} goes on" if not own else "; from Python it goes on, with the object of your own"
    if found.journal.since_purge:
        title += "; its first journal is gone (purged, or not copied), so what follows counts from then on"
    return "\n".join([title, *(f"  {key:<12}{value}" for key, value in _facts(found, found.journal))])


def _facts(found: Status, journal: Progressed) -> list[tuple[str, str]]:
    from pe.plugins.usage import KINDS
    from pe.privacy.words import NO_EPSILON, round_up

    spent, refused, cost = journal.totals.usage, journal.totals.refused, found.cost
    charged, planned = (round_up(epsilon, 4) for epsilon in (journal.epsilon_charged, found.epsilon_planned))
    total = f"ε = {charged} charged of {planned}, δ = {found.delta:g}"
    facts = [
        ("Iteration", f"{found.iteration} of {found.iterations}"),
        ("Phase", "none is left" if journal.phase is None else _phase(journal.phase)),
        ("Samples", f"{spent.images:,} (calls: {spent.calls:,}, refused: {refused:,})"),
        ("Cost", f"{cost:,.2f} {found.price.currency}" if not found.price.free else "free"),
        ("Privacy", total if found.promises else NO_EPSILON),
    ]
    if found.waits:
        facts.insert(2, ("Waits", found.waits))
    if found.degree is not None:
        facts.append(("Variations", f"as tried: {found.degree}"))
    if spent.tokens:
        told = ((getattr(spent, kind), kind) for kind in KINDS)
        kinds = ", ".join(f"{kind}: {count:,}" for count, kind in told if count)
        facts.insert(3, ("Tokens", f"{spent.tokens:,}{f' ({kinds})' if kinds else ''}"))
    if journal.events:
        (started, _), (at, event) = journal.events[0], journal.events[-1]
        facts += [("Begun", started), ("Last event", f"{event} {at}")]
    return facts


def _phase(phase: Phase) -> str:
    if phase.fits:
        return f"{phase.name}: the generator is being fitted on the private records"
    if phase.done is None or phase.total is None:
        return phase.name
    return f"{phase.name}: {phase.done:,} of {phase.total:,} samples ({phase.done / phase.total:.0%})"
