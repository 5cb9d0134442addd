"""How many requests a plan makes, from its sizes and the generator's capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from pydantic import ValidationError

from pe.errors import RecipeError
from pe.evolution import Plan, Step
from pe.protocols import Capabilities
from pe.recipe.registry import construct, plugins
from pe.recipe.schema import PluginSpec


@dataclass(frozen=True)
class Span:
    """A whole number that lies between `least` and `most`, both included."""

    least: int = 0
    most: int = 0

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)


def capabilities_of(spec: PluginSpec) -> tuple[Capabilities | None, str]:
    """The capabilities of a recipe's generator; or None, and in one sentence why they are not known here.

    Raises:
        PluginError: no generator has this name.
        RecipeError: a setting is unknown, missing or of the wrong type.
    """
    if spec.kind.startswith("object:"):
        return None, f"The number of calls is unknown: {spec.kind.removeprefix('object:')} is an object of your own."
    try:
        capabilities: Capabilities = construct("pe.adapters", spec.kind, spec.settings).capabilities
    except Exception as error:  # whatever a library raises that lacks its weights, its device or its key
        mistaken = isinstance(error, RecipeError) and isinstance(error.__cause__, ValidationError)
        if mistaken or spec.kind not in plugins("pe.adapters"):
            raise
        return None, f"The number of calls is unknown, because the generator cannot be set up here: {error}"
    return capabilities, ""


def random_calls(plan: Plan, capabilities: Capabilities) -> Span:
    """Requests for S_0, cut as pe.run.work cuts: by label where items must share something."""
    groups = (sum(plan.sizes),) if capabilities.shares == "nothing" else plan.sizes
    calls = sum(ceil(size / capabilities.max_chunk) for size in groups)
    return Span(calls, calls)


def variation_calls(candidates: Sequence[int], step: Step, capabilities: Capabilities) -> Span:
    """Requests for an iteration's lookahead and offspring, cut as pe.run.work cuts.

    Which parents will have how many offspring is not known before, nor which conditions they carry: the
    fewest calls are those of one parent (condition) per label, the most those of all different.

    Args:
        candidates: members of S_{t-1} per label.
        step: iteration t.
        capabilities: the generator's.
    """
    chunk, k = capabilities.max_chunk, step.lookahead
    if capabilities.shares == "nothing":
        calls = ceil(k * sum(candidates) / chunk) + ceil(sum(step.sizes) / chunk)
        return Span(calls, calls)
    apart = sum(candidates) * ceil(k / chunk)
    joined = apart if capabilities.shares == "parent" else sum(ceil(k * size / chunk) for size in candidates)
    fewest = sum(ceil(size / chunk) for size in step.sizes)
    most = sum(_most_groups(size, parents, chunk) for size, parents in zip(step.sizes, candidates, strict=True))
    return Span(joined + fewest, apart + most)


def total(calls: Iterable[Span | None]) -> Span | None:
    """The sum; None when one of them is unknown."""
    found = Span()
    for span in calls:
        if span is None:
            return None
        found += span
    return found


def _most_groups(items: int, parents: int, chunk: int) -> int:
    """The most requests for `items` offspring of `parents` candidates: each has one before any has a second chunk."""
    return items if items <= parents else parents + (items - parents) // chunk
