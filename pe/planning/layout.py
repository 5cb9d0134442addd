"""From the recipe's public numbers to the plan that evolution follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pe.class_counts import CLASS_COUNTS
from pe.errors import PrivacyError, RecipeError, RunError, nearest_name
from pe.fit.trainer import FIT
from pe.histogram import Voting, histogram_release
from pe.planning.budget import PlanSettings, plan, plan_with
from pe.planning.fitting import fit_releases
from pe.plugins.protocols import info_of
from pe.plugins.registry import load, plugins
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Release
from pe.privacy.verify import certified_releases
from pe.recipe.evolution import Evolution
from pe.recipe.lengths import check_length
from pe.recipe.schema import Recipe
from pe.selection import Descent
from pe.steps import Plan, Step
from pe.store.certified import read_certificate
from pe.store.places import CERTIFICATE
from pe.store.run import Run

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
