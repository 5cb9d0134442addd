"""A portfolio of generators, whose shares the votes shift.

The generator that made a sample also makes its variations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from adapters.members import Items, Member, OfSeveral, Request, cut, part_of, together
from adapters.public_files import paths_of, samples_of
from pe.data.samples import DRAWN, GENERATOR, Array, Conditions, Shape, uniforms
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    VariationRequest,
    class_default,
)
from pe.plugins.specs import MemberSpec, plugin

_NAME = re.compile(r"[A-Za-z0-9_-]+")

_DEGREES: tuple[Literal["none", "wording", "exact"], ...] = ("none", "wording", "exact")
"""Values of `Capabilities.degree`, the least obedient first."""


@plugin
class Portfolio(OfSeveral):
    """If you do not know which generator is right: several in one run, whose shares votes shift.

    New samples are dealt out to the generators by their shares, label by label. A sample carries
    its generator's name as the condition `generator`, and the generator's conditions as
    `name.condition`; the same generator makes all its variations. Public shares, seeds and released
    votes alone decide which generator makes which sample.

    Attributes:
        of: the generators, two or more, each written as under `api`.
        explore: public share of the offspring that are new samples in place of variations, each by
            a generator drawn by the shares, so that no generator is lost for good.

    Raises:
        RecipeError: a setting is wrong, or the generators do not fit together.
    """

    kind = "portfolio"
    info = PluginInfo()
    starter = """\
  explore: 0.05\t# public: so many of a population's offspring are new samples, by the shares below
  of:\t# two or more, each as `api` describes one; all make samples of one size
    - kind: openai_images\t# an endpoint (docs/endpoints.md); `pe init IMAGES --api KIND` shows each kind's settings
      name: server\t# stands in samples and report; default: the kind
      share: 1\t# of S_0, beside the others' shares
      base_url: http://127.0.0.1:8000/v1
      server: null\t# or its name, as `pe doctor` gives it
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
"""  # noqa: E501

    of: Annotated[list[MemberSpec], Field(min_length=2)]
    explore: Annotated[float, Field(ge=0, lt=1)] = 0.05

    def __post_init__(self) -> None:
        names = _names(self.of)
        self._members = tuple(
            Member.of(name, spec, f"portfolio: '{name}'", spec.settings)
            for name, spec in zip(names, self.of, strict=True)
        )
        self._places = {name: i for i, name in enumerate(names)}
        shares = np.array([spec.share for spec in self.of])
        # The last bound is left out: rounding must not leave a number in [0, 1) beyond it.
        self._shares = np.cumsum(shares / sum(shares))[:-1]
        infos = self.others
        # The largest size is told: it costs most where a provider bills by megapixels.
        sizes = [member.info.drawn for member in self._members if member.price.megapixel]
        distinct = [info.distinct for info in infos]
        self.info = PluginInfo(
            modality=self._same("modality", "modality"),
            hosts=self._hosts,
            by_label=all(info.by_label for info in infos),
            distinct=None if None in distinct else sum(filter(None, distinct)),
            shape=self._same("shape", "shape"),
            drawn=None
            if None in sizes
            else max(sizes, key=lambda size: prod(size or ()), default=None),
            kept=self._same("kept", "kept size"),
            degrees=infos[0].degrees,
        )

    def _same(self, field: str, what: str) -> Any:
        """Return the one value of a field that all generators declare, or None if none does.

        Raise RecipeError if two differ.
        """
        values = {member.name: getattr(member.info, field) for member in self._members}
        stated = {name: value for name, value in values.items() if value is not None}
        if len(set(stated.values())) > 1:
            words = ", ".join(f"'{name}' has {value}" for name, value in stated.items())
            raise RecipeError(
                f"portfolio: the generators differ in their {what} ({words}). Let all have the "
                "same."
            )
        return next(iter(stated.values()), None)

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of all generators together.

        A request may hold any items, and is cut for each generator.
        """
        each = self._abilities
        return Capabilities(
            max_chunk=max(can.max_chunk for can in each),
            concurrency=sum(can.concurrency for can in each),
            degree=min((can.degree for can in each), key=_DEGREES.index),
            deterministic=all(can.deterministic for can in each),
        )

    @property
    def ways(self) -> tuple[Capabilities, ...]:
        """Capabilities of each generator for its own samples, then for new samples.

        The new samples are those in place of variations.

        These new samples are asked for one by one if the generator draws conditions or `shares` is
        not `nothing`.
        """
        anew = []
        for member, can in zip(self._members, self._abilities, strict=True):
            draw = class_default(type(member.api), "draw_conditions")
            draws = draw is not Generator.draw_conditions
            anew.append(replace(can, max_chunk=1) if draws or can.shares != "nothing" else can)
        return (*self._abilities, *anew)

    @property
    def _abilities(self) -> list[Capabilities]:
        return [member.api.capabilities for member in self._members]

    def ways_of(self, conditions: Conditions, seeds: Seeds, explores: bool) -> Items:
        """Return each item's index into `ways`.

        It is that of its parent's generator, or, by `explore`, of a generator for a new sample.

        Raises:
            APIError: a parent was made by no generator of this portfolio.
        """
        makers = conditions.get(GENERATOR, np.full(len(seeds), "")).tolist()
        strangers = sorted(set(makers) - self._places.keys())
        if strangers:
            raise APIError(
                f"A parent was made by '{strangers[0]}', which is not in the portfolio "
                f"({', '.join(self._places)}). A portfolio varies only what its own generators "
                "made."
            )
        ways = np.array([self._places[name] for name in makers], dtype=np.int64)
        if not explores:
            return ways
        choice = np.searchsorted(
            self._shares,
            uniforms(seeds, "portfolio/generator"),
            side="right",
        )
        anew = uniforms(seeds, "portfolio/explore") < self.explore
        return np.where(anew, len(self._members) + choice, ways)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Deal new samples out to the generators by the shares.

        Each generator draws the conditions of its samples.
        """
        choice = self._deal(np.array(labels), seeds)
        parts = []
        order = []
        for i, member in enumerate(self._members):
            items = np.flatnonzero(choice == i)
            if items.size:
                own_labels = tuple(labels[item] for item in items)
                conditions = member.api.draw_conditions(own_labels, seeds[items])
                parts.append(_mark(member, conditions, len(items)))
                order.append(items)
        return Conditions.concatenate(parts).take(np.argsort(np.concatenate(order), kind="stable"))

    def _deal(self, labels: npt.NDArray[np.str_], seeds: Seeds) -> Items:
        """Return a generator's index for each item.

        In each label the shares are met to within one sample.
        """
        choice = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            items = np.flatnonzero(labels == label)
            order = np.argsort(uniforms(seeds[items], "portfolio/deal"), kind="stable")
            start = uniforms(seeds[items[:1]], "portfolio/start")
            places = (np.arange(len(items)) + start) / len(items)
            choice[items[order]] = np.searchsorted(
                self._shares,
                places,
                side="right",
            )
        return choice

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw new samples, each by the generator that was drawn for it."""
        return self._ask(request, self.ways_of(request.conditions, request.seeds, explores=False))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary each parent by the generator that made it.

        A share `explore` of the offspring are new samples.
        """
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
        return together(
            [(items, self._pass_on(part_of(request, items), way)) for items, way in parts]
        )

    def _pass_on(self, request: Request, way: int) -> Answer:
        """Return the answer to a request whose items all go this way, an index into `ways`."""
        member = self._members[way % len(self._members)]
        if way < len(self._members):
            answer = member.ask(replace(request, conditions=member.own(request.conditions)))
        else:
            conditions = member.api.draw_conditions(request.labels, request.seeds)
            answer = member.ask(
                RandomRequest(
                    request.labels,
                    request.seeds,
                    conditions,
                    request.job,
                )
            )
        columns = _mark(member, answer.conditions, len(answer.samples))
        if self.info.kept is not None and DRAWN not in columns:
            # All rows need the column, which only some of the generators fill.
            black = np.zeros((len(answer.samples), *self.info.kept, 3), np.uint8)
            columns = Conditions({**columns, DRAWN: black})
        return replace(answer, conditions=columns)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for each generator.

        Raise RecipeError if one cannot obey it.
        """
        words = {}
        for member in self._members:
            with member.naming():
                words[member.name] = member.api.describe_degree(degree, iteration)
        return "; ".join(f"{name}: {each}" for name, each in words.items() if each)

    def describe_answers(self) -> str:
        """Return what each generator tells of its answers, after its name: see `Generator`."""
        words = {member.name: member.api.describe_answers() for member in self._members}
        return " ".join(f"{name}: {each}" for name, each in words.items() if each)

    def public_paths(self) -> tuple[Path, ...]:
        """Paths of the public samples of all generators."""
        return paths_of(member.api for member in self._members)

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """Yield all public samples of all generators: see `ReadsPublicSamples`."""
        return samples_of((member.api for member in self._members), shape, rule)


def _names(specs: Sequence[MemberSpec]) -> list[str]:
    """Return the unique names of the generators that a recipe lists."""
    kinds = Counter(spec.kind for spec in specs)
    number = Counter[str]()
    names: list[str] = []
    for spec in specs:
        number[spec.kind] += 1
        name = spec.name or (
            f"{spec.kind}-{number[spec.kind]}" if kinds[spec.kind] > 1 else spec.kind
        )
        if not _NAME.fullmatch(name):
            raise RecipeError(
                f"portfolio: the name '{name}' has other characters than letters, digits, '_' and "
                "'-'."
            )
        if name in names:
            raise RecipeError(
                f"portfolio: two generators have the name '{name}'. Give one of them another."
            )
        names.append(name)
    return names


def _mark(member: Member, conditions: Conditions, count: int) -> Conditions:
    """Return a member's columns under the member's name.

    The column `generator` has `count` rows.
    """
    return Conditions({GENERATOR: np.full(count, member.name), **member.with_prefix(conditions)})
