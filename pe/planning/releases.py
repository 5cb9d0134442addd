"""From a recipe's public numbers to its releases and to the plan that evolution follows.

Histograms take shares of μ² (constant noise: equal shares), class counts a share of ε; everything
is calibrated jointly, so that the whole meets the budget and no part is rounded twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pe.errors import PrivacyError, RecipeError, RunError, nearest_name
from pe.fit.trainer import FIT, DryRun, FitTerms, Rehearsing, Trainer
from pe.histogram import (
    CLASS_COUNTS,
    Voting,
    class_counts_release,
    histogram_release,
    histogram_releases,
)
from pe.planning.named import check_named
from pe.planning.parts import declared
from pe.plugins.devices import check_memory
from pe.plugins.protocols import info_of
from pe.plugins.registry import load, plugins
from pe.plugins.specs import construct
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import calibrate
from pe.privacy.certificate import certified_releases
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.recipe.schema import OBJECT, Evolution, Recipe, check_length
from pe.selection import SelectionRule
from pe.steps import Plan, Step
from pe.store.certified import read_certificate
from pe.store.machine import check_no_links
from pe.store.places import CERTIFICATE
from pe.store.run import Run

Value = TypeVar("Value")


@dataclass(frozen=True)
class PlanSettings:
    """The public settings that a run's releases depend on."""

    iterations: int  # T ≥ 0 histograms
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    neighbors: int = 1  # q, candidates that each record votes for
    # shares of μ² for the iterations; None: constant noise
    weights: tuple[float, ...] | None = None
    # share of ε for the release of the class counts, in (0, 1); None: not released
    class_counts: float | None = None
    # releases whose noise is given already (DP-SGD, semantic queries)
    preset: tuple[Release, ...] = ()


def plan(
    budget: Budget,
    settings: PlanSettings,
    noise_multiplier: float | None = None,
) -> list[Release]:
    """Return all releases of a run, with the least noise in the histograms that meets `budget`.

    If `noise_multiplier` is given, the histograms have it, and the ledger checks the total against
    the budget.
    """
    others = list(settings.preset)
    if settings.class_counts is not None:
        counts = class_counts_release(
            settings.class_counts,
            budget.epsilon,
            settings.relation,
            settings.unit,
        )
        others.insert(0, counts)
    if settings.iterations == 0:
        cost = 0.0 if settings.class_counts is None else epsilon(others, budget.delta)
        if cost > budget.epsilon:
            raise RecipeError(
                f"The fit and the label counts cost ε = {cost:.4g} together, but the run has "
                f"{budget.epsilon:g}. Lower `api.fit.budget_share` or "
                "`evolution.estimate_label_sizes`."
            )
        return others
    if noise_multiplier is None:
        # The accountant is asked many times, and one release with a count is faster than T.
        together = settings.weights is None
        noise_multiplier = calibrate(
            lambda z: [*others, *_histograms(z, settings, together)],
            budget,
        )
    return [*others, *_histograms(noise_multiplier, settings)]


def _histograms(z: float, settings: PlanSettings, together: bool = False) -> list[Release]:
    """Return the histograms one by one, or equal ones `together` as one release with a count."""
    releases = histogram_releases(
        z,
        1 if together else settings.iterations,
        relation=settings.relation,
        unit=settings.unit,
        neighbors=settings.neighbors,
        weights=settings.weights,
    )
    if together:
        return [replace(release, count=settings.iterations) for release in releases]
    return releases


def noise_multiplier_for(
    budget: Budget,
    iterations: int,
    relation: Relation = Relation.ADD_REMOVE,
) -> float:
    """Return the least noise multiplier with which `iterations` ≥ 1 histograms meet `budget`.

    It is rounded up.
    """
    return calibrate(lambda z: _equal_histograms(z, iterations, relation), budget)


def epsilon_for(
    noise_multiplier: float,
    iterations: int,
    delta: float,
    relation: Relation = Relation.ADD_REMOVE,
) -> float:
    """Return ε of `iterations` ≥ 1 histograms with that noise multiplier, rounded up."""
    return epsilon(_equal_histograms(noise_multiplier, iterations, relation), delta)


def _equal_histograms(z: float, iterations: int, relation: Relation) -> list[Release]:
    if iterations < 1:
        raise PrivacyError(
            f"There are {iterations} iterations, and each releases a histogram. Take at least 1."
        )
    return _histograms(z, PlanSettings(iterations, relation), together=True)


def planned_releases(recipe: Recipe) -> list[Release]:
    """Return every release of the run, its fit included.

    Noise is calibrated to ε, or as the recipe gives it.
    """
    privacy = recipe.privacy
    evolution = recipe.evolution
    unit = recipe.private.privacy_unit
    fit = fit_releases(recipe)
    if privacy.noiseless:
        histograms = [
            histogram_release(t, None, privacy.relation, unit, evolution.neighbors)
            for t in range(1, evolution.iterations + 1)
        ]
        return [*fit, *histograms]
    settings = PlanSettings(
        evolution.iterations,
        privacy.relation,
        unit,
        evolution.neighbors,
        weights=None if privacy.schedule is None else tuple(privacy.schedule),
        class_counts=evolution.estimate_label_sizes,
        preset=fit,
    )
    if privacy.epsilon is not None:
        return plan(Budget(privacy.epsilon, privacy.delta), settings)
    # Only label counts use this ε, and the recipe has none unless it states ε itself.
    return plan(Budget(1.0, privacy.delta), settings, privacy.noise_multiplier)


def budget_of(recipe: Recipe, plan: Plan) -> Budget | None:
    """Return the target (ε, δ), or the cost of all releases if their noise is given.

    A run without noise has no budget.
    """
    delta = recipe.privacy.delta
    if recipe.privacy.noiseless:
        return None
    if recipe.privacy.epsilon is not None:
        return Budget(recipe.privacy.epsilon, delta)
    return Budget(max(epsilon(plan.releases, delta), 1e-9), delta)


# The generator's fit, where it is one that is fitted on the private records.


def fit_dry_runs(recipe: Recipe, measured: bool = True) -> tuple[DryRun, ...]:
    """Try each part of the fit on this machine.

    The result is empty if nothing is fitted, or if the generator cannot be tried. Without
    `measured`, only what public numbers foretell is tried.
    """
    trainer = _trainer(recipe)
    if not isinstance(trainer, Rehearsing):
        return ()
    return tuple(trainer.dry_run(fit_terms(recipe), measured))


def check_fit(recipe: Recipe) -> None:
    """Refuse a fit if this machine lacks the memory for it, before ε is spent.

    Only public numbers are used.
    """
    trainer = _trainer(recipe)
    if trainer is None or info_of(trainer).fitted_before:
        return
    count = fit_terms(recipe).declared_size
    modality = recipe.private.modality
    held = 2 * count * modality.stack([None], recipe.private.shape).array.nbytes
    what = f"To hold all {count:,} private {modality.noun} for the fit"
    check_memory(held, what, "take a machine with more memory, or declare smaller records")
    fit_dry_runs(recipe, measured=False)


def fit_releases(recipe: Recipe) -> tuple[Release, ...]:
    """Return every release of the fit, calibrated to its share of the budget.

    There is none if nothing is fitted.
    """
    trainer = _trainer(recipe)
    releases = () if trainer is None else tuple(trainer.plan_releases(fit_terms(recipe)))
    names = Counter(release.name for release in releases)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise RecipeError(
            f"Two parts of the fit of '{recipe.api.kind}' have a release named '{twice[0]}'. "
            "Remove one of them from `api.easy`."
        )
    return releases


def is_fitted(kind: str) -> bool:
    """True for a kind of generator that is fitted on private records."""
    return kind in plugins("pe.adapters") and hasattr(load("pe.adapters", kind), "plan_releases")


def _trainer(recipe: Recipe) -> Trainer | None:
    kind = recipe.api.kind
    if not is_fitted(kind):
        if recipe.api.fit is not None:
            raise RecipeError(f"'{kind}' is not fitted on private records. Remove `api.fit`.")
        return None
    trainer = construct("pe.adapters", kind, recipe.api.settings)
    if not isinstance(trainer, Trainer):
        raise RecipeError(
            f"Adapter '{kind}' has `plan_releases`, but lacks `fit` or `load`: see "
            "pe/fit/trainer.py."
        )
    return trainer


def fit_terms(recipe: Recipe) -> FitTerms:
    """Return the public terms of the fit."""
    privacy = recipe.privacy
    private = recipe.private
    if privacy.noiseless:
        raise RecipeError(
            f"'{recipe.api.kind}' is fitted on the private records, which needs noise, but the "
            "recipe has `privacy: none`. Set `privacy.epsilon` and `privacy.delta`, or use a "
            "generator that is not fitted."
        )
    if privacy.epsilon is None:
        raise RecipeError(
            f"`privacy.noise_multiplier` leaves no budget to fit '{recipe.api.kind}' with. Set "
            "`privacy.epsilon` instead."
        )
    if private.declared_size is None:
        raise RecipeError(
            f"The fit of '{recipe.api.kind}' needs the public number of records. Set "
            "`private.declared_size`."
        )
    return FitTerms(
        classes=private.labels,
        shape=private.shape,
        declared_size=private.declared_size,
        relation=privacy.relation,
        unit=private.privacy_unit,
        budget=Budget(privacy.epsilon * _share(recipe), privacy.delta),
        seed=recipe.seed,
        embedding=None if recipe.embedding.kind.startswith(OBJECT) else recipe.embedding,
    )


def _share(recipe: Recipe) -> float:
    """Return the fit's share of ε.

    It is all that label counts leave if nothing evolves, and all that an earlier run paid if that
    run fitted the model.
    """
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    info = info_of(load("pe.adapters", recipe.api.kind))
    if info.fitted_before:
        if share is not None:
            raise RecipeError(
                f"'{recipe.api.kind}' was fitted before, and that budget is spent. Remove "
                "`api.fit.budget_share`."
            )
        return 1.0
    counted = recipe.evolution.estimate_label_sizes
    # Nothing evolves, so what the label counts leave would be lost.
    if recipe.evolution.iterations == 0:
        return 1.0 - (counted or 0.0) if share is None else share
    share = info.fit_share if share is None else share
    if share is None:
        raise RecipeError(
            f"Set `api.fit.budget_share`, the share of ε that fits '{recipe.api.kind}'; the votes "
            "get the rest. Or set `evolution.iterations: 0`."
        )
    if share == 1:
        raise RecipeError(
            "`api.fit.budget_share` is 1, which leaves no budget for votes. Lower it, or set "
            "`evolution.iterations: 0`."
        )
    return share


# The plan.


def lay_out(
    recipe: Recipe,
    counts: Sequence[float] | None = None,
    releases: Sequence[Release] | None = None,
) -> Plan:
    """Return the plan of a recipe, from public numbers and noisy counts alone.

    Args:
        recipe: the recipe.
        counts: the noisy label counts, where the recipe has them estimated; while they are None,
            labels count as equal.
        releases: all releases of the run; None: they are planned, which for a fit can take many
            seconds and needs the fit's files.
    """
    evolution = recipe.evolution
    if not evolution.is_complete:
        raise RecipeError(
            "evolution.iterations or evolution.population is missing: give both, or have them "
            "chosen by pe.planning.choice.choose_evolution."
        )
    _check_schedules(recipe)
    populations = _schedule(evolution.population, evolution.iterations + 1)
    sizes = [apportion(recipe, t, total, counts) for t, total in enumerate(populations)]
    # A finished run's releases come from its certificate, and must not be planned anew.
    if releases is None:
        releases = planned_releases(recipe)
    fit = tuple(release for release in releases if release.name.startswith(FIT))
    histograms = [
        release for release in releases if release.name != CLASS_COUNTS and release not in fit
    ]
    return Plan(
        classes=recipe.private.labels,
        sizes=sizes[0],
        steps=_steps(evolution, sizes, histograms),
        initial_variations=evolution.initial_variations,
        voting=Voting(evolution.neighbors, evolution.metric, evolution.neighbor_search),
        seed=recipe.seed,
        class_counts=next((release for release in releases if release.name == CLASS_COUNTS), None),
        fit=fit,
        smooth=evolution.votes == "smooth",
    )


def plan_of(run: Run, recipe: Recipe) -> Plan:
    """Return the plan of a run, from its recipe.

    A finished run's releases are taken from its certificate.

    Raises:
        RunError: the run was made elsewhere and holds links or pipes. Whoever asks reads its files
            next.
    """
    check_no_links(run.folder)
    if not run.is_finished:
        if is_fitted(recipe.api.kind):  # whose plan may read files that the recipe names
            check_named(run.folder, recipe, (), "api")
        return lay_out(recipe)
    try:
        of_certificate = {
            release.name: release for release in certified_releases(read_certificate(run.folder))
        }
        return lay_out(recipe, releases=list(of_certificate.values()))
    except (KeyError, TypeError, ValueError, PrivacyError) as error:
        raise RunError(f"{run.folder / CERTIFICATE} is damaged: restore it from a copy.") from error


def _check_schedules(recipe: Recipe) -> None:
    """Refuse a list among the generator's settings that has not one entry per iteration."""
    api = recipe.api
    for name in declared("pe.adapters", api.kind).schedules:
        try:
            check_length(f"api.{name}", api.settings.get(name), recipe.evolution.iterations)
        except ValueError as error:
            raise RecipeError(f"{error}.") from error


def _steps(
    evolution: Evolution,
    sizes: Sequence[tuple[int, ...]],
    histograms: Sequence[Release],
) -> tuple[Step, ...]:
    keys = (
        evolution.degree,
        evolution.lookahead,
        evolution.selection,
        evolution.keep,
        evolution.offspring,
    )
    schedules = [_schedule(key, evolution.iterations) for key in keys]
    rows = zip(histograms, *schedules, strict=True)
    steps = []
    for t, (release, degree, k, selection, keep, offspring) in enumerate(rows, start=1):
        before = sizes[t - 1]
        after = sizes[t]
        shrinks = any(one < other for one, other in zip(after, before, strict=True))
        if keep == "all" and shrinks:
            raise RecipeError(
                f"`evolution.keep: all` keeps all {sum(before):,} members of S_{t - 1}, but S_{t} "
                f"has {sum(after):,}. Let `evolution.population` grow, or set `keep: winners`."
            )
        # At degree 0 every variation equals its parent, so there is nothing to look ahead to.
        step = Step(
            t=t,
            sizes=after,
            degree=degree,
            lookahead=k if degree else 0,
            threshold=_threshold(evolution, release, t),
            release=release,
            selection_rule=SelectionRule(selection, keep, offspring),
            reuse=k if evolution.reuse_lookahead and degree else 0,
        )
        steps.append(step)
    return tuple(steps)


def _threshold(evolution: Evolution, release: Release, t: int) -> float:
    """Return H of iteration t, in votes."""
    if evolution.threshold_sigmas is not None:
        sigma = release.sensitivity * release.noise_multiplier
        return _schedule(evolution.threshold_sigmas, evolution.iterations)[t - 1] * sigma
    return _schedule(evolution.threshold or 0.0, evolution.iterations)[t - 1]


def _schedule(value: Value | list[Value], length: int) -> list[Value]:
    """Return one value for each step: the list itself, or one value `length` times."""
    return value if isinstance(value, list) else [value] * length


def apportion(
    recipe: Recipe,
    t: int,
    total: int,
    counts: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Divide S_t's `total` members among labels, in public or noisily counted proportions."""
    evolution = recipe.evolution
    classes = recipe.private.labels
    least = evolution.neighbors if t < evolution.iterations else 1
    if counts is not None:  # at least so many of every label: whether one is empty is private
        positive = [max(count, 0.0) for count in counts]
        shares = positive if sum(positive) else [1.0] * len(counts)
        return tuple(
            least + more for more in _largest_remainders(total - least * len(counts), shares)
        )
    sizes = _largest_remainders(total, _public_shares(evolution, classes))
    for name, size in zip(classes, sizes, strict=True):
        if size < least:
            raise RecipeError(
                f"S_{t} has {size} members of label '{name}', but each record votes for "
                f"{evolution.neighbors}. Raise `evolution.population`, or lower "
                "`evolution.neighbors`."
            )
    return sizes


def _public_shares(evolution: Evolution, classes: tuple[str, ...]) -> list[float]:
    sizes = evolution.label_sizes
    if sizes == "equal":
        return [1.0] * len(classes)
    for name in sizes:
        if name not in classes:
            raise RecipeError(
                f"evolution.label_sizes: unknown label '{name}'; {nearest_name(name, classes)}"
            )
    missing = [name for name in classes if name not in sizes]
    if missing:
        raise RecipeError(f"evolution.label_sizes: label '{missing[0]}' is missing.")
    return [sizes[name] for name in classes]


def _largest_remainders(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` in proportion to `shares` into whole numbers. Ties go to the lowest index."""
    quotas = [total * share / sum(shares) for share in shares]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(
        range(len(shares)),
        key=lambda label: (sizes[label] - quotas[label], label),
    )
    for label in by_remainder[: total - sum(sizes)]:
        sizes[label] += 1
    return tuple(sizes)
