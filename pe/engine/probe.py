"""One call of RANDOM_API and one of VARIATION_API: what a user looks at first with a new generator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pe.data.conditions import Conditions
from pe.data.samples import Samples
from pe.data.seeds import item_seeds
from pe.dispatch.work import check_answer
from pe.errors import APIError, RecipeError, nearest_name
from pe.planning.build import build_generator, price_of
from pe.planning.readiness import check_public_place
from pe.plugins.price import Price
from pe.plugins.protocols import (
    Answer,
    DescribesDegree,
    DrawsConditions,
    GenerationAPI,
    RandomRequest,
    VariationRequest,
    info_of,
)
from pe.plugins.usage import KINDS, Usage
from pe.recipe.schema import Recipe
from pe.report.pictures import png

_GAP, _HEIGHT = 8, 128
_NUMBERS = 4  # of a condition that are told one by one


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        api: RANDOM_API or VARIATION_API.
        seconds: from the request to its answer, all retries included.
        samples: as they came.
        missing: why samples are missing, one sentence each.
        usage: what it used.
        cost: by the recipe's price.
    """

    api: str
    seconds: float
    samples: Samples
    missing: tuple[str, ...]
    usage: Usage
    cost: float

    def line(self, currency: str) -> str:
        """In a line, as a person reads it."""
        shape = f"{'×'.join(map(str, self.samples.shape))} ({self.samples.axes})"
        noun = self.samples.noun
        cost = f", {self.cost:.4g} {currency}" if self.cost else ""
        tokens = f", {self.usage.tokens:,} tokens" if self.usage.tokens else ""
        calls = f" in {self.usage.calls} calls" if self.usage.calls != 1 else ""
        return f"{self.api:<14}{len(self.samples)} {noun} of {shape}{calls}, {self.seconds:.2f} s{tokens}{cost}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "api": self.api,
            "seconds": round(self.seconds, 3),
            "samples": len(self.samples),
            "shape": list(self.samples.shape),
            "missing": list(self.missing),
            "calls": self.usage.calls,
            "tokens": self.usage.tokens,
            "tokens_by_kind": {kind: getattr(self.usage, kind) for kind in KINDS},
            "megapixels": self.usage.megapixels,
            "cost": self.cost,
        }


@dataclass(frozen=True)
class Probe:
    """What a probe found.

    Attributes:
        label: asked for.
        conditions: of the first sample: name → value, as text.
        degree: of the variation.
        meaning: of the degree, in the generator's own words; empty: it has none.
        currency: of the costs.
        calls: one of each API.
    """

    label: str
    conditions: dict[str, str]
    degree: float
    meaning: str
    currency: str
    calls: tuple[Call, Call]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "label": self.label,
            "conditions": self.conditions,
            "degree": self.degree,
            "degree_means": self.meaning or None,
            "currency": self.currency,
            "calls": [call.to_dict() for call in self.calls],
        }

    def picture(self) -> bytes:
        """A PNG file: the new samples in the upper row, below each its variation."""
        return page_of(call.samples.pictures() for call in self.calls)


def probe(recipe: Recipe, label: str | None = None, degree: float | None = None) -> Probe:
    """Ask the recipe's generator once for new samples and once for variations; no private record is read.

    Args:
        recipe: names the generator.
        label: for which label; None: the first.
        degree: of the variation; None: the first above 0 that the run would ask for, or 0.5.

    Raises:
        RecipeError: a label or degree that there is not, or public images that lie where the private records do.
        APIError: the generator made no sample; why is said.
    """
    label = known_label(recipe, label)
    api = build_generator(recipe)
    degree = _degree(recipe, api) if degree is None else degree
    check_degrees(degree)
    check_public_place(recipe, api)
    price = price_of(recipe)
    first, founders = _random(api, label, recipe.seed, price)
    second = _variation(api, label, founders=founders, degree=degree, seed=recipe.seed, price=price)
    conditions = {name: _in_words(column[0]) for name, column in founders.conditions.items() if len(column)}
    return Probe(
        label=label,
        conditions=conditions,
        degree=degree,
        meaning=meaning_of(api, degree),
        currency=price.currency,
        calls=(first, second),
    )


def known_label(recipe: Recipe, label: str | None) -> str:
    """The label to ask for: the recipe's first, unless one is named.

    Raises:
        RecipeError: there is none of this name.
    """
    labels = recipe.private.labels
    if label is not None and label not in labels:
        raise RecipeError(f"There is no label '{label}'; {nearest_name(label, labels)}")
    return labels[0] if label is None else label


def check_degrees(*degrees: float) -> None:
    """Raise RecipeError for what is no degree."""
    for degree in degrees:
        if not 0 <= degree <= 1:
            raise RecipeError(f"A degree lies from 0 to 1, not at {degree:g}.")


def meaning_of(api: GenerationAPI, degree: float) -> str:
    """What a degree comes to, in the generator's own words; empty: it has none."""
    return api.describe_degree(degree) if isinstance(api, DescribesDegree) else ""


def _in_words(value: Any) -> str:
    """A condition as text; of many numbers, how many they are and their range."""
    if np.size(value) <= _NUMBERS:
        return str(value)
    return f"{np.size(value)} numbers from {np.min(value):.3g} to {np.max(value):.3g}"


def _random(api: GenerationAPI, label: str, seed: int, price: Price) -> tuple[Call, Answer]:
    count = min(api.capabilities.max_chunk, 4)
    items = np.arange(count)
    seeds = item_seeds(seed, "probe/random", items, np.zeros(count, np.int64))
    same = np.repeat(seeds[:1], count)  # so that all share one condition
    conditions = api.draw_conditions((label,) * count, same) if isinstance(api, DrawsConditions) else Conditions()
    request = RandomRequest((label,) * count, seeds, conditions)
    call, answer = _time("RANDOM_API", lambda: api.random_api(request), count, price)
    if not len(answer.samples):
        raise APIError(f"RANDOM_API made no sample: {call.missing[0]}.")
    if not answer.conditions and conditions:
        kept = [i for i in range(count) if i not in answer.missing]
        answer = Answer(answer.samples, conditions.take(kept), answer.missing, answer.usage)
    return call, answer


def _variation(api: GenerationAPI, label: str, founders: Answer, degree: float, seed: int, price: Price) -> Call:
    count = len(founders.samples) if api.capabilities.shares != "parent" else 1
    seeds = item_seeds(seed, "probe/variation", np.arange(count), np.zeros(count, np.int64))
    rows = np.arange(count)
    request = VariationRequest(
        founders.samples.take(rows), (label,) * count, founders.conditions.take(rows), seeds, degree
    )
    call, _ = _time("VARIATION_API", lambda: api.variation_api(request), count, price)
    return call


def _time(name: str, ask: Callable[[], Answer], count: int, price: Price) -> tuple[Call, Answer]:
    started = time.monotonic()
    answer = check_answer(name, ask(), count)
    seconds = time.monotonic() - started
    missing = tuple(miss.reason for _, miss in sorted(answer.missing.items()))
    return Call(
        api=name,
        seconds=seconds,
        samples=answer.samples,
        missing=missing,
        usage=answer.billed,
        cost=price.of(answer.billed),
    ), answer


def _degree(recipe: Recipe, api: GenerationAPI) -> float:
    """Of the first iteration that varies; of a run whose evolution is left to the planner the generator's first."""
    evolution = recipe.evolution
    degree = evolution.degree if evolution.settled or "degree" in evolution.given else list(info_of(api).degrees)
    return next(filter(None, degree if isinstance(degree, list) else [degree]), 0.5)


def page_of(rows: Iterable[Sequence[Image.Image]]) -> bytes:
    """A PNG file of rows of pictures, one below the other."""
    drawn = [_row(pictures) for pictures in rows]
    page = Image.new("RGB", (max(row.width for row in drawn), sum(row.height + _GAP for row in drawn) - _GAP), "white")
    y = 0
    for row in drawn:
        page.paste(row, (0, y))
        y += row.height + _GAP
    return png(page)


def _row(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures side by side, small ones enlarged; white where there is none."""
    if not pictures:
        return Image.new("RGB", (1, _HEIGHT), "white")
    factor = max(1, _HEIGHT // pictures[0].height)
    large = [one.resize((one.width * factor, one.height * factor), Image.Resampling.NEAREST) for one in pictures]
    size = sum(one.width + _GAP for one in large) - _GAP, large[0].height
    row = Image.new("RGB", size, "white")
    for i, one in enumerate(large):
        row.paste(one, (i * (one.width + _GAP), 0))
    return row
