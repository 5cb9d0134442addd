"""One generator of several: who it is, what it is asked, and what its answers become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import BoundedSemaphore

import numpy as np

from pe.data.conditions import DRAWN, GENERATOR, PART, Conditions
from pe.errors import RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    DrawsConditions,
    GenerationAPI,
    RandomRequest,
    Seeds,
    VariationRequest,
    info_of,
)
from pe.plugins.registry import construct, require
from pe.plugins.specs import MemberSpec, members_of

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Member:
    """A generator of the portfolio.

    Attributes:
        name: unique; the samples that it made carry it.
        api: the generator itself.
        share: of the first population, and of what explores; all members' add up to 1.
        price: what its provider charges.
        gate: lets as many requests through at once as it can take.
    """

    name: str
    api: GenerationAPI
    share: float
    price: Price
    gate: BoundedSemaphore

    @property
    def can(self) -> Capabilities:
        """What it can do."""
        return self.api.capabilities

    @property
    def can_anew(self) -> Capabilities:
        """The same in place of a variation: one by one where it draws what the items of a request must share."""
        draws = isinstance(self.api, DrawsConditions) or self.can.shares != "nothing"
        return replace(self.can, max_chunk=1) if draws else self.can

    def draw(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """What it draws for new samples; no columns where it draws nothing."""
        return self.api.draw_conditions(labels, seeds) if isinstance(self.api, DrawsConditions) else Conditions()

    def ask_new(self, request: RandomRequest) -> Answer:
        """New samples of it, asked for with conditions of its own."""
        with self.gate:
            return self._told(self.api.random_api(request), request)

    def ask(self, request: VariationRequest) -> Answer:
        """Variations of its samples, which carry the conditions of all members."""
        own = replace(request, conditions=self.own(request.conditions))
        with self.gate:
            return self._told(self.api.variation_api(own), own)

    def own(self, conditions: Conditions) -> Conditions:
        """Its columns, by its own names."""
        before = f"{self.name}{PART}"
        found = {name.removeprefix(before): each for name, each in conditions.items() if name.startswith(before)}
        if info_of(self.api).kept is not None and DRAWN in conditions:
            found[DRAWN] = conditions[DRAWN]
        return Conditions(found)

    def named(self, conditions: Conditions, count: int) -> Conditions:
        """`count` rows of its own columns, by the portfolio's names, with the name of the generator."""
        columns = {name if name == DRAWN else f"{self.name}{PART}{name}": each for name, each in conditions.items()}
        return Conditions({GENERATOR: np.full(count, self.name), **columns})

    def _told(self, answer: Answer, asked: RandomRequest | VariationRequest) -> Answer:
        """Its answer, with the name of the generator, and what it cost."""
        conditions = answer.conditions
        if not conditions:
            conditions = asked.conditions.take([i for i in range(len(asked)) if i not in answer.missing])
        return Answer(
            answer.samples,
            self.named(conditions, len(answer.samples)),
            {i: replace(miss, reason=f"{self.name}: {miss.reason}") for i, miss in answer.missing.items()},
            replace(answer.billed, cost=self.price.of(answer.billed)),
        )


def members(specs: Sequence[MemberSpec]) -> tuple[Member, ...]:
    """The generators that a recipe lists.

    Raises:
        RecipeError: a name comes twice or is none, or a generator cannot be one of several.
        MissingDependency: a library that one needs is not installed.
    """
    kinds = Counter(spec.kind for spec in specs)
    made: list[Member] = []
    total, seen = sum(spec.share for spec in specs), Counter[str]()
    for spec in specs:
        seen[spec.kind] += 1
        name = spec.name or (f"{spec.kind}-{seen[spec.kind]}" if kinds[spec.kind] > 1 else spec.kind)
        if not _NAME.fullmatch(name):
            raise RecipeError(f"portfolio: the name '{name}' has other characters than letters, digits, '_' and '-'.")
        if any(other.name == name for other in made):
            raise RecipeError(f"portfolio: two generators have the name '{name}': give one of them another.")
        api = _constructed(spec, name)
        made.append(
            Member(name, api, spec.share / total, spec.price.price, BoundedSemaphore(api.capabilities.concurrency))
        )
    return tuple(made)


def _constructed(spec: MemberSpec, name: str) -> GenerationAPI:
    require("pe.adapters", spec.kind)
    api: GenerationAPI = construct("pe.adapters", spec.kind, spec.settings)
    if hasattr(api, "planned"):
        raise RecipeError(
            f"portfolio: '{name}' is fitted on the private records, which a portfolio does not do: omit it."
        )
    if hasattr(api, "ways"):
        raise RecipeError(f"portfolio: '{name}' is a portfolio, too: list its generators here.")
    if members_of(spec):
        raise RecipeError(f"portfolio: '{name}' has generators of its own, which a portfolio does not take: omit it.")
    return api
