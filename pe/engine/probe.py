"""One call of RANDOM_API and one of VARIATION_API: what a user looks at first with a new generator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pe.data.display import Page, picture
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions, Samples, item_seeds
from pe.dispatch.answers import Items, Standing
from pe.dispatch.work import Work, check_answer
from pe.engine.ladder import FEWEST, SPACES, Rung, Verdict, equal, judge, measure, rises
from pe.errors import APIError, RecipeError, nearest_name
from pe.planning.build import build_embedding, build_generator, price_of
from pe.planning.checks import check_public_place
from pe.plugins.price import Price
from pe.plugins.protocols import (
    KINDS,
    NOTHING,
    Answer,
    DescribesDegree,
    DrawsConditions,
    Embedding,
    GenerationAPI,
    RandomRequest,
    Usage,
    VariationRequest,
    info_of,
)
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


# The same parents varied at several degrees: what a user looks at before trusting a degree.


_GROWS = {"samples": "between samples", "embedding": "in the embedding"}
_FOUND = {
    "heeded": "heeded",
    "ignored": "not heeded",
    "mixed up": "unknown, because parents are mixed up",
    "unknown": "unknown",
}
DEGREES = (0.0, 0.1, 0.3, 0.6, 1.0)
PARENTS = FEWEST


@dataclass(frozen=True)
class LadderProbe:
    """The same parents varied at several degrees, with equal seeds.

    Attributes:
        label: asked for.
        parents: from RANDOM_API.
        rungs: one for each degree, ascending.
        calls: what the parents took, and then each rung.
        meanings: of each degree, in the generator's own words; empty: it has none.
        currency: of the costs.
        verdict: on the least degree above 0 and the greatest.
    """

    label: str
    parents: Samples
    rungs: tuple[Rung, ...]
    calls: tuple[Call, ...]
    meanings: tuple[str, ...]
    currency: str
    verdict: Verdict

    def __str__(self) -> str:
        lines = [f"Label '{self.label}'"]
        for call in self.calls:
            lines += [call.line(self.currency), *(f"  missing: {reason}" for reason in call.missing)]
        head = ("degree", "distance", "embedding", "equal")
        rows = [head, *(_row_probe_ladder(one, same) for one, same in zip(self.rungs, self.equal, strict=True))]
        lines += ["", *("".join(cell.rjust(11) for cell in row) for row in rows), ""]
        lines += [f"At {one.degree:g}: {words}" for one, words in zip(self.rungs, self.meanings, strict=True) if words]
        grows = ", ".join(f"{_GROWS[space]} {'yes' if yes else 'no'}" for space, yes in self.rises.items())
        lines += [
            f"distance: mean from the parent; {self.parents.unit}. equal: variations that are those above, or the "
            "parents",
            f"Does the distance grow with the degree? {grows}",
        ]
        return "\n".join([*lines, f"The degree is {_FOUND[self.verdict.degree]}, as measured: {self.verdict.told}"])

    def _repr_html_(self) -> str:
        return Page(self)._repr_html_() + picture(self.picture(), "one row per parent: itself, then each degree")

    @property
    def rises(self) -> dict[str, bool]:
        """Whether the mean distance from the parent grows with the degree, between samples and in the embedding."""
        return rises(self.rungs)

    @property
    def equal(self) -> tuple[int, ...]:
        """For each rung, of how many parents the variation is that of the rung before; of the first, the parent."""
        first = int((self.rungs[0].apart["samples"] == 0).sum())
        return (first, *(equal(one, other) for one, other in zip(self.rungs[1:], self.rungs[:-1], strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        rungs = zip(self.rungs, self.calls[1:], self.meanings, self.equal, strict=True)
        return {
            "label": self.label,
            "parents": len(self.parents),
            "unit": self.parents.unit,
            "currency": self.currency,
            "random": self.calls[0].to_dict(),
            "rungs": [
                {"degree": one.degree, "degree_means": meaning or None, "distance": one.means(), "equal": same}
                | call.to_dict()
                for one, call, meaning, same in rungs
            ],
            "rises": self.rises,
            "degree": self.verdict.degree,
            "told": self.verdict.told,
        }

    def picture(self) -> bytes:
        """A PNG file: one row for each parent, which is followed by its variations; white where there is none."""
        columns = [one.samples.pictures() for one in self.rungs]
        at = [{int(parent): i for i, parent in enumerate(one.parents)} for one in self.rungs]
        rows = []
        for i, parent in enumerate(self.parents.pictures()):
            blank = Image.new("RGB", parent.size, "white")
            varied = [made[places[i]] if i in places else blank for made, places in zip(columns, at, strict=True)]
            rows.append([parent, *varied])
        return page_of(rows)


def probe_ladder(
    recipe: Recipe,
    label: str | None = None,
    degrees: Sequence[float] = DEGREES,
    api: GenerationAPI | None = None,
    embedding: Embedding | None = None,
) -> LadderProbe:
    """Ask the recipe's generator for a few samples, and for a variation of each at every degree; no record is read.

    Args:
        recipe: names the generator and the embedding.
        label: for which label; None: the first.
        degrees: at least one.
        api: the generator, if it is the user's own object.
        embedding: the embedding, likewise.

    Raises:
        RecipeError: a label or degree that there is not, or public images that lie where the private records do.
        APIError: the generator made no sample; why is said.
    """
    label = known_label(recipe, label)
    check_degrees(*degrees)
    if not degrees:
        raise RecipeError("A ladder has at least one degree: give some, such as 0.1 and 1.")
    asked, embeds = build_generator(recipe, api), build_embedding(recipe, embedding)
    check_public_place(recipe, asked)
    price, steps = price_of(recipe), sorted(set(degrees))
    meanings = tuple(meaning_of(asked, degree) for degree in steps)
    founders, first = _parents(asked, label, recipe.seed, price)
    rungs, calls = [], [first]
    for degree in steps:
        work = Work(
            phase="probe/ladder",
            labels=founders.labels,
            classes=(label,),
            seed=recipe.seed,
            parents=np.arange(len(founders)),
            source=founders,
            degree=degree,
        )
        answers, call = _ask(work, f"Degree {degree:g}", asked, price)
        made = [(items, one.samples) for items, one in answers if items.size]
        rungs.append(measure(degree, founders.samples, made, embeds))
        calls.append(call)
    low = next((one for one in rungs if one.degree), rungs[-1])
    return LadderProbe(
        label=label,
        parents=founders.samples,
        rungs=tuple(rungs),
        calls=tuple(calls),
        meanings=meanings,
        currency=price.currency,
        verdict=judge(low, rungs[-1], founders.samples.unit),
    )


def _row_probe_ladder(one: Rung, same: int) -> tuple[str, ...]:
    means = (one.means()[space] for space in SPACES)
    return (f"{one.degree:g}", *("–" if mean is None else f"{mean:.3g}" for mean in means), f"{same}")


def _parents(api: GenerationAPI, label: str, seed: int, price: Price) -> tuple[Population, Call]:
    """New samples, all of one condition where a request may hold no other."""
    work = Work(
        phase="probe/parents",
        labels=np.zeros(PARENTS, np.int32),
        classes=(label,),
        seed=seed,
        parents=np.full(PARENTS, NO_PARENT),
        alike=api.capabilities.shares != "nothing",
    )
    answers, call = _ask(work, "RANDOM_API", api, price)
    count = len(call.samples)
    if not count:
        raise APIError(f"RANDOM_API made no sample: {call.missing[0]}.")
    conditions = Conditions.concatenate([one.conditions for items, one in answers if items.size])
    return Population(call.samples, work.labels[:count], conditions, work.parents[:count]), call


def _ask(work: Work, name: str, api: GenerationAPI, price: Price) -> tuple[list[tuple[Items, Answer]], Call]:
    """Each request's answer, with the items that were made; and what all of them took."""
    standing, found, missing, total = Standing.untouched(len(work)), [], [], NOTHING
    started = time.monotonic()
    for items in work.chunks(np.arange(len(work)), standing, api):
        answer = work.ask(api, items, standing)
        found.append((np.delete(items, sorted(answer.missing)), answer))
        missing += [miss.reason for _, miss in sorted(answer.missing.items())]
        total += answer.billed
    samples = [answer.samples for items, answer in found if items.size] or [found[0][1].samples]
    call = Call(
        api=name,
        seconds=time.monotonic() - started,
        samples=type(samples[0])(np.concatenate([one.array for one in samples])),
        missing=tuple(missing),
        usage=total,
        cost=price.of(total),
    )
    return found, call
