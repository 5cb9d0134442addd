"""What a recipe says of its generator's fit, where the generator is one that is fitted on the private records."""

from __future__ import annotations

from collections import Counter

from pe.errors import RecipeError
from pe.fit.trainer import DryRun, FitTerms, Rehearsing, Trainer
from pe.plugins.protocols import info_of
from pe.plugins.registry import construct, load, plugins
from pe.privacy.ledger import Budget
from pe.privacy.release import Release
from pe.recipe.schema import Recipe


def fit_dry_runs(recipe: Recipe, classes: tuple[str, ...], unit: str) -> tuple[DryRun, ...]:
    """What each part of the fit will take on this machine; none where nothing is fitted, or none can be told.

    Raises:
        RecipeError: see `fit_releases`; memory does not suffice.
    """
    trainer = _trainer(recipe)
    if not isinstance(trainer, Rehearsing):
        return ()
    return tuple(trainer.dry_run(fit_terms(recipe, classes, unit)))


def fit_releases(recipe: Recipe, classes: tuple[str, ...], unit: str) -> tuple[Release, ...]:
    """Every release of the fit, calibrated to its share of the budget; none where nothing is fitted.

    Raises:
        RecipeError: the recipe's `fit` is missing, superfluous or at odds with the rest of it, or two releases have
            one name.
    """
    trainer = _trainer(recipe)
    releases = () if trainer is None else tuple(trainer.planned(fit_terms(recipe, classes, unit)))
    twice = [name for name, count in Counter(release.name for release in releases).items() if count > 1]
    if twice:
        raise RecipeError(
            f"api: two parts of the fit of '{recipe.api.kind}' have a release named '{twice[0]}': leave one of them "
            "out of api.easy."
        )
    return releases


def is_fitted(kind: str) -> bool:
    """Whether a generator of this kind is one that is fitted on private records."""
    return kind in plugins("pe.adapters") and hasattr(load("pe.adapters", kind), "planned")


def _trainer(recipe: Recipe) -> Trainer | None:
    """The generator, if it is one that is fitted."""
    kind = recipe.api.kind
    if not is_fitted(kind):
        if recipe.api.fit is not None:
            raise RecipeError(f"api.fit is given, but '{kind}' is not fitted on private records: leave it out.")
        return None
    trainer = construct("pe.adapters", kind, recipe.api.settings)
    if not isinstance(trainer, Trainer):
        raise RecipeError(f"The adapter '{kind}' has `planned`, but lacks `fit` or `load`: see pe/fit/trainer.py.")
    return trainer


def fit_terms(recipe: Recipe, classes: tuple[str, ...], unit: str) -> FitTerms:
    """What the fit is planned from.

    Raises:
        RecipeError: see `fit_releases`.
    """
    privacy, private = recipe.privacy, recipe.private
    if privacy.noiseless:
        raise RecipeError(
            f"privacy is none, and '{recipe.api.kind}' is fitted on the private records with noise alone: give "
            "privacy.epsilon and delta, or take a generator that is not fitted."
        )
    if privacy.epsilon is None:
        raise RecipeError(f"privacy.noise_multiplier leaves no budget to fit '{recipe.api.kind}' with: give epsilon.")
    if private.declared_size is None:
        raise RecipeError(f"private.declared_size is missing: '{recipe.api.kind}' is fitted by that public number.")
    return FitTerms(
        classes=classes,
        shape=private.shape,
        declared_size=private.declared_size,
        relation=privacy.relation,
        unit=unit,
        budget=Budget(privacy.epsilon * _share(recipe), privacy.delta),
        seed=recipe.seed,
    )


def _share(recipe: Recipe) -> float:
    """The fit's share of ε: all of it where nothing evolves, or where the cost is settled."""
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    if info_of(load("pe.adapters", recipe.api.kind)).fitted_before:
        if share is not None:
            raise RecipeError(
                f"api.fit.budget_share is given, but what '{recipe.api.kind}' was fitted with is spent: leave it out."
            )
        return 1.0
    if recipe.evolution.iterations == 0 and recipe.evolution.estimate_label_sizes is None:
        return 1.0 if share is None else share
    if share is None:
        raise RecipeError(
            f"api.fit.budget_share is missing: say which share of epsilon fits '{recipe.api.kind}', and the rest "
            "evolves it; or take evolution.iterations: 0."
        )
    if share == 1:
        raise RecipeError("api.fit.budget_share is 1, which leaves nothing to evolve with: take less.")
    return share
