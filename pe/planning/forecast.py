"""What a run will ask for, cost and guarantee, from public numbers, before anything is called or read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pe.dispatch.limits import Price
from pe.fit.trainer import DryRun
from pe.planning.build import price_of, set_up
from pe.planning.calls import Span, random_calls, total, variation_calls, variation_images
from pe.planning.cautions import (
    cost_warnings,
    guarantee_warnings,
    limit_warnings,
    meaning_of,
    recipe_warnings,
    refusals,
)
from pe.planning.choice import Choice, settle
from pe.planning.deadlines import HeldBack, held_back
from pe.planning.fitting import fit_dry_runs
from pe.planning.layout import lay_out
from pe.planning.readiness import cap_obstacles
from pe.planning.signal import Signal, signal_of
from pe.plugins.protocols import GenerationAPI
from pe.privacy.accounting import epsilon
from pe.privacy.release import Release
from pe.recipe.schema import Recipe
from pe.steps import Plan


@dataclass(frozen=True)
class Iteration:
    """What iteration t asks for.

    Attributes:
        t: the iteration; 0 is RANDOM_API, all others are VARIATION_API.
        calls: requests; None: unknown.
        images: images asked for.
        degree: v_t, variation in [0, 1]; 1 at t = 0.
        signal: of its histogram; None at t = 0.
        meaning: what the degree comes to, in the generator's own words; empty: it has none.
    """

    t: int
    calls: Span | None
    images: Span
    degree: float
    signal: Signal | None
    meaning: str = ""


@dataclass(frozen=True)
class Forecast:
    """What a run will do if no item is refused or fails.

    Attributes:
        iterations: t = 0 … T.
        cost: the most that it costs, in `currency`; None: unknown.
        cost_at_least: the least; None: unknown.
        currency: of the cost.
        epsilon: of all planned releases, at `delta`.
        delta: δ.
        degree: how the generator obeys the variation degree: exact, wording, none; None: unknown.
        seconds: for the images, at the most, at the rate given; None: none was given.
        warnings: one sentence each.
        synthetic: images that the run ends with, |S_T|.
        clock: what the public clock adds.
        choice: what was chosen of the evolution, and why.
        fit: the releases by which the generator is fitted, before S_0.
        fit_epsilon: of those alone, at `delta`.
        dry_runs: what each part of the fit will take here, where it was tried.
    """

    iterations: tuple[Iteration, ...]
    cost: float | None
    cost_at_least: float | None
    currency: str
    epsilon: float
    delta: float
    degree: str | None
    seconds: float | None
    warnings: tuple[str, ...]
    synthetic: int
    clock: HeldBack
    choice: Choice
    fit: tuple[Release, ...] = ()
    fit_epsilon: float = 0.0
    dry_runs: tuple[DryRun, ...] = ()

    @property
    def images(self) -> Span:
        """Images asked for over the whole run."""
        return sum((one.images for one in self.iterations), Span())

    @property
    def random(self) -> Span | None:
        """Calls of RANDOM_API; None: unknown."""
        return self.iterations[0].calls

    @property
    def variation(self) -> Span | None:
        """Calls of VARIATION_API, the lookahead's included; None: unknown."""
        return total(one.calls for one in self.iterations[1:])

    @property
    def calls(self) -> Span | None:
        """Calls of both; None: unknown."""
        return total(one.calls for one in self.iterations)

    @property
    def signals(self) -> list[Signal]:
        """Of iterations 1 … T."""
        return [one.signal for one in self.iterations if one.signal]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; calls, images and cost are the most there can be, `…_at_least` the fewest."""
        fewest = [signal.fewest for signal in self.signals if signal.fewest is not None]
        return {
            "api_calls": {"random": _most(self.random), "variation": _most(self.variation), "images": self.images.most},
            "api_calls_at_least": {
                "random": _least(self.random),
                "variation": _least(self.variation),
                "images": self.images.least,
            },
            "cost": self.cost,
            "cost_at_least": self.cost_at_least,
            "currency": self.currency,
            "synthetic_images": self.synthetic,
            "seconds": self.seconds,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": _one_or_all([signal.noise_multiplier for signal in self.signals]),
            "votes_per_candidate": min(fewest, default=None),
            "degree": self.degree,
            "fit": {"epsilon": self.fit_epsilon, "releases": [one.to_dict() for one in self.fit]} if self.fit else None,
            "dry_run": [one.to_dict() for one in self.dry_runs] if self.dry_runs else None,
            "public_clock": {"on": self.clock.terms.on, "why": self.clock.terms.why, "deadlines": self.clock.seconds},
            "chosen": self.choice.chosen,
            "why_chosen": list(self.choice.reasons),
            "per_iteration": [_iteration_dict(one) for one in self.iterations],
            "warnings": list(self.warnings),
        }


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
    images = sum((one.images for one in iterations), Span())
    calls = total(one.calls for one in iterations)
    price = price_of(recipe)
    least, cost = _cost(price, _least(calls), images.least), _cost(price, _most(calls), images.most)
    told = [*here, *refusals(plan, api), *cost_warnings(price, calls, images)]
    told += limit_warnings(recipe, images, (least, cost), images_per_second)
    delta = recipe.privacy.delta
    spent = epsilon(plan.releases, delta)
    told += _of_the_guarantee(recipe, plan, clock, spent)
    return Forecast(
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
        fit=plan.fit,
        fit_epsilon=epsilon(plan.fit, delta) if plan.fit else 0.0,
        dry_runs=dry_runs,
        choice=choice,
    )


def _of_the_guarantee(recipe: Recipe, plan: Plan, clock: HeldBack, spent: float) -> list[str]:
    """Warnings about ε, δ, votes, deadlines, and the data set's cap."""
    found = [*guarantee_warnings(recipe, plan, spent), *recipe_warnings(recipe, clock.terms)]
    return [*found, *cap_obstacles(recipe, plan.releases)]


def _iteration(t: int, recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> Iteration:
    if t == 0:
        size = sum(plan.sizes)
        return Iteration(0, None if api is None else random_calls(plan, api), Span(size, size), 1.0, None)
    step = plan.steps[t - 1]
    candidates = plan.sizes if t == 1 else plan.steps[t - 2].sizes
    calls = None if api is None else variation_calls(candidates, step, api.capabilities)
    meaning = "" if api is None else meaning_of(api, step.degree)[0]
    signal = signal_of(recipe, plan, step, candidates)
    return Iteration(
        t=t, calls=calls, images=variation_images(candidates, step), degree=step.degree, signal=signal, meaning=meaning
    )


def _cost(price: Price, calls: int | None, images: int) -> float | None:
    """What so many calls and images cost; None where that depends on unknown calls, or on tokens."""
    if price.million_tokens or (calls is None and price.call):
        return None
    return price.of(calls or 0, images)


def _most(span: Span | None) -> int | None:
    return None if span is None else span.most


def _least(span: Span | None) -> int | None:
    return None if span is None else span.least


def _one_or_all(values: Sequence[float]) -> float | list[float] | None:
    """As a recipe has it: one number for all iterations, or a list of them; None: there is no iteration."""
    return (values[0] if len(set(values)) == 1 else list(values)) if values else None


def _iteration_dict(one: Iteration) -> dict[str, Any]:
    kind = "random" if one.t == 0 else "variation"
    asked = {"iteration": one.t, "random": 0, "variation": 0, "images": one.images.most} | {kind: _most(one.calls)}
    if one.signal is None:
        return asked
    return asked | {
        "degree": one.degree,
        "degree_means": one.meaning or None,
        "candidates": one.signal.candidates,
        "noise_multiplier": one.signal.noise_multiplier,
        "sigma": one.signal.sigma,
        "threshold": one.signal.threshold,
        "votes_per_candidate": one.signal.fewest,
    }
