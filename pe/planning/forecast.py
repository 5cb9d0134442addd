"""What a run will ask for, cost and guarantee, from public numbers, before anything is called or read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from pe.planning.bill import bill_of
from pe.planning.build import set_up
from pe.planning.cautions import (
    cost_warnings,
    guarantee_warnings,
    limit_warnings,
    precision_of,
    recipe_warnings,
    refusals,
)
from pe.planning.choice import settle
from pe.planning.deadlines import HeldBack, held_back
from pe.planning.disk import disk_of
from pe.planning.fitting import fit_dry_runs
from pe.planning.forecast_text import page_of
from pe.planning.forecast_values import Forecast
from pe.planning.layout import lay_out
from pe.planning.other_fits import taken_obstacles
from pe.planning.readiness import cap_obstacles
from pe.plugins.protocols import GenerationAPI
from pe.privacy.accounting import epsilon
from pe.recipe.schema import OBJECT, Recipe
from pe.steps import Plan


def forecast(
    recipe: Recipe,
    api: GenerationAPI | None,
    here: Sequence[str] = (),
    samples_per_second: float | None = None,
    dry_run: bool = False,
) -> Forecast:
    """What a run of `recipe` will do; calls nothing and reads no private record.

    Args:
        recipe: the recipe.
        api: the generator (`pe.planning.build.set_up_generator`), asked what it can do; None: the calls are unknown.
        here: warnings about this machine (`pe.planning.readiness.obstacles`), and why the calls are unknown.
        samples_per_second: the generator's rate, > 0; None: the time is unknown.
        dry_run: whether a few steps of the fit are tried here, on random images.

    Raises:
        RecipeError: the population does not fit the labels.
        PrivacyError: no noise meets the budget.
    """
    choice = settle(recipe, api)
    recipe = choice.recipe
    plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
    dry_runs = fit_dry_runs(recipe, recipe.private.labels, recipe.private.privacy_unit) if dry_run else ()
    clock = held_back(recipe, plan, api, set_up("pe.embeddings", recipe.embedding)[0], dry_runs)
    bill = bill_of(recipe, plan, api)
    images, noun = bill.images, recipe.private.modality.noun
    delta = recipe.privacy.delta
    spent = inf if recipe.privacy.noiseless else epsilon(plan.releases, delta)
    told = [
        *here,
        *refusals([(step.degree, step.t) for step in plan.steps], api),
        *cost_warnings(bill.price, api, bill.calls, images, noun),
    ]
    told += limit_warnings(recipe, images, (bill.least, bill.most), samples_per_second)
    told += _of_the_guarantee(recipe, plan, clock, spent)
    found = Forecast(
        noun,
        bill.iterations,
        priced=bill.stated,
        cost=bill.most,
        cost_at_least=bill.least,
        currency=bill.price.currency,
        epsilon=spent,
        delta=delta,
        degree=None if api is None else api.capabilities.degree,
        seconds=None if samples_per_second is None else images.most / samples_per_second,
        warnings=tuple(told),
        clock=clock,
        synthetic=sum(plan.steps[-1].sizes if plan.steps else plan.sizes),
        disk=disk_of(recipe, plan, api),
        fit=plan.fit,
        fit_epsilon=epsilon(plan.fit, delta) if plan.fit else 0.0,
        dry_runs=dry_runs,
        choice=choice,
        measuring=bill.measuring,
        embedding=recipe.embedding.kind.removeprefix(OBJECT) if plan.steps else "",
        precision=precision_of(api),
    )
    return replace(found, page=page_of(recipe.name, found))


def _of_the_guarantee(recipe: Recipe, plan: Plan, clock: HeldBack, spent: float) -> list[str]:
    """Warnings about ε, δ, votes, deadlines, the data set's cap, and other runs."""
    found = [*guarantee_warnings(recipe, plan, spent), *recipe_warnings(recipe, clock.terms)]
    return [*found, *cap_obstacles(recipe, plan.releases), *taken_obstacles(recipe, plan.releases)]
