"""The same parents varied at several degrees: what a user looks at before trusting a degree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pe.data.conditions import Conditions
from pe.data.display import Page, picture
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Samples
from pe.dispatch.answers import Items, Standing
from pe.dispatch.work import Work
from pe.engine.ladder import FEWEST, SPACES, Rung, Verdict, equal, judge, measure, rises
from pe.engine.probe import Call, check_degrees, known_label, meaning_of, page_of
from pe.errors import APIError, RecipeError
from pe.planning.build import build_embedding, build_generator, price_of
from pe.planning.readiness import check_public_place
from pe.plugins.price import Price
from pe.plugins.protocols import Answer, Embedding, GenerationAPI
from pe.plugins.usage import NOTHING
from pe.recipe.schema import Recipe

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
        rows = [head, *(_row(one, same) for one, same in zip(self.rungs, self.equal, strict=True))]
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


def _row(one: Rung, same: int) -> tuple[str, ...]:
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
