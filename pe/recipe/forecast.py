"""What a run will ask for, cost and guarantee, from public numbers, before anything is called or read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import NormalDist
from typing import Any

from pydantic import ValidationError

from pe.errors import RecipeError
from pe.evolution import Plan, Step
from pe.privacy.accounting import epsilon
from pe.protocols import Capabilities
from pe.recipe.layout import lay_out
from pe.recipe.registry import construct, plugins
from pe.recipe.schema import PluginSpec, Recipe
from pe.run.limits import Price

_NORMAL = NormalDist()
_MOST_NOISE = 0.5


@dataclass(frozen=True)
class Span:
    """A number that lies between `least` and `most`; what the generator's own data decide widens it."""

    least: int = 0
    most: int = 0

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)


@dataclass(frozen=True)
class Signal:
    """What the histogram of an iteration can tell from its noise.

    Attributes:
        candidates: members of S_{t-1}.
        noise_multiplier: σ over the sensitivity.
        sigma: standard deviation of a candidate's noise, in votes.
        threshold: H, in votes.
        votes: votes per candidate and label, if the declared records spread evenly; None: no declared size.
    """

    candidates: int
    noise_multiplier: float
    sigma: float
    threshold: float
    votes: tuple[float, ...] | None

    @property
    def fewest(self) -> float | None:
        """Votes per candidate of the label that has the fewest."""
        return None if self.votes is None else min(self.votes)

    def noise_share(self, votes: float) -> float:
        """Share, in [0, 1], of an average candidate's expected weight max(votes + noise − H, 0) that an empty
        one has too."""
        empty = _expected_excess(self.threshold / self.sigma)
        return empty / _expected_excess((self.threshold - votes) / self.sigma) if empty else 0.0

    def votes_needed(self) -> float:
        """The least votes per candidate with which at most half of the weight is noise."""
        low, high = 0.0, max(self.threshold, 0.0) + 2 * self.sigma
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.noise_share(middle) > _MOST_NOISE else (low, middle)
        return high

    def passing(self, votes: float) -> float:
        """Candidates expected above the threshold if each has `votes`."""
        return self.candidates * _NORMAL.cdf((votes - self.threshold) / self.sigma)


@dataclass(frozen=True)
class Iteration:
    """What iteration t asks for; t = 0 is RANDOM_API.

    Attributes:
        t: the iteration.
        calls: requests; None: the generator's chunks are not known.
        images: images asked for.
        signal: of its histogram; None at t = 0.
    """

    t: int
    calls: Span | None
    images: int
    signal: Signal | None


@dataclass(frozen=True)
class Forecast:
    """What a run will do if no item is refused or fails.

    Attributes:
        iterations: t = 0 … T.
        cost: the most it costs, in `currency`; None: unknown.
        currency: of the cost.
        epsilon: of all planned releases, at `delta`.
        delta: δ.
        degree: how the generator obeys the variation degree: exact, wording, none; None: unknown.
        seconds: for the generator's work at the stated rate; None: no rate.
        warnings: one sentence each.
    """

    iterations: tuple[Iteration, ...]
    cost: float | None
    currency: str
    epsilon: float
    delta: float
    degree: str | None
    seconds: float | None
    warnings: tuple[str, ...]

    @property
    def images(self) -> int:
        """Images asked for over the whole run."""
        return sum(one.images for one in self.iterations)

    @property
    def random(self) -> Span | None:
        """Calls of RANDOM_API; None: unknown."""
        return self.iterations[0].calls

    @property
    def variation(self) -> Span | None:
        """Calls of VARIATION_API, the lookahead's included; None: unknown."""
        return _total([one.calls for one in self.iterations[1:]])

    @property
    def signals(self) -> list[Signal]:
        """Of iterations 1 … T."""
        return [one.signal for one in self.iterations if one.signal]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; calls are the most there can be, `api_calls_at_least` the fewest."""
        return {
            "api_calls": {"random": _most(self.random), "variation": _most(self.variation), "images": self.images},
            "api_calls_at_least": {"random": _least(self.random), "variation": _least(self.variation)},
            "cost": self.cost,
            "currency": self.currency,
            "seconds": self.seconds,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": _one_or_all([signal.noise_multiplier for signal in self.signals]),
            "votes_per_candidate": _fewest(self.signals),
            "degree": self.degree,
            "per_iteration": [_iteration_dict(one) for one in self.iterations],
            "warnings": list(self.warnings),
        }


def forecast(
    recipe: Recipe, capabilities: Capabilities | None, unknown: str = "", images_per_second: float | None = None
) -> Forecast:
    """What a run of `recipe` will do; calls nothing and reads no private record.

    Args:
        recipe: the recipe.
        capabilities: the generator's; None: unknown, and so are the calls.
        unknown: why, one sentence.
        images_per_second: the generator's rate, > 0; None: the time is unknown.

    Raises:
        RecipeError: the population does not fit the labels.
        PrivacyError: no noise meets the budget.
    """
    plan = lay_out(recipe, recipe.private.labels, recipe.private.privacy_unit)
    iterations = tuple(_iteration(t, recipe, plan, capabilities) for t in range(len(plan.steps) + 1))
    images = sum(one.images for one in iterations)
    calls = _total([one.calls for one in iterations])
    price = Price(**recipe.api.price.model_dump())
    cost = _cost(price, calls, images)
    seconds = None if images_per_second is None else images / images_per_second
    warnings = [
        *([unknown] if capabilities is None and unknown else []),
        *_calls_warnings(calls, price, images),
        *_limit_warnings(recipe, images, cost, seconds),
        *_privacy_warnings(recipe),
        *_signal_warnings(recipe, plan, [one.signal for one in iterations if one.signal]),
    ]
    total = epsilon(plan.releases, recipe.privacy.delta)
    degree = None if capabilities is None else capabilities.degree
    return Forecast(
        iterations, cost, price.currency, total, recipe.privacy.delta, degree, seconds, tuple(warnings)
    )  # fmt: skip


def capabilities_of(spec: PluginSpec) -> tuple[Capabilities | None, str]:
    """The capabilities of a recipe's generator; or None, and in one sentence why they are not known here.

    Raises:
        PluginError: no generator has this name.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    if spec.kind.startswith("object:"):
        return None, f"The number of calls is unknown: {spec.kind.removeprefix('object:')} is an object of your own."
    try:
        capabilities = construct("pe.adapters", spec.kind, spec.settings).capabilities
    except Exception as error:  # whatever a library raises that lacks its weights, device or key
        mistaken = isinstance(error, RecipeError) and isinstance(error.__cause__, ValidationError)
        if mistaken or spec.kind not in plugins("pe.adapters"):
            raise
        return None, f"The number of calls is unknown, because the generator cannot be set up here: {error}"
    return capabilities, ""


def _iteration(t: int, recipe: Recipe, plan: Plan, capabilities: Capabilities | None) -> Iteration:
    if t == 0:
        calls = None if capabilities is None else _random_calls(plan, capabilities)
        return Iteration(0, calls, sum(plan.sizes), None)
    step, before = plan.steps[t - 1], _sizes(plan, t - 1)
    images = step.lookahead * sum(before) + sum(step.sizes)
    calls = None if capabilities is None else _variation_calls(before, step, capabilities)
    return Iteration(t, calls, images, _signal(recipe, plan, step, before))


def _sizes(plan: Plan, t: int) -> tuple[int, ...]:
    """Members of S_t per label."""
    return plan.sizes if t == 0 else plan.steps[t - 1].sizes


def _random_calls(plan: Plan, capabilities: Capabilities) -> Span:
    """Requests for S_0, cut as pe.run.work cuts: by label where items must share something."""
    groups = [sum(plan.sizes)] if capabilities.shares == "nothing" else plan.sizes
    calls = sum(ceil(size / capabilities.max_chunk) for size in groups)
    return Span(calls, calls)


def _variation_calls(before: Sequence[int], step: Step, capabilities: Capabilities) -> Span:
    """Requests for an iteration's lookahead and offspring.

    Which parents have how many offspring, and which conditions the parents have, is not known before:
    the fewest calls are those of one parent (condition) per label, the most those of all parents (conditions)
    different.
    """
    chunk, k = capabilities.max_chunk, step.lookahead
    if capabilities.shares == "nothing":
        calls = ceil(k * sum(before) / chunk) + ceil(sum(step.sizes) / chunk)
        return Span(calls, calls)
    ahead = sum(before) * ceil(k / chunk)
    joined = ahead if capabilities.shares == "parent" else sum(ceil(k * size / chunk) for size in before)
    offspring = sum(ceil(size / chunk) for size in step.sizes)
    apart = sum(_most_groups(size, parents, chunk) for size, parents in zip(step.sizes, before, strict=True))
    return Span(joined + offspring, ahead + apart)


def _most_groups(items: int, parents: int, chunk: int) -> int:
    """The most requests that `items` offspring of `parents` candidates can take: every one has an offspring first."""
    return items if items <= parents else parents + (items - parents) // chunk


def _signal(recipe: Recipe, plan: Plan, step: Step, before: Sequence[int]) -> Signal:
    release = step.release
    sigma = release.sensitivity * release.noise_multiplier
    votes = _votes(recipe, plan.classes, before)
    return Signal(sum(before), release.noise_multiplier, sigma, step.threshold, votes)


def _votes(recipe: Recipe, classes: Sequence[str], candidates: Sequence[int]) -> tuple[float, ...] | None:
    """Votes per candidate, label by label: a record casts q votes of 1/√q each."""
    declared, evolution = recipe.private.declared_size, recipe.evolution
    if declared is None:
        return None
    if evolution.estimate_label_sizes is not None:
        return (declared * sqrt(evolution.neighbors) / sum(candidates),)
    shares = [1.0] * len(classes) if evolution.label_sizes == "equal" else [evolution.label_sizes[c] for c in classes]
    records = [declared * share / sum(shares) for share in shares]
    return tuple(n * sqrt(evolution.neighbors) / m for n, m in zip(records, candidates, strict=True))


def _cost(price: Price, calls: Span | None, images: int) -> float | None:
    """The most that the run costs; None where that depends on unknown calls, or on tokens."""
    if price.million_tokens or (calls is None and price.call):
        return None
    return price.of(0 if calls is None else calls.most, images)


def _calls_warnings(calls: Span | None, price: Price, images: int) -> list[str]:
    if price.million_tokens:
        least = price.of(calls.least if calls else 0, images)
        return [f"Tokens are not known before they are billed; calls and images alone cost {least:.2f} or more."]
    if calls is None and price.call:
        return [f"The cost is unknown with the calls; it is at most {price.of(images, images):.2f} {price.currency}."]
    if calls is not None and calls.least < calls.most:
        return [
            f"The run makes {calls.least:,} to {calls.most:,} calls, according to how many parents and conditions "
            "differ; the larger number is stated."
        ]
    return []


def _limit_warnings(recipe: Recipe, images: int, cost: float | None, seconds: float | None) -> list[str]:
    limits = recipe.limits
    needs = (("max_images", images), ("max_cost", cost), ("max_seconds", seconds))
    return [
        f"limits.{name} = {limit:g} stops the run before its end, which needs {need:.10g}."
        for name, need in needs
        if (limit := getattr(limits, name)) is not None and need is not None and need > limit
    ]


def _privacy_warnings(recipe: Recipe) -> list[str]:
    declared, delta, unit = recipe.private.declared_size, recipe.privacy.delta, recipe.private.privacy_unit
    if declared is None:
        return [
            "private.declared_size is missing, so the votes per candidate are unknown: "
            "state about how many private records there are (it is public)."
        ]
    found = []
    if delta >= 1 / declared:
        found.append(
            f"privacy.delta = {delta:g} is not below 1 / private.declared_size = {1 / declared:.2g}, so giving one "
            "record away whole would satisfy it: take a smaller delta."
        )
    if unit != "record":
        found.append(
            f"All records of one {unit} together weigh as one, so there are fewer votes per candidate than stated."
        )
    return found


def _signal_warnings(recipe: Recipe, plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """Whether the votes stand out of the noise, and over the threshold; the worst iteration speaks for all."""
    declared = recipe.private.declared_size
    if declared is None or not signals:
        return []
    total = declared * sqrt(recipe.evolution.neighbors)
    worst = max(signals, key=lambda signal: signal.noise_share(total / signal.candidates))
    if worst.noise_share(total / worst.candidates) > _MOST_NOISE:
        return [_too_large(worst, total, signals, len(plan.classes), recipe.evolution.neighbors)]
    lowest = min(signals, key=lambda signal: signal.passing(total / signal.candidates))
    if lowest.passing(total / lowest.candidates) < len(plan.classes):
        return [
            f"Hardly a candidate will have votes over the threshold of {lowest.threshold:.3g} (σ = {lowest.sigma:.3g}, "
            f"{total / lowest.candidates:.2g} votes per candidate): lower the threshold or the population."
        ]
    return _label_warnings(plan, signals)


def _too_large(worst: Signal, total: float, signals: Sequence[Signal], labels: int, neighbors: int) -> str:
    votes = total / worst.candidates
    limit = min(floor(total / signal.votes_needed()) for signal in signals) // labels * labels
    said = (
        f"The population is too large for the private set: {votes:.2g} votes per candidate against noise of "
        f"σ = {worst.sigma:.3g}, so about {worst.noise_share(votes):.0%} of the weight that chooses parents is noise; "
    )
    if limit < labels * neighbors:
        return said + "no population is small enough, so take a larger epsilon or fewer iterations."
    return said + f"take a population of at most {limit}, or a larger epsilon."


def _label_warnings(plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """Labels that rounding leaves with fewer votes per candidate than the others."""
    weak = [
        name
        for label, name in enumerate(plan.classes)
        if any(
            len(signal.votes or ()) == len(plan.classes)
            and signal.votes is not None
            and signal.noise_share(signal.votes[label]) > _MOST_NOISE
            for signal in signals
        )
    ]
    if not weak:
        return []
    names = ", ".join(f"'{name}'" for name in weak)
    return [f"Too few private records for the noise by evolution.label_sizes: {names}; their parents are mostly noise."]


def _expected_excess(x: float) -> float:
    """E[max(Z − x, 0)] of a standard normal Z; 0 where it cannot be told from it."""
    return max(_NORMAL.pdf(x) - x * _NORMAL.cdf(-x), 0.0) if x < 8 else 0.0


def _total(calls: Sequence[Span | None]) -> Span | None:
    total = Span()
    for span in calls:
        if span is None:
            return None
        total += span
    return total


def _most(span: Span | None) -> int | None:
    return None if span is None else span.most


def _least(span: Span | None) -> int | None:
    return None if span is None else span.least


def _one_or_all(values: list[float]) -> float | list[float] | None:
    """As recipes have it: one number for all iterations, or a list; None: there is no iteration."""
    return (values[0] if len(set(values)) == 1 else values) if values else None


def _fewest(signals: Sequence[Signal]) -> float | None:
    return min((signal.fewest for signal in signals if signal.fewest is not None), default=None)


def _iteration_dict(one: Iteration) -> dict[str, Any]:
    kind = "random" if one.t == 0 else "variation"
    asked = {"iteration": one.t, "random": 0, "variation": 0, "images": one.images} | {kind: _most(one.calls)}
    if one.signal is None:
        return asked
    signal = one.signal
    return asked | {
        "candidates": signal.candidates,
        "noise_multiplier": signal.noise_multiplier,
        "sigma": signal.sigma,
        "threshold": signal.threshold,
        "votes_per_candidate": signal.fewest,
    }
