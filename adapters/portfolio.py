"""One generator of several: who it is, what it is asked, and what its answers become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from adapters.parts import Request, cut, part_of, together
from pe.data.samples import DRAWN, GENERATOR, PART, Array, Conditions, Shape, uniforms
from pe.errors import APIError, RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    ChecksLabels,
    ChecksMachine,
    DescribesDegree,
    DescribesWait,
    DrawsConditions,
    Finding,
    GenerationAPI,
    LooksAtEndpoint,
    PluginInfo,
    RandomRequest,
    ReadsPublicSamples,
    Seeds,
    TellsOfAnswers,
    VariationRequest,
    info_of,
)
from pe.plugins.registry import MemberSpec, construct, load, members_of, require
from pe.plugins.settings import Settings, read_settings

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


# A portfolio: each sample remembers its own generator, variations go to it, and the votes shift the shares.


Items = npt.NDArray[np.int64]

_DEGREES: tuple[Literal["none", "wording", "exact"], ...] = ("none", "wording", "exact")
"""From the least obedient."""


class PortfolioSettings(Settings):
    """What a recipe says of a portfolio.

    Attributes:
        of: the generators, two or more, each as `api` describes one.
        explore: public share of the offspring that are new samples, of a generator drawn by the shares, in place of
            variations of their parents, so that no generator is lost for good.
    """

    of: Annotated[list[MemberSpec], Field(min_length=2)]
    explore: Annotated[float, Field(ge=0, lt=1)] = 0.05


class Portfolio:
    """RANDOM_API and VARIATION_API by several generators in one run.

    New samples are dealt out to the generators by their shares, label by label. A sample carries its generator's name
    as the condition `generator`, and that generator's own conditions as `name.condition`; all variations of it are
    made by the same. Who makes what follows from public shares, seeds and released votes alone.

    Args:
        settings: see `PortfolioSettings`.

    Raises:
        RecipeError: a setting is wrong, or the generators do not fit together.
    """

    Settings = PortfolioSettings
    info = PluginInfo()
    starter = """\
  explore: 0.05\t# public: so many of a population's offspring are new samples, by the shares below
  of:\t# two or more, each as `api` describes one; all make samples of one size
    - kind: openai_images\t# an endpoint (docs/endpoints.md); `pe init IMAGES --api KIND` shows each kind's settings
      name: server\t# stands in samples and report; default: the kind
      share: 1\t# of S_0, beside the others' shares
      base_url: http://127.0.0.1:8000/v1
      key_env: null
      model: my-model
      prompts: {prompts}
      image_size: {size}
      channels: {channels}
      size: 512x512
      # price: {{image: 0.01}}\t# of this generator alone; then state limits.max_cost, too
    - kind: diffusion\t# a model on this machine
      name: local
      share: 1
      model: stable-diffusion-v1-5/stable-diffusion-v1-5
      prompts: {prompts}
      size: 512
      image_size: {size}
      channels: {channels}
"""

    def __init__(self, **settings: Any) -> None:
        given = read_settings(PortfolioSettings, settings, "portfolio")
        self._members, self._explore = members(given.of), given.explore
        self._places = {member.name: i for i, member in enumerate(self._members)}
        self._shares = np.cumsum([member.share for member in self._members])[:-1]
        infos = {member.name: info_of(member.api) for member in self._members}
        hosts = [one.hosts for one in infos.values()]
        sizes = [infos[member.name].drawn for member in self._members if member.price.megapixel]
        distinct = [one.distinct for one in infos.values()]
        self.info = PluginInfo(
            modality=_same("modality", {name: one.modality for name, one in infos.items()}),
            hosts=None if None in hosts else tuple(dict.fromkeys(chain.from_iterable(filter(None, hosts)))),
            by_label=all(one.by_label for one in infos.values()),
            distinct=None if None in distinct else sum(filter(None, distinct)),
            shape=_same("shape", {name: one.shape for name, one in infos.items() if one.shape}),
            drawn=None if None in sizes else max(sizes, key=lambda size: prod(size or ()), default=None),
            kept=_same("kept size", {name: one.kept for name, one in infos.items() if one.kept}),
            degrees=next(iter(infos.values())).degrees,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Of all together: a request may hold anything, and is passed on as each generator wants it."""
        each = [member.can for member in self._members]
        return Capabilities(
            max_chunk=max(can.max_chunk for can in each),
            concurrency=sum(can.concurrency for can in each),
            degree=min((can.degree for can in each), key=_DEGREES.index),
            deterministic=all(can.deterministic for can in each),
        )

    @property
    def ways(self) -> tuple[Capabilities, ...]:
        """To each generator, for samples of its own; and again to each, for new samples in place of variations."""
        return (*(member.can for member in self._members), *(member.can_anew for member in self._members))

    def ways_of(self, conditions: Conditions, seeds: Seeds, explores: bool) -> Items:
        """The generator that made each parent, or was drawn; a share `explore` of the offspring goes to new samples.

        Raises:
            APIError: a parent was made by no generator of this portfolio.
        """
        made_by = conditions.get(GENERATOR, np.full(len(seeds), ""))
        if strangers := sorted(set(made_by.tolist()) - self._places.keys()):
            raise APIError(
                f"A parent was made by '{strangers[0]}', and the portfolio has {', '.join(self._places)}: "
                "it varies only what its own generators made."
            )
        ways = np.array([self._places[name] for name in made_by.tolist()], dtype=np.int64)
        if not explores:
            return ways
        drawn = np.searchsorted(self._shares, uniforms(seeds, "portfolio/generator"), side="right")
        anew = uniforms(seeds, "portfolio/explore") < self._explore
        return np.where(anew, len(self._members) + drawn, ways)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The generator of each new sample, dealt out by the shares, and what that one draws for it."""
        chosen = self._deal(np.array(labels), seeds)
        parts, order = [], []
        for i, member in enumerate(self._members):
            items = np.flatnonzero(chosen == i)
            if items.size:
                drawn = member.draw(tuple(labels[item] for item in items), seeds[items])
                parts.append(member.named(drawn, len(items)))
                order.append(items)
        return Conditions.concatenate(parts).take(np.argsort(np.concatenate(order), kind="stable"))

    def _deal(self, labels: npt.NDArray[np.str_], seeds: Seeds) -> Items:
        """A generator for each item: of each label so many to each that their shares are met, to a sample."""
        chosen = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            items = np.flatnonzero(labels == label)
            order = np.argsort(uniforms(seeds[items], "portfolio/deal"), kind="stable")
            start = uniforms(seeds[items[:1]], "portfolio/start")
            places = (np.arange(len(items)) + start) / len(items)
            chosen[items[order]] = np.searchsorted(self._shares, places, side="right")
        return chosen

    def random_api(self, request: RandomRequest) -> Answer:
        """New samples, each of the generator that was drawn for it."""
        return self._ask(request, self.ways_of(request.conditions, request.seeds, explores=False))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent by its own generator; of offspring, a share `explore` are new samples."""
        return self._ask(request, self.ways_of(request.conditions, request.seeds, request.explores))

    def _ask(self, request: Request, ways: Items) -> Answer:
        can = self.ways
        parts = [
            (items, int(way))
            for way in np.unique(ways)
            for items in cut(request, np.flatnonzero(ways == way), can[way])
        ]
        if len(parts) == 1:
            return self._pass_on(request, parts[0][1])
        return together([(items, self._pass_on(part_of(request, items), way)) for items, way in parts])

    def _pass_on(self, request: Request, way: int) -> Answer:
        """The answer to a request of one way."""
        member = self._members[way % len(self._members)]
        if isinstance(request, RandomRequest):
            answer = member.ask_new(replace(request, conditions=member.own(request.conditions)))
        elif way >= len(self._members):
            drawn = member.draw(request.labels, request.seeds)
            answer = member.ask_new(RandomRequest(request.labels, request.seeds, drawn, request.job))
        else:
            answer = member.ask(request)
        return self._with_drawn(answer)

    def _with_drawn(self, answer: Answer) -> Answer:
        """The answer of a generator that keeps no image as drawn, beside others that do: a black one in its place."""
        if self.info.kept is None or DRAWN in answer.conditions:
            return answer
        black = np.zeros((len(answer.samples), *self.info.kept, 3), np.uint8)
        return replace(answer, conditions=Conditions({**answer.conditions, DRAWN: black}))

    @property
    def others(self) -> list[PluginInfo]:
        """The members' declarations."""
        return [info_of(member.api) for member in self._members]

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """What a degree comes to for each generator that has words for it.

        Raises:
            RecipeError: one of them cannot obey it.
        """
        told = []
        for member in self._members:
            if isinstance(member.api, DescribesDegree):
                try:
                    told.append((member.name, member.api.describe_degree(degree, iteration)))
                except RecipeError as error:
                    raise RecipeError(f"{member.name}: {error}") from error
        return "; ".join(f"{name}: {words}" for name, words in told if words)

    def describe_wait(self) -> str:
        """What requests wait for now, by generator."""
        descriptions = {
            one.name: one.api.describe_wait() for one in self._members if isinstance(one.api, DescribesWait)
        }
        return "; ".join(f"{name}: {words}" for name, words in descriptions.items() if words)

    def describe_answers(self) -> str:
        """See `TellsOfAnswers`; by generator."""
        told = {one.name: one.api.describe_answers() for one in self._members if isinstance(one.api, TellsOfAnswers)}
        return " ".join(f"{name}: {words}" for name, words in told.items() if words)

    def check_machine(self) -> None:
        """Raise PEError if this machine lacks what one of the generators needs."""
        for member in self._members:
            try:
                if isinstance(member.api, ChecksMachine):
                    member.api.check_machine()
            except RecipeError as error:
                raise RecipeError(f"{member.name}: {error}") from error

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError for a label that one of the generators cannot make samples of."""
        seeds = np.arange(len(labels), dtype=np.uint64)
        for member in self._members:
            try:
                if isinstance(member.api, ChecksLabels):
                    member.api.check_labels(labels)
                else:
                    member.draw(tuple(labels), seeds)
            except RecipeError as error:
                raise RecipeError(f"{member.name}: {error}") from error

    def public_paths(self) -> tuple[Path, ...]:
        """Where all generators read public samples."""
        return tuple(path for reader in self._readers for path in reader.public_paths())

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """All public samples of all generators: see `ReadsPublicSamples`."""
        for reader in self._readers:
            yield from reader.public_samples(shape, rule)

    @property
    def _readers(self) -> list[ReadsPublicSamples]:
        readers = [member.api for member in self._members if isinstance(member.api, ReadsPublicSamples)]
        return [reader for reader in readers if reader.public_paths()]

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `LooksAtEndpoint.look`: at the endpoint of each generator that has one."""
        specs = read_settings(PortfolioSettings, settings, "portfolio").of
        looks = [(plugin, spec) for spec in specs if isinstance(plugin := _loaded(spec), LooksAtEndpoint)]
        for plugin, spec in looks:
            yield from plugin.look(spec.settings)
        if not looks:
            told = "portfolio: none of its generators has an endpoint that can be looked at"
            yield Finding("problem", told, "ask it for samples: pe probe RECIPE")


def _loaded(spec: MemberSpec) -> Any:
    require("pe.adapters", spec.kind)
    return load("pe.adapters", spec.kind)


def _same(what: str, values: Mapping[str, Any]) -> Any:
    """The one value that all generators declare; None: none does.

    Raises:
        RecipeError: two declare different ones.
    """
    if len(set(values.values())) > 1:
        told = ", ".join(f"'{name}' has {value}" for name, value in values.items())
        raise RecipeError(f"portfolio: the generators differ in their {what} ({told}): let all have the same.")
    return next(iter(values.values()), None)
