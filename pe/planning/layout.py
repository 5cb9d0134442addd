"""A budget plan: how a run's ε is spread over its histograms, its class counts and all else.

Histograms take shares of μ² (constant noise: equal shares), class counts a share of ε; everything is
calibrated jointly, so that the whole meets the budget and no part is rounded twice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pe.class_counts import CLASS_COUNTS, class_counts_release
from pe.data.strict_json import json_object
from pe.errors import DamagedFile, PEError, PrivacyError, RecipeError, RunError, nearest_name
from pe.fit.trainer import FIT, FITTED, MODEL, DryRun, Fitted, FitTerms, OtherFit, Rehearsing, Trainer
from pe.histogram import Voting, histogram_release, histogram_releases
from pe.plugins.protocols import info_of
from pe.plugins.registry import construct, load, plugins
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import calibrate
from pe.privacy.certificate import certified_releases
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.privacy.words import NOT_DECLARED
from pe.recipe.schema import OBJECT, Evolution, Recipe, check_length
from pe.selection import Descent
from pe.steps import Plan, Step
from pe.store.certified import read_certificate
from pe.store.places import CERTIFICATE, CONFIDENTIAL, RECIPE
from pe.store.run import Run


@dataclass(frozen=True)
class PlanSettings:
    """What a plan depends on; all of it public.

    Attributes:
        iterations: T ≥ 0 histograms.
        relation: the neighbouring relation.
        unit: the privacy unit.
        neighbors: q, candidates that each record votes for.
        weights: shares of μ² for the iterations; None: constant noise.
        class_counts: share of ε for the release of the class counts, in (0, 1); None: not released.
        fixed: releases whose noise is given already (DP-SGD, semantic queries).
    """

    iterations: int
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    neighbors: int = 1
    weights: tuple[float, ...] | None = None
    class_counts: float | None = None
    fixed: tuple[Release, ...] = ()


def plan(budget: Budget, settings: PlanSettings) -> list[Release]:
    """All releases of a run, with the least noise in the histograms that meets `budget`.

    Raises:
        PrivacyError: a setting out of range, or the other releases leave nothing for the histograms.
    """
    others = _others(budget, settings)
    if settings.iterations == 0:
        return others
    z = calibrate(lambda z: [*others, *_histograms(z, settings, together=settings.weights is None)], budget)
    return [*others, *_histograms(z, settings)]


def plan_with(noise_multiplier: float, settings: PlanSettings, budget: Budget) -> list[Release]:
    """All releases of a run whose histograms' noise multiplier is given; the ledger judges the total."""
    return [*_others(budget, settings), *_histograms(noise_multiplier, settings)]


def _others(budget: Budget, settings: PlanSettings) -> list[Release]:
    if settings.class_counts is None:
        return list(settings.fixed)
    counts = class_counts_release(settings.class_counts, budget.epsilon, settings.relation, settings.unit)
    return [counts, *settings.fixed]


def _histograms(z: float, settings: PlanSettings, together: bool = False) -> list[Release]:
    """One by one; or, for the accountant, equal ones `together` as one release with a count."""
    releases = histogram_releases(
        z,
        1 if together else settings.iterations,
        relation=settings.relation,
        unit=settings.unit,
        neighbors=settings.neighbors,
        weights=settings.weights,
    )
    return [replace(release, count=settings.iterations) for release in releases] if together else releases


def noise_multiplier_for(budget: Budget, iterations: int, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The least noise multiplier with which `iterations` ≥ 1 histograms meet `budget`, rounded up.

    Raises:
        PrivacyError: no iteration, or a budget that no noise meets.
    """
    settings = _count_release(iterations, relation)
    return calibrate(lambda z: _histograms(z, settings, together=True), budget)


def epsilon_for(
    noise_multiplier: float, iterations: int, delta: float, relation: Relation = Relation.ADD_REMOVE
) -> float:
    """ε of `iterations` ≥ 1 histograms with that noise multiplier, rounded up.

    Raises:
        PrivacyError: no iteration, or another number out of range.
    """
    return epsilon(_histograms(noise_multiplier, _count_release(iterations, relation), together=True), delta)


def _count_release(iterations: int, relation: Relation) -> PlanSettings:
    if iterations < 1:
        raise PrivacyError(f"There are {iterations} iterations, and each releases a histogram: give 1 or more.")
    return PlanSettings(iterations, relation)


# What a recipe says of its generator's fit, where the generator is one that is fitted on the private records.


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


# From the recipe's public numbers to the plan that evolution follows.


Value = TypeVar("Value")


def lay_out(
    recipe: Recipe,
    classes: tuple[str, ...],
    unit: str,
    counts: Sequence[float] | None = None,
    releases: Sequence[Release] | None = None,
) -> Plan:
    """The plan of a recipe; reads public numbers, and noisy counts, only.

    Args:
        recipe: the recipe.
        classes: the public label names.
        unit: the privacy unit's name.
        counts: the noisy label counts, where the recipe has them estimated; None while they are not
            there: the labels then count as equal.
        releases: all of the run's, where they are known; None: they are planned, which for a fit can take many seconds
            and needs what it learns from.

    Raises:
        RecipeError: a population that the labels do not divide, or has fewer members of a label than q; a list of the
            generator's that has not one entry per iteration.
    """
    evolution = recipe.evolution
    if not evolution.settled:
        raise RecipeError(
            "evolution.iterations or evolution.population is missing: give both, or have them chosen by "
            "pe.planning.choice.settle."
        )
    _check_schedules(recipe)
    populations = _schedule(evolution.population, evolution.iterations + 1)
    sizes = [apportion(total, classes, evolution, t, counts) for t, total in enumerate(populations)]
    if releases is None:
        releases = planned_releases(recipe, unit, fit_releases(recipe, classes, unit))
    fit = tuple(release for release in releases if release.name.startswith(FIT))
    histograms = [release for release in releases if release.name != CLASS_COUNTS and release not in fit]
    counted = next((release for release in releases if release.name == CLASS_COUNTS), None)
    return Plan(
        classes=classes,
        sizes=sizes[0],
        steps=_steps(evolution, sizes, histograms),
        initial_variations=evolution.initial_variations,
        voting=Voting(evolution.neighbors, evolution.metric, evolution.neighbor_search),
        seed=recipe.seed,
        class_counts=counted,
        fit=fit,
    )


def _check_schedules(recipe: Recipe) -> None:
    """Refuse a list among the generator's settings that has not one entry per iteration."""
    api = recipe.api
    for name in info_of(load("pe.adapters", api.kind)).schedules if api.kind in plugins("pe.adapters") else ():
        try:
            check_length(f"api.{name}", api.settings.get(name), recipe.evolution.iterations)
        except ValueError as error:
            raise RecipeError(f"{error}.") from error


def _steps(evolution: Evolution, sizes: Sequence[tuple[int, ...]], histograms: Sequence[Release]) -> tuple[Step, ...]:
    degrees = _schedule(evolution.degree, evolution.iterations)
    lookaheads = _schedule(evolution.lookahead, evolution.iterations)
    descents = _descents(evolution, sizes)
    return tuple(
        Step(
            t=t,
            sizes=sizes[t],
            degree=degree,
            lookahead=k if degree else 0,
            threshold=_threshold(evolution, release, t),
            release=release,
            descent=descent,
            reuse=k if evolution.reuse_lookahead and degree else 0,
        )
        for t, (release, degree, k, descent) in enumerate(
            zip(histograms, degrees, lookaheads, descents, strict=True), start=1
        )
    )


def _descents(evolution: Evolution, sizes: Sequence[tuple[int, ...]]) -> list[Descent]:
    """How each of S_1 … S_T follows from the votes."""
    keys = (evolution.selection, evolution.keep, evolution.offspring)
    found = [Descent(*one) for one in zip(*(_schedule(key, evolution.iterations) for key in keys), strict=True)]
    for t, (how, before, after) in enumerate(zip(found, sizes, sizes[1:], strict=False), start=1):
        if how.keep == "all" and any(one < other for one, other in zip(after, before, strict=True)):
            raise RecipeError(
                f"evolution.keep: S_{t} is to keep all {sum(before):,} members of S_{t - 1}, and has {sum(after):,}: "
                "give a population that grows, or keep winners."
            )
    return found


def plan_of(run: Run, recipe: Recipe) -> Plan:
    """The plan of a run, from its recipe; the releases of a finished one are those of its certificate.

    Raises:
        RunError: the certificate is damaged.
        RecipeError: see `lay_out`.
    """
    classes, unit = recipe.private.labels, recipe.private.privacy_unit
    if not (run.folder / CERTIFICATE).is_file():
        return lay_out(recipe, classes, unit)
    try:
        certified = {release.name: release for release in certified_releases(read_certificate(run.folder))}
        return lay_out(recipe, classes, unit, releases=list(certified.values()))
    except (KeyError, TypeError, ValueError, PrivacyError) as error:
        raise RunError(f"{run.folder / CERTIFICATE} is damaged: restore it from a copy.") from error


def planned_releases(recipe: Recipe, unit: str, fit: tuple[Release, ...] = ()) -> list[Release]:
    """Every release of the run, `fit` included; the noise calibrated to the target ε or as the recipe gives it."""
    privacy, evolution = recipe.privacy, recipe.evolution
    if privacy.noiseless:
        times = range(1, evolution.iterations + 1)
        return [*fit, *(histogram_release(t, None, privacy.relation, unit, evolution.neighbors) for t in times)]
    settings = PlanSettings(
        evolution.iterations,
        privacy.relation,
        unit,
        evolution.neighbors,
        weights=None if privacy.schedule is None else tuple(privacy.schedule),
        class_counts=evolution.estimate_label_sizes,
        fixed=fit,
    )
    if privacy.epsilon is not None:
        return plan(Budget(privacy.epsilon, privacy.delta), settings)
    assert privacy.noise_multiplier is not None
    return plan_with(privacy.noise_multiplier, settings, Budget(1.0, privacy.delta))


def apportion(
    total: int, classes: tuple[str, ...], evolution: Evolution, t: int, counts: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Members of S_t per label: equal, or in public (or noisily counted) proportions by largest remainders.

    Raises:
        RecipeError: see `lay_out`.
    """
    least = evolution.neighbors if t < evolution.iterations else 1
    if counts is not None:
        return _by_counts(total, counts, least)
    sizes = _equal(total, classes, t) if evolution.label_sizes == "equal" else _proportional(total, classes, evolution)
    for name, size in zip(classes, sizes, strict=True):
        if size < least:
            raise RecipeError(
                f"evolution.population: S_{t} has {size} members of label '{name}', and each record votes for "
                f"{evolution.neighbors}: take a larger population or fewer neighbors."
            )
    return sizes


def _equal(total: int, classes: tuple[str, ...], t: int) -> tuple[int, ...]:
    if total % len(classes):
        below, above = (total // len(classes) * len(classes) + more for more in (0, len(classes)))
        fitting = f"{below} or {above}" if below else f"{above}"
        raise RecipeError(
            f"evolution.population: {total} members of S_{t} cannot be divided equally among {len(classes)} labels: "
            f"take {fitting}, or state evolution.label_sizes."
        )
    return (total // len(classes),) * len(classes)


def _proportional(total: int, classes: tuple[str, ...], evolution: Evolution) -> tuple[int, ...]:
    assert isinstance(evolution.label_sizes, dict)
    for name in evolution.label_sizes:
        if name not in classes:
            raise RecipeError(f"evolution.label_sizes: unknown label '{name}'; {nearest_name(name, classes)}")
    missing = [name for name in classes if name not in evolution.label_sizes]
    if missing:
        raise RecipeError(f"evolution.label_sizes: label '{missing[0]}' is missing.")
    return _largest_remainders(total, [evolution.label_sizes[name] for name in classes])


def _by_counts(total: int, counts: Sequence[float], least: int) -> tuple[int, ...]:
    """In proportion to the noisy counts, but `least` for every label: whether one is empty is private."""
    positive = [max(count, 0.0) for count in counts]
    shares = positive if sum(positive) else [1.0] * len(counts)
    return tuple(least + more for more in _largest_remainders(total - least * len(counts), shares))


def _largest_remainders(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """`total` divided in proportion to `shares` into whole numbers; ties to the lowest index."""
    quotas = [total * share / sum(shares) for share in shares]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda label: (sizes[label] - quotas[label], label))
    for label in by_remainder[: total - sum(sizes)]:
        sizes[label] += 1
    return tuple(sizes)


def _threshold(evolution: Evolution, release: Release, t: int) -> float:
    """H of iteration t, in votes."""
    if evolution.threshold_sigmas is not None:
        sigma = release.sensitivity * release.noise_multiplier
        return _schedule(evolution.threshold_sigmas, evolution.iterations)[t - 1] * sigma
    return 0.0 if evolution.threshold is None else _schedule(evolution.threshold, evolution.iterations)[t - 1]


def _schedule(value: Value | list[Value], length: int) -> list[Value]:
    """A number for every step: the list itself, or one number `length` times."""
    return value if isinstance(value, list) else [value] * length


def budget_of(recipe: Recipe, plan: Plan) -> Budget | None:
    """The recipe's target (ε, δ); with a given noise multiplier, what the planned releases cost; None without noise."""
    delta = recipe.privacy.delta
    if recipe.privacy.noiseless:
        return None
    if recipe.privacy.epsilon is not None:
        return Budget(recipe.privacy.epsilon, delta)
    return Budget(max(epsilon(plan.releases, delta), 1e-9), delta)


# Find models and data of other runs in a recipe: each is counted in its plan, or declared disjoint.
#
# A run's model and its data know their runs (`fitted.json`, `certificate.json`), so every path that a recipe names is
# looked at, at whatever depth it stands: in a warm start, a portfolio, a part, a checkpoint.


TAKEN = f"{CONFIDENTIAL}/taken.json"
"""In a run's folder, what it takes from others; with their places, so it is confidential."""


@dataclass(frozen=True)
class Taken:
    """A model or data of another run that a recipe takes.

    Attributes:
        place: the run's folder, or that of a copy of its model.
        fit: what the run released, or a run whose model it had taken.
    """

    place: Path
    fit: OtherFit

    @classmethod
    def read(cls, run: Path) -> tuple[Taken, ...]:
        """Read the note in the folder `run`; empty: there is none.

        Raises:
            DamagedFile: the note cannot be read.
        """
        path = run / TAKEN
        if not path.is_file():
            return ()
        try:
            content = json_object(path.read_text(encoding="utf-8"))["taken"]
            return tuple(cls(Path(one["place"]), OtherFit.from_dict(one)) for one in content)
        except (ValueError, KeyError, TypeError, PrivacyError) as error:
            raise DamagedFile(f"{path} is damaged: restore it from a copy.") from error

    @staticmethod
    def dump(taken: Sequence[Taken]) -> bytes:
        """Return the content of TAKEN."""
        return json.dumps({"taken": [{"place": str(one.place), **one.fit.to_dict()} for one in taken]}).encode()


def places_of(taken: Sequence[Taken]) -> set[Path]:
    """The runs whose records are declared to be of nobody in this run's: those that are not counted, and theirs."""
    places: set[Path] = set()
    open_places = [one.place for one in taken if not one.fit.counted]
    while open_places:
        if (place := open_places.pop()) not in places:
            places.add(place)
            open_places += [one.place for one in Taken.read(place)]
    return places


def taken_from_runs(recipe: Recipe, releases: Sequence[Release], *built: object) -> tuple[Taken, ...]:
    """All that a recipe takes from other runs; no record is read.

    Args:
        recipe: the recipe.
        releases: of its plan.
        built: its generator and embedding, which may declare more than it names.

    Raises:
        RecipeError: what one released is neither counted in the plan nor declared disjoint, has no guarantee, or is for
            another relation or unit; or there is no such run.
    """
    if recipe.privacy.noiseless:
        return ()
    planned = Counter(replace(release, name="-") for release in releases)
    by_place: dict[tuple[Path, int], Taken] = {}
    for path, says in _named(recipe, built):
        for place, fits in _runs_near(path, fitted_before=bool(says)):
            for i, fit in enumerate(fits):
                spent = Counter(replace(release, name="-") for release in fit.releases)
                if counted := says == "may_overlap" and spent <= planned:
                    planned -= Counter() if (place, i) in by_place else spent
                elif says != "disjoint" and recipe.privacy.private_sets != "disjoint":
                    raise RecipeError(
                        f"{path} comes from the run '{fit.run}', whose private records may be these, and what that "
                        "released is not counted here: take its model by `kind: trained`, which counts it, or, if no "
                        "privacy unit is in both private sets, say so by privacy.private_sets: disjoint."
                    )
                _check_same_kind(recipe, path, fit)
                if not counted or (place, i) not in by_place:
                    by_place[place, i] = Taken(place, replace(fit, counted=counted))
    return tuple(by_place.values())


def undeclared(recipe: Recipe, api: object) -> bool:
    """True for a generator object that does not declare what it takes from other runs."""
    return recipe.api.kind.startswith(OBJECT) and info_of(api).disjoint_from is None


def taken_obstacles(recipe: Recipe, releases: Sequence[Release]) -> list[str]:
    """Why `taken_from_runs` would refuse a start."""
    try:
        taken_from_runs(recipe, releases)
    except PEError as error:
        return [f"A run would not start: {str(error)[:1].lower()}{str(error)[1:]}"]
    return []


def _named(recipe: Recipe, built: Sequence[object]) -> Iterator[tuple[Path, str]]:
    """Every path that a recipe or an object names, with what stands beside it of the private sets."""
    yield from _paths({"kind": recipe.api.kind, **recipe.api.settings})
    yield from _paths(recipe.embedding.settings)
    for plugin in built:
        for path in info_of(plugin).disjoint_from or ():
            if not _runs_near(Path(path), fitted_before=True):
                raise RecipeError(f"{type(plugin).__name__}.info.disjoint_from: {path} holds no run's model or data.")
            yield Path(path), "disjoint"


def _paths(value: Any, says: str = "") -> Iterator[tuple[Path, str]]:
    if isinstance(value, str | Path):
        yield Path(value), says
    elif isinstance(value, Mapping):
        kind = value.get("kind")
        if (
            isinstance(kind, str)
            and kind in plugins("pe.adapters")
            and info_of(load("pe.adapters", kind)).fitted_before
        ):
            says = str(value.get("private_sets", "may_overlap"))
        for inner in value.values():
            yield from _paths(inner, says if isinstance(inner, str | Path) else "")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths(inner, says)


def _runs_near(path: Path, fitted_before: bool) -> list[tuple[Path, list[OtherFit]]]:
    """The runs that a path leads to: it lies in their model or their folder, or holds these; each with what it spent.

    Args:
        path: a file, a folder, or any text.
        fitted_before: it is named as a run whose model is meant, and nothing else of it.
    """
    try:
        if path == Path() or not path.expanduser().exists():
            return []
        here = path.expanduser().resolve()
        folder = path.is_absolute() and here.is_dir()  # else it may be a word that names a folder by chance
        within = [one.path for one in os.scandir(here) if one.is_dir()] if folder else []
    except (OSError, ValueError, RuntimeError):  # a text that is no path
        return []
    above = list(dict.fromkeys((here, *here.parents, *path.absolute().parents)))
    models = [one for one in ([*above, here / MODEL] if fitted_before else above) if (one / FITTED).is_file()][:1]
    below = [] if models else [here, *map(Path, within)]
    runs = [
        one for one in dict.fromkeys((*above, *below)) if (one / CERTIFICATE).is_file() and (one / RECIPE).is_file()
    ]
    if not models and not runs:
        models = [one for one in below if (one / FITTED).is_file()]
    return [_of_model(one) for one in models] or [_of_run(one) for one in runs]


def _of_model(folder: Path) -> tuple[Path, list[OtherFit]]:
    fitted = Fitted.read(folder)
    _check_holds(folder, fitted.holds)
    others = [fit for fit in fitted.built_on if not fit.counted]
    return (folder.parent if folder.name == MODEL else folder), [OtherFit(fitted.run, fitted.releases), *others]


def _of_run(folder: Path) -> tuple[Path, list[OtherFit]]:
    certificate = read_certificate(folder)
    _check_holds(folder, certificate.get("holds") is True)
    try:
        fits = [OtherFit(str(certificate["run"]), tuple(certified_releases(certificate)))]
        others = certificate.get("fitted_on_others")
        if others is not None and others != NOT_DECLARED:
            fits.append(OtherFit.from_dict({"counted": False, **others}))
    except (KeyError, TypeError, ValueError) as error:
        raise RecipeError(
            f"{folder / CERTIFICATE} does not say what the run took from others: make it anew."
        ) from error
    return folder, fits


def _check_holds(place: Path, holds: bool) -> None:
    if not holds:
        raise RecipeError(f"{place} was fitted with unsafe noise or none, so it has no guarantee: fit it anew.")


def _check_same_kind(recipe: Recipe, path: Path, fit: OtherFit) -> None:
    ours = (recipe.privacy.relation, recipe.private.privacy_unit)
    for release in fit.releases:
        if (theirs := (release.relation, release.unit)) != ours:
            raise RecipeError(
                f"{path} protects {'/'.join(theirs)}, and this recipe {'/'.join(ours)}: make them the same, or fit a "
                "model of your own."
            )
