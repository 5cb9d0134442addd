"""A generator is fitted on the private records, once in a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from pe.fit.fitted import FITTED, Fitted, OtherFit
from pe.fit.trainer import FIT, MODEL, FitTerms, Fitting, Kept, PrivateRecords, Trainer, load_model
from pe.planning.fitting import fit_terms
from pe.planning.other_fits import Taken
from pe.privacy.ledger import Ledger
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.steps import Plan
from pe.store.writer import RunWriter


def fit_generator(
    recipe: Recipe,
    plan: Plan,
    api: Trainer,
    records: Callable[[], PrivateRecords],
    *,
    run: RunWriter,
    ledger: Ledger,
    progress: Progress,
    stop: Event,
    check_public: Callable[[], None],
    taken: Sequence[Taken],
) -> None:
    """Fit the generator, if that is not done already, and load what was fitted.

    Args:
        recipe: of the run.
        plan: of the recipe.
        api: the generator.
        records: the private ones.
        run: gets the model.
        ledger: charged with the fit's releases.
        progress: told what happens.
        stop: set from outside to stop.
        check_public: refuses public images that have changed.
        taken: what it takes from other runs.
    """
    if not run.journal.files(f"{MODEL}/"):  # a folder that the journal does not know of is made again
        terms = fit_terms(recipe, plan.classes, recipe.private.privacy_unit)
        with run.new_folder(MODEL) as folder:
            kept = run.run.confidential / "fit"
            api.fit(
                Fitting(
                    terms=terms,
                    private=records,
                    ledger=ledger,
                    folder=folder,
                    progress=progress,
                    stop=stop,
                    kept=Kept(kept),
                )
            )
            check_public()  # as they were read by the fit
            _describe(recipe, run, ledger, terms, folder, [one.fit for one in taken]).write(folder)
        if kept.exists():
            shutil.rmtree(kept)
    run.check_files(f"{MODEL}/")
    load_model(api, run.folder)


def _describe(
    recipe: Recipe, run: RunWriter, ledger: Ledger, terms: FitTerms, folder: Path, fits: Sequence[OtherFit]
) -> Fitted:
    """Describe the fit that has just ended and its cost, or the model that it took over."""
    if (folder / FITTED).exists():
        fitted = Fitted.read(folder)
        known = {(fitted.run, fitted.releases), *((one.run, one.releases) for one in fitted.built_on)}
        return replace(fitted, built_on=(*fitted.built_on, *(f for f in fits if (f.run, f.releases) not in known)))
    spent = [release for release in ledger.events() if release.name.startswith(FIT)]
    return Fitted(
        run=run.folder.name,
        kind=recipe.api.kind,
        settings=recipe.api.settings,
        classes=terms.classes,
        shape=terms.shape,
        releases=tuple(spent),
        holds=not ledger.unsafe,
        built_on=tuple(fits),
    )
