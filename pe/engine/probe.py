"""`pe probe`: ask a generator for a few samples and variations, at one degree or several."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pe.data.display import Page, picture, png
from pe.data.fonts import font_for
from pe.data.population import NO_PARENT, Population
from pe.data.samples import CAPTION, Conditions, Samples
from pe.dispatch.answers import Items, ItemState
from pe.dispatch.work import Work
from pe.engine.ladder import FEWEST, DegreeVariations, DegreeVerdict, judge, measure, rises
from pe.errors import APIError, RecipeError, nearest_name
from pe.planning.checks import check_public_place
from pe.planning.parts import build_embedding, build_generator, price_of
from pe.plugins.price import Price
from pe.plugins.protocols import (
    KINDS,
    NOTHING,
    Answer,
    Embedding,
    GenerationAPI,
    Generator,
    Usage,
    info_of,
)
from pe.recipe.page import page
from pe.recipe.schema import Recipe

DEGREES = (0.0, 0.1, 0.3, 0.6, 1.0)
_GAP = 8
_HEIGHT = 128
# pixels of a caption's letters, and its lines at most
_LETTER = 13
_LINES = 3
_NUMBERS = 4  # of a condition that are shown one by one


@dataclass(frozen=True)
class Call:
    """One call, or all calls for one degree: the samples, and a reason for each missing one.

    Retries are included. `api` is RANDOM_API or VARIATION_API, or the degree.
    """

    api: str
    seconds: float
    samples: Samples
    missing: tuple[str, ...]
    usage: Usage
    cost: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
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


def _check_label(recipe: Recipe, label: str | None) -> str:
    labels = recipe.private.labels
    if label is not None and label not in labels:
        raise RecipeError(f"There is no label '{label}'; {nearest_name(label, labels)}")
    return labels[0] if label is None else label


def _degree(recipe: Recipe, api: Generator) -> float:
    """Return the recipe's first degree above 0.

    If the planner is to choose the degrees, it is the generator's first. It is 0.5 if there is
    none.
    """
    evolution = recipe.evolution
    has_degree = evolution.is_complete or "degree" in evolution.own_values
    degree = evolution.degree if has_degree else list(info_of(api).degrees)
    return next(filter(None, degree if isinstance(degree, list) else [degree]), 0.5)


def _captions(founders: Population, label: str) -> tuple[str, ...]:
    """Return what each sample was asked to show: its caption or prompt, or else the label."""
    for name in (CAPTION, "prompt"):
        if name in founders.conditions:
            return tuple(map(str, founders.conditions[name]))
    return (label,) * len(founders)


def _in_words(value: Any) -> str:
    """Return a condition as text, or the count and range of many numbers."""
    if np.size(value) <= _NUMBERS:
        return str(value)
    return f"{np.size(value)} numbers from {np.min(value):.3g} to {np.max(value):.3g}"


def _page_of(rows: Iterable[tuple[Sequence[Image.Image], Sequence[str]]]) -> bytes:
    """Return a PNG file of rows of pictures with captions, one below the other."""
    lines = [_row(pictures, captions) for pictures, captions in rows]
    page = Image.new(
        "RGB",
        (max(row.width for row in lines), sum(row.height + _GAP for row in lines) - _GAP),
        "white",
    )
    y = 0
    for row in lines:
        page.paste(row, (0, y))
        y += row.height + _GAP
    return png(page)


def _row(pictures: Sequence[Image.Image], captions: Sequence[str]) -> Image.Image:
    """Return pictures side by side, small ones enlarged, each above its caption.

    If there are none, the row is a white line.
    """
    if not pictures:
        return Image.new("RGB", (1, _HEIGHT), "white")
    factor = max(1, _HEIGHT // pictures[0].height)
    large = [
        one.resize((one.width * factor, one.height * factor), Image.Resampling.NEAREST)
        for one in pictures
    ]
    height = large[0].height
    # A letter is about half as wide as it is high.
    wide = max(large[0].width * 2 // _LETTER, 1)
    below = [
        textwrap.wrap(caption, wide, max_lines=_LINES, placeholder="…") for caption in captions
    ]
    bottom = height + max(map(len, below)) * (_LETTER + 4) + 4
    row = Image.new("RGB", (sum(one.width + _GAP for one in large) - _GAP, bottom), "white")
    pen = ImageDraw.Draw(row)
    for i, (one, words) in enumerate(zip(large, below, strict=True)):
        x = i * (one.width + _GAP)
        row.paste(one, (x, 0))
        font = font_for("".join(words), _LETTER) or ImageFont.load_default(_LETTER)
        pen.multiline_text((x, height + 2), "\n".join(words), "black", font)
    return row


@dataclass(frozen=True)
class Probe:
    """A few new samples, and variations of them at one degree or several, with equal seeds.

    Attributes:
        label: of all samples.
        conditions: of the first sample: name → value, as text.
        captions: of the new samples: what each was asked to show.
        parents: the new samples.
        rungs: one for each degree, ascending. Distances are measured if there are several.
        calls: the call for the parents, and then the calls for each rung as one.
        meanings: the generator's own words on each degree; empty if it has none.
        currency: of the costs.
        verdict: on the least degree above 0 and the greatest; None for one degree.
    """

    label: str
    conditions: dict[str, str]
    captions: tuple[str, ...]
    parents: Samples
    rungs: tuple[DegreeVariations, ...]
    calls: tuple[Call, ...]
    meanings: tuple[str, ...]
    currency: str
    verdict: DegreeVerdict | None

    def __str__(self) -> str:
        return page("pe.engine", "probe.txt.jinja", probe=self).rstrip("\n")

    def _repr_html_(self) -> str:
        return Page(self)._repr_html_() + picture(
            self.picture(),
            "new samples, and below each its variations",
        )

    @property
    def rises(self) -> dict[str, bool]:
        """For each of SPACES, True if the mean distance grows from each degree to the next."""
        return rises(self.rungs)

    @property
    def equal(self) -> tuple[int, ...]:
        """For each degree, how many variations equal those of the degree before.

        For the first degree, how many equal their parents.
        """
        first = int((self.rungs[0].apart["samples"] == 0).sum())
        return (first, *(one.count_equal(before) for before, one in pairwise(self.rungs)))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values.

        Distances and the verdict stand only where there are several degrees.
        """
        values: dict[str, Any] = {
            "label": self.label,
            "conditions": self.conditions,
            "parents": len(self.parents),
            "unit": self.parents.unit,
            "currency": self.currency,
            "random": self.calls[0].to_dict(),
            "rungs": [
                {"degree": one.degree, "degree_means": meaning or None} | call.to_dict()
                for one, call, meaning in zip(
                    self.rungs,
                    self.calls[1:],
                    self.meanings,
                    strict=True,
                )
            ],
        }
        if self.verdict is not None:
            for rung, one, same in zip(values["rungs"], self.rungs, self.equal, strict=True):
                rung |= {"distance": one.means(), "equal": same}
            values |= {"rises": self.rises, "degree": self.verdict.degree, "told": self.verdict.why}
        return values

    def picture(self) -> bytes:
        """Return a PNG file: the new samples, and below each its variation at each degree."""
        rows = [(self.parents.pictures(), self.captions)]
        for one in self.rungs:
            made = dict(zip(one.parents.tolist(), one.samples.pictures(), strict=True))
            blanks = [Image.new("RGB", parent.size, "white") for parent in rows[0][0]]
            cells = [made.get(i, blank) for i, blank in enumerate(blanks)]
            rows.append((cells, (f"degree {one.degree:g}",) * len(cells)))
        return _page_of(rows)


def probe(
    recipe: Recipe,
    label: str | None = None,
    degrees: Sequence[float] = (),
    api: GenerationAPI | None = None,
    embedding: Embedding | None = None,
) -> Probe:
    """Ask the recipe's generator for a few samples, and for variations of them at each degree.

    No record is read. The defaults are the first label, and the first degree above 0 that the run
    would ask for, or 0.5 if there is none. For one degree there are two requests, if the generator
    takes so many samples in one. For several degrees, distances are measured, which loads the
    embedding. `api` and `embedding` are objects of the user's own, in place of the recipe's.
    """
    label = _check_label(recipe, label)
    generator = build_generator(recipe, api)
    steps = sorted(set(degrees)) or [_degree(recipe, generator)]
    for degree in steps:
        if not 0 <= degree <= 1:
            raise RecipeError(f"A degree is a number from 0 to 1, not {degree:g}.")
    is_ladder = len(steps) > 1
    measures = build_embedding(recipe, embedding) if is_ladder else None
    check_public_place(recipe, generator)
    price = price_of(recipe)
    can = generator.capabilities
    meanings = tuple(generator.describe_degree(degree) for degree in steps)
    # A verdict takes FEWEST parents. A single degree is only looked at, so one request will do.
    count = FEWEST if is_ladder else min(can.max_chunk, 4)
    alike = not is_ladder or can.shares != "nothing"
    founders, first = _founders(generator, label, recipe.seed, price, count, alike)
    parents = np.arange(len(founders) if is_ladder or can.shares != "parent" else 1)
    rungs = []
    calls = [first]
    for degree in steps:
        labels = founders.labels[: len(parents)]
        work = Work("probe/variation", labels, (label,), recipe.seed, parents, founders, degree)
        answers, call = _ask(work, f"Degree {degree:g}", generator, price)
        variations = [(items, one.samples) for items, one in answers if items.size]
        rungs.append(measure(degree, founders.samples, variations, measures))
        calls.append(call)
    low = next((one for one in rungs if one.degree), rungs[-1])
    return Probe(
        label=label,
        conditions={
            name: _in_words(column[0])
            for name, column in founders.conditions.items()
            if len(column)
        },
        captions=_captions(founders, label),
        parents=founders.samples,
        rungs=tuple(rungs),
        calls=tuple(calls),
        meanings=meanings,
        currency=price.currency,
        verdict=judge(low, rungs[-1], founders.samples.unit) if is_ladder else None,
    )


def _founders(
    api: Generator,
    label: str,
    seed: int,
    price: Price,
    count: int,
    alike: bool,
) -> tuple[Population, Call]:
    """Draw `count` new samples, all of one condition if `alike`. Return them and the call.

    Raises:
        APIError: no sample came.
    """
    labels = np.zeros(count, np.int32)
    none = np.full(count, NO_PARENT)
    work = Work("probe/parents", labels, (label,), seed, none, alike=alike)
    answers, call = _ask(work, "RANDOM_API", api, price)
    count = len(call.samples)
    if not count:
        raise APIError(f"RANDOM_API made no sample: {call.missing[0]}.")
    conditions = Conditions.concatenate([one.conditions for items, one in answers if items.size])
    return Population(call.samples, labels[:count], conditions, none[:count]), call


def _ask(
    work: Work,
    name: str,
    api: Generator,
    price: Price,
) -> tuple[list[tuple[Items, Answer]], Call]:
    """Ask for the work.

    Return each answer with the items that were made, and all requests together as one Call.
    """
    standing = ItemState.of(len(work))
    start = time.monotonic()
    answers: list[tuple[Items, Answer]] = []
    for items in work.chunks(np.arange(len(work)), standing, api):
        answer = work.ask(api, items, standing)
        answers.append((np.delete(items, sorted(answer.missing)), answer))
    # Even an answer without a sample tells their kind and shape.
    samples = [answer.samples for items, answer in answers if items.size] or [answers[0][1].samples]
    usage = sum((answer.bill for _, answer in answers), NOTHING)
    call = Call(
        api=name,
        seconds=time.monotonic() - start,
        samples=type(samples[0])(np.concatenate([one.array for one in samples])),
        missing=tuple(
            miss.reason for _, answer in answers for _, miss in sorted(answer.missing.items())
        ),
        usage=usage,
        cost=price.of(usage),
    )
    return answers, call
