"""From the recipe's public numbers to the plan that evolution follows."""

from __future__ import annotations

from typing import TypeVar

from pe.errors import RecipeError, nearest_name
from pe.evolution import Plan, Step
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Release
from pe.recipe.budget import PlanSettings, plan, plan_with
from pe.recipe.schema import Evolution, Recipe

Value = TypeVar("Value")


def lay_out(recipe: Recipe, classes: tuple[str, ...], unit: str) -> Plan:
    """The plan of a recipe; reads public numbers only.

    Args:
        recipe: the recipe.
        classes: the public label names.
        unit: the privacy unit's name.

    Raises:
        RecipeError: a population that the labels do not divide, or has fewer members of a label than q.
    """
    evolution = recipe.evolution
    populations = _schedule(evolution.population, evolution.iterations + 1)
    sizes = [apportion(total, classes, evolution, t) for t, total in enumerate(populations)]
    releases = planned_releases(recipe, unit)
    degrees = _schedule(evolution.degree, evolution.iterations)
    lookaheads = _schedule(evolution.lookahead, evolution.iterations)
    steps = tuple(
        Step(t, sizes[t], degrees[t - 1], lookaheads[t - 1], _threshold(evolution, release, t), release)
        for t, release in enumerate(releases, start=1)
    )
    return Plan(classes, sizes[0], steps, evolution.selection, evolution.neighbors, evolution.metric, recipe.seed)


def planned_releases(recipe: Recipe, unit: str) -> list[Release]:
    """Every release of the run, the noise calibrated to the target ε or as the recipe gives it."""
    privacy = recipe.privacy
    settings = PlanSettings(recipe.evolution.iterations, privacy.relation, unit, recipe.evolution.neighbors)
    if privacy.epsilon is not None:
        return plan(Budget(privacy.epsilon, privacy.delta), settings)
    assert privacy.noise_multiplier is not None
    return plan_with(privacy.noise_multiplier, settings, Budget(1.0, privacy.delta))


def apportion(total: int, classes: tuple[str, ...], evolution: Evolution, t: int) -> tuple[int, ...]:
    """Members of S_t per label: equal, or in the public proportions by largest remainders.

    Raises:
        RecipeError: see `lay_out`.
    """
    sizes = _equal(total, classes, t) if evolution.label_sizes == "equal" else _proportional(total, classes, evolution)
    least = evolution.neighbors if t < evolution.iterations else 1
    for name, size in zip(classes, sizes, strict=True):
        if size < least:
            raise RecipeError(
                f"evolution.population: S_{t} has {size} members of label '{name}', and each record votes for "
                f"{evolution.neighbors}: take a larger population or fewer neighbors."
            )
    return sizes


def _equal(total: int, classes: tuple[str, ...], t: int) -> tuple[int, ...]:
    if total % len(classes):
        below, above = (total // len(classes) + i for i in (0, 1))
        raise RecipeError(
            f"evolution.population: {total} members of S_{t} cannot be divided equally among {len(classes)} labels: "
            f"take {max(below, 1) * len(classes)} or {above * len(classes)}, or state evolution.label_sizes."
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
    shares = [evolution.label_sizes[name] for name in classes]
    quotas = [total * share / sum(shares) for share in shares]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(classes)), key=lambda c: (sizes[c] - quotas[c], c))
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


def budget_of(recipe: Recipe, plan: Plan) -> Budget:
    """The recipe's target (ε, δ); with a given noise multiplier, what the planned releases cost."""
    delta = recipe.privacy.delta
    if recipe.privacy.epsilon is not None:
        return Budget(recipe.privacy.epsilon, delta)
    return Budget(max(epsilon([step.release for step in plan.steps], delta), 1e-9), delta)
