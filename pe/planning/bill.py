"""What a plan asks for, iteration by iteration, and what that costs: images, calls, money."""

from __future__ import annotations

from dataclasses import dataclass

from pe.planning.build import price_of, unpriced, usage_of
from pe.planning.calls import Span, first_calls, total, variation_calls, variation_images
from pe.planning.cautions import meaning_of
from pe.planning.forecast_values import Iteration, least_of, most_of
from pe.planning.measuring import Measuring
from pe.planning.signal import signal_of
from pe.plugins.price import Price
from pe.plugins.protocols import GenerationAPI
from pe.plugins.usage import Usage
from pe.recipe.schema import Recipe
from pe.steps import Plan


@dataclass(frozen=True)
class Bill:
    """What a run asks for if nothing is refused or fails.

    Attributes:
        iterations: t = 0 … T.
        measuring: what is asked for before t = 0.
        price: the recipe's.
        least: the least that it costs; None: unknown.
        most: the most.
        stated: whether the recipe states it, or nobody elsewhere is asked.
    """

    iterations: tuple[Iteration, ...]
    measuring: Measuring
    price: Price
    least: float | None
    most: float | None
    stated: bool

    @property
    def images(self) -> Span:
        """Images asked for."""
        return _images(self.iterations, self.measuring)

    @property
    def calls(self) -> Span | None:
        """Requests; None: unknown."""
        return _calls(self.iterations, self.measuring)


def bill_of(recipe: Recipe, plan: Plan, api: GenerationAPI | None) -> Bill:
    """What `plan`, that of the recipe, asks of the generator `api`; None: it could not be set up."""
    iterations = tuple(_iteration(t, recipe, plan, api) for t in range(len(plan.steps) + 1))
    measuring, price = Measuring.of(recipe, plan, api), price_of(recipe)
    images, calls = _images(iterations, measuring), _calls(iterations, measuring)
    fewest, most = _usage(price, api, least_of(calls), images.least), _usage(price, api, most_of(calls), images.most)
    stated = not any(info.hosts is None or info.elsewhere for info in unpriced(recipe, api))
    return Bill(
        iterations,
        measuring,
        price,
        least=None if fewest is None or not stated else price.least_of(fewest),
        most=None if most is None or not stated else price.most_of(most),
        stated=stated,
    )


def _images(iterations: tuple[Iteration, ...], measuring: Measuring) -> Span:
    return sum((one.images for one in iterations), measuring.images)


def _calls(iterations: tuple[Iteration, ...], measuring: Measuring) -> Span | None:
    return total((*(one.calls for one in iterations), measuring.random, measuring.variation))


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
