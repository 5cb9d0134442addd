"""A run is begun, or gone on with after a crash or a stop."""

from __future__ import annotations

from pathlib import Path

from pe.engine.execution import Execution, Surroundings
from pe.engine.private_side import IDENTITY
from pe.errors import DamagedFile, RunError
from pe.planning.meaning import differences
from pe.planning.other_fits import TAKEN, Taken, places_of
from pe.planning.readiness import check_place
from pe.plugins.protocols import info_of
from pe.privacy.words import NO_NOISE
from pe.recipe.schema import Recipe
from pe.steps import Plan
from pe.store.certified import is_export
from pe.store.export import examine
from pe.store.places import BANNER, CONFIDENTIAL, FULL_RECIPE, PUBLIC_SAMPLES, RECIPE, check_absent, new_name
from pe.store.releases import JournalReleases
from pe.store.run import Run
from pe.store.writer import RunWriter


def run_recipe(recipe: Recipe, out: Path | None, surroundings: Surroundings) -> Run:
    """Begin a run and carry it to its end.

    Args:
        recipe: what to run.
        out: the run's directory; must not exist. None: a new one below `runs/`.
        surroundings: what else it needs.

    Raises:
        PEError: nothing is written when the recipe or the private records are at fault; the run is
            there, to be resumed, when the generator fails later.
    """
    if out is not None:
        check_absent(out)
    check_place(recipe)
    execution = Execution.of(recipe, surroundings)
    recipe = execution.recipe  # with all of its evolution chosen
    execution.check_start()
    identity = execution.private.preflight()
    for other in places_of(execution.taken):
        execution.private.check_not_those_of(other)
    pool = execution.pool()
    pinned = {} if pool is None else {PUBLIC_SAMPLES: pool.pin(execution.private)}
    if execution.taken:
        pinned[TAKEN] = Taken.dump(execution.taken)
    if recipe.evolution.iterations:
        execution.private.try_embedding(info_of(execution.api).shape)
    execution.private.check_cap(execution.plan.releases)
    folder = out or Path("runs") / new_name(recipe.name)  # named now: how long reading the records took is not told
    recipes = {RECIPE: recipe.dump_shareable().encode(), FULL_RECIPE: recipe.dump().encode()}
    if recipe.privacy.noiseless:
        recipes[BANNER] = f"{NO_NOISE}\n".encode()
    with RunWriter.create(folder, {**recipes, **pinned, IDENTITY: identity.dump()}) as run:
        return execution.carry_out(run, "started")


def resume_run(folder: Path, surroundings: Surroundings, recipe: Recipe | None = None) -> Run:
    """Go on with a run from its last committed chunk; a finished one is only checked.

    Args:
        folder: the run's directory.
        surroundings: what else it needs; objects of the user's own must be handed over again.
        recipe: the recipe as it is to be now; None: as the run holds it. Only what concerns the
            machine may differ.

    Raises:
        RunError: the recipe, the private records or a stored file changed; what changed is named.
        DamagedFile: the run is finished, and a file was changed, lost or added since.
    """
    stored = stored_recipe(folder)
    if recipe is not None and not recipe.evolution.settled:
        recipe = recipe.chosen_as(stored)
    with RunWriter.reopen(folder) as run:
        changes = differences(stored, recipe or stored)
        if changes:
            raise RunError(f"{folder} cannot go on with another recipe: {'; '.join(changes)}. Start a new run for it.")
        if run.journal.happened("finished"):
            if problems := examine(folder)[1]:
                raise DamagedFile(f"{folder} is finished, and not as it was certified: {problems[0]}")
            return run.run
        execution = Execution.of(recipe or stored, surroundings)
        if not _all_drawn(run, execution.plan):
            execution.private.recognise(run)
        execution.check_pool(run)
        return execution.carry_out(run, "resumed")


def stored_recipe(folder: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """The whole recipe of the run in `folder`, with `changes` of the form `a.b=value`.

    Raises:
        RunError: there is no run, or its confidential side was purged.
    """
    path = Run.open(folder).folder / FULL_RECIPE
    if is_export(folder):
        raise RunError(
            f"{folder} is an export (it has no {CONFIDENTIAL}/), so it cannot be resumed: resume the run that it was "
            f"made from; `pe privacy {folder}` checks an export."
        )
    if not path.is_file():
        raise RunError(f"{folder} has lost its confidential side, so it cannot be resumed; `pe extend` still works.")
    return Recipe.load(path, changes)


def _all_drawn(run: RunWriter, plan: Plan) -> bool:
    """Whether every planned release is stored, so that the private records are not needed any more."""
    store = JournalReleases(run)
    found = (store.find(release.name) for release in plan.releases)
    return all(one is not None and one.array is not None for one in found)
