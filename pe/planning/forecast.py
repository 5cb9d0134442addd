"""What a run will ask for, cost and guarantee, from public numbers, before anything is called or read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from pe.planning.build import price_of, set_up, usage_of
from pe.planning.calls import Span, first_calls, total, variation_calls, variation_images
from pe.planning.cautions import (
    cost_warnings,
    guarantee_warnings,
    limit_warnings,
    meaning_of,
    precision_of,
    recipe_warnings,
    refusals,
)
from pe.planning.choice import settle
from pe.planning.deadlines import HeldBack, held_back
from pe.planning.disk import disk_of
from pe.planning.fitting import fit_dry_runs
from pe.planning.forecast_text import page_of
from pe.planning.forecast_values import Forecast, Iteration, least_of, most_of
from pe.planning.layout import lay_out
from pe.planning.measuring import Measuring, degrees_asked
from pe.planning.readiness import cap_obstacles
from pe.planning.signal import signal_of
from pe.plugins.price import Price
from pe.plugins.protocols import GenerationAPI
from pe.plugins.usage import Usage
from pe.privacy.accounting import epsilon
from pe.recipe.schema import Recipe
from pe.steps import Plan


def forecast(
    recipe: Recipe,
    api: GenerationAPI | None,
    here: Sequence[str] = (),
    images_per_second: float | None = None,
    dry_run: bool = False,
) -> Forecast:
    """What a run of `recipe` will do; calls nothing and reads no private record.

    Args:
        recipe: the recipe.
        api: the generator (`pe.planning.build.set_up_generator`), asked what it can do; None: the calls are unknown.
        here: warnings about this machine (`pe.planning.readiness.obstacles`), and why the calls are unknown.
        images_per_second: the generator's rate, > 0; None: the time is unknown.
        dry_run: whether a few steps of the fit are tried here, on random images.

    Raises:
        RecipeError: the population does not fit the labels.
        PrivacyError: no noise meets the budget.
    """
    recipe = (choice := settle(recipe, api)).recipe
    plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
    dry_runs = fit_dry_runs(recipe, recipe.private.labels, recipe.private.privacy_unit) if dry_run else ()
    clock = held_back(recipe, plan, api, set_up("pe.embeddings", recipe.embedding)[0], dry_runs)
    iterations = tuple(_iteration(t, recipe, plan, api) for t in range(len(plan.steps) + 1))
    measuring = Measuring.of(recipe, plan, api)
    images = sum((one.images for one in iterations), measuring.images)
    calls = total((*(one.calls for one in iterations), measuring.random, measuring.variation))
    price = price_of(recipe)
    fewest, most = _usage(price, api, least_of(calls), images.least), _usage(price, api, most_of(calls), images.most)
    least, cost = None if fewest is None else price.least_of(fewest), None if most is None else price.most_of(most)
    delta = recipe.privacy.delta
    spent = inf if recipe.privacy.noiseless else epsilon(plan.releases, delta)
    told = [*here, *refusals(degrees_asked(recipe, plan, api), api), *cost_warnings(price, api, calls, images)]
    told += limit_warnings(recipe, images, (least, cost), images_per_second)
    told += _of_the_guarantee(recipe, plan, clock, spent)
    found = Forecast(
        iterations,
        cost=cost,
        cost_at_least=least,
        currency=price.currency,
        epsilon=spent,
        delta=delta,
        degree=None if api is None else api.capabilities.degree,
        seconds=None if images_per_second is None else images.most / images_per_second,
        warnings=tuple(told),
        clock=clock,
        synthetic=sum(plan.steps[-1].sizes if plan.steps else plan.sizes),
        disk=disk_of(recipe, plan, api),
        fit=plan.fit,
        fit_epsilon=epsilon(plan.fit, delta) if plan.fit else 0.0,
        dry_runs=dry_runs,
        choice=choice,
        measuring=measuring,
        precision=precision_of(api),
    )
    return replace(found, page=page_of(recipe.name, found))


def _of_the_guarantee(recipe: Recipe, plan: Plan, clock: HeldBack, spent: float) -> list[str]:
    """Warnings about ε, δ, votes, deadlines, and the data set's cap."""
    found = [*guarantee_warnings(recipe, plan, spent), *recipe_warnings(recipe, clock.terms)]
    return [*found, *cap_obstacles(recipe, plan.releases)]


def _iteration(t: int, recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> Iteration:
    if t == 0:
        random, variation = (None, None) if api is None else first_calls(plan, api)
        size = sum(plan.sizes)
        return Iteration(0, random, variation, Span(size, size), 1.0, None)
    step = plan.steps[t - 1]
    candidates = plan.sizes if t == 1 else plan.steps[t - 2].sizes
    calls = None if api is None else variation_calls(candidates, step, api)
    meaning = "" if api is None else meaning_of(api, step.degree, t)[0]
    signal = signal_of(recipe, plan, step, candidates)
    return Iteration(
        t=t,
        random=Span(),
        variation=calls,
        images=variation_images(candidates, step),
        degree=step.degree,
        signal=signal,
        meaning=meaning,
    )


def _usage(price: Price, api: GenerationAPI | None, calls: int | None, images: int) -> Usage | None:
    """What so many calls and images are billed as; None where their cost depends on unknown calls, tokens or pixels."""
    return None if calls is None and price.call else usage_of(price, api, calls or 0, images)
