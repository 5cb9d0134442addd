"""What is foretold of a run, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pe.data.display import Page
from pe.fit.trainer import DryRun
from pe.planning.build import price_of, unpriced, usage_of
from pe.planning.calls import Measuring, Span, first_calls, total, variation_calls, variation_images
from pe.planning.checks import HeldBack, meaning_of
from pe.planning.choice import Choice, Signal, signal_of
from pe.plugins.price import Price
from pe.plugins.protocols import GenerationAPI, Usage
from pe.privacy.release import Release
from pe.privacy.words import finite
from pe.recipe.schema import Recipe
from pe.steps import Plan


@dataclass(frozen=True)
class Iteration:
    """What iteration t asks for.

    Attributes:
        t: the iteration; 0 makes S_0.
        random: requests of RANDOM_API; None: unknown.
        variation: requests of VARIATION_API, the lookahead's included; None: unknown.
        images: images asked for.
        degree: v_t, variation in [0, 1]; 1 at t = 0.
        signal: of its histogram; None at t = 0.
        meaning: what the degree comes to, in the generator's own words; empty: it has none.
    """

    t: int
    random: Span | None
    variation: Span | None
    images: Span
    degree: float
    signal: Signal | None
    meaning: str = ""

    @property
    def calls(self) -> Span | None:
        """Requests of both; None: unknown."""
        return total((self.random, self.variation))


@dataclass(frozen=True)
class Forecast:
    """What a run will do if no item is refused or fails.

    Attributes:
        noun: what people call the samples: `images`.
        iterations: t = 0 … T.
        priced: whether the recipe states what is charged, or nobody elsewhere is asked.
        cost: the most that it costs, in `currency`; None: unknown, or not stated.
        cost_at_least: the least; None: unknown.
        currency: of the cost.
        epsilon: of all planned releases, at `delta`; infinite where no ε holds, and null in JSON, like δ.
        delta: δ.
        degree: how the generator obeys the variation degree: exact, wording, none; None: unknown.
        seconds: for the images, at the most, at the rate given; None: none was given.
        warnings: one sentence each.
        synthetic: images that the run ends with, |S_T|.
        disk: the most bytes that samples take while the run goes on; None: unknown.
        clock: what the public clock adds.
        choice: what was chosen of the evolution, and why.
        measuring: what is asked for before t = 0, to measure how the degree is heeded.
        fit: the releases by which the generator is fitted, before S_0.
        fit_epsilon: of those alone, at `delta`.
        dry_runs: what each part of the fit will take here, where it was tried.
        embedding: by which the records vote, by its name; empty: nothing votes.
        precision: of the generator's arithmetic on this machine; empty: it computes elsewhere, or that is not known.
        page: all of it as a person reads it, which `print` shows.
    """

    noun: str
    iterations: tuple[Iteration, ...]
    priced: bool
    cost: float | None
    cost_at_least: float | None
    currency: str
    epsilon: float
    delta: float
    degree: str | None
    seconds: float | None
    warnings: tuple[str, ...]
    synthetic: int
    disk: int | None
    clock: HeldBack
    choice: Choice
    measuring: Measuring
    fit: tuple[Release, ...] = ()
    fit_epsilon: float = 0.0
    dry_runs: tuple[DryRun, ...] = ()
    embedding: str = ""
    precision: str = ""
    page: str = ""

    def __str__(self) -> str:
        return self.page

    def _repr_html_(self) -> str:
        return Page(self.page)._repr_html_()

    @property
    def images(self) -> Span:
        """Images asked for over the whole run."""
        return sum((one.images for one in self.iterations), self.measuring.images)

    @property
    def random(self) -> Span | None:
        """Calls of RANDOM_API; None: unknown."""
        return total((*(one.random for one in self.iterations), self.measuring.random))

    @property
    def variation(self) -> Span | None:
        """Calls of VARIATION_API, the lookahead's included; None: unknown."""
        return total((*(one.variation for one in self.iterations), self.measuring.variation))

    @property
    def calls(self) -> Span | None:
        """Calls of both; None: unknown."""
        return total((self.random, self.variation))

    @property
    def signals(self) -> list[Signal]:
        """Of iterations 1 … T."""
        return [one.signal for one in self.iterations if one.signal]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; calls, images and cost are the most there can be, `…_at_least` the fewest."""
        fewest = [signal.fewest for signal in self.signals if signal.fewest is not None]
        return {
            "noun": self.noun,
            "api_calls": {
                "random": most_of(self.random),
                "variation": most_of(self.variation),
                "images": self.images.most,
            },
            "api_calls_at_least": {
                "random": least_of(self.random),
                "variation": least_of(self.variation),
                "images": self.images.least,
            },
            "cost": self.cost,
            "cost_at_least": self.cost_at_least,
            "currency": self.currency,
            "synthetic_images": self.synthetic,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "epsilon": finite(self.epsilon),
            "delta": None if finite(self.epsilon) is None else self.delta,
            "noise_multiplier": _one_or_all([signal.noise_multiplier for signal in self.signals]),
            "votes_per_candidate": min(fewest, default=None),
            "degree": self.degree,
            "embedding": self.embedding or None,
            "precision": self.precision or None,
            "measured_by": self.measuring.images.most or None,
            "fit": {"epsilon": self.fit_epsilon, "releases": [one.to_dict() for one in self.fit]} if self.fit else None,
            "dry_run": [one.to_dict() for one in self.dry_runs] if self.dry_runs else None,
            "public_clock": {"on": self.clock.terms.on, "why": self.clock.terms.why, "deadlines": self.clock.seconds},
            "chosen": self.choice.chosen,
            "why_chosen": list(self.choice.reasons),
            "per_iteration": [_iteration_dict(one) for one in self.iterations],
            "warnings": list(self.warnings),
        }


def most_of(span: Span | None) -> int | None:
    """The most of a span; None where it is unknown."""
    return None if span is None else span.most


def least_of(span: Span | None) -> int | None:
    """The fewest of a span; None where it is unknown."""
    return None if span is None else span.least


def _one_or_all(values: Sequence[float]) -> float | list[float] | None:
    """As a recipe has it: one number for all iterations, or a list of them; None: there is no iteration."""
    return (values[0] if len(set(values)) == 1 else list(values)) if values else None


def _iteration_dict(one: Iteration) -> dict[str, Any]:
    asked = {
        "iteration": one.t,
        "random": most_of(one.random),
        "variation": most_of(one.variation),
        "images": one.images.most,
    }
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


# What a plan asks for, iteration by iteration, and what that costs: images, calls, money.


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
