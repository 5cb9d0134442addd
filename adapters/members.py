"""Generators made of several members.

Ask a member, cut a request, put answers together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import BoundedSemaphore
from typing import Any, ClassVar

import numpy as np

from pe.data.arrays import Int64Array
from pe.data.samples import DRAWN, PART, Conditions, slices
from pe.errors import ContractError, RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    NOTHING,
    Answer,
    Capabilities,
    Failed,
    Finding,
    Generator,
    JobNote,
    PluginInfo,
    RandomRequest,
    Refused,
    VariationRequest,
    class_default,
    info_of,
)
from pe.plugins.registry import load, require
from pe.plugins.specs import PartSpec, PluginSpec, construct, members_of

Items = Int64Array
Request = RandomRequest | VariationRequest


@dataclass(frozen=True)
class Member:
    """One generator of several."""

    # unique; stands before the names of the member's conditions, and before reasons for missing
    # samples
    name: str
    api: Generator  # the generator itself
    price: Price  # the prices of the generator's provider
    gate: BoundedSemaphore  # lets as many requests through at once as the generator can take

    @classmethod
    def of(cls, name: str, spec: PartSpec, where: str, settings: dict[str, Any]) -> Member:
        """Construct a generator that a recipe names. `where` begins the messages.

        Raises:
            RecipeError: a setting is wrong, or the generator cannot be one of several.
            MissingDependency: a library that it needs is not installed.
        """
        require("pe.adapters", spec.kind)
        api: Generator = construct("pe.adapters", spec.kind, settings)
        if hasattr(api, "plan_releases"):
            raise RecipeError(
                f"{where} is fitted on the private records, and so cannot be one of several "
                "generators. Name another one."
            )
        if len(api.ways) > 1 or members_of(spec):
            raise RecipeError(f"{where} has generators of its own. Name one that has none.")
        return cls(
            name,
            api,
            spec.price.price,
            BoundedSemaphore(api.capabilities.concurrency),
        )

    @property
    def info(self) -> PluginInfo:
        """Declaration of the generator."""
        return info_of(self.api)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Put the member's name before the message of a RecipeError."""
        try:
            yield
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from error

    def ask(self, request: Request) -> Answer:
        """Return the generator's answer to a request.

        It has conditions for every sample, and its cost in `usage`.
        """
        with self.gate:
            if isinstance(request, RandomRequest):
                answer = self.api.random_api(request)
            else:
                answer = self.api.variation_api(request)
        kept = [i for i in range(len(request)) if i not in answer.missing]
        missing = {
            i: replace(miss, reason=f"{self.name}: {miss.reason}")
            for i, miss in answer.missing.items()
        }
        return Answer(
            answer.samples,
            answer.conditions or request.conditions.take(kept),
            missing,
            replace(answer.bill, cost=self.price.of(answer.bill)),
        )

    def own(self, conditions: Conditions) -> Conditions:
        """Return the columns of this member alone, under the names that its generator gave them."""
        before = f"{self.name}{PART}"
        columns = {
            name.removeprefix(before): each
            for name, each in conditions.items()
            if name.startswith(before)
        }
        if self.info.kept is not None and DRAWN in conditions:
            columns[DRAWN] = conditions[DRAWN]
        return Conditions(columns)

    def with_prefix(self, conditions: Conditions) -> Conditions:
        """Return the generator's columns under this member's name.

        The column `drawn` keeps its name.
        """
        return Conditions(
            {
                name if name == DRAWN else f"{self.name}{PART}{name}": each
                for name, each in conditions.items()
            }
        )


class OfSeveral(Generator):
    """The base of a generator that consists of several. Its methods ask each member."""

    kind: ClassVar[str]  # the generator's own name in recipes
    _members: tuple[Member, ...]

    @classmethod
    def settings_of(cls, key: str, spec: PartSpec) -> dict[str, Any]:
        """Return the settings of a member, which the recipe names under `key`."""
        return spec.settings

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """Look at the endpoint of each member that has one: see `Generator.look`."""
        findings: list[Finding] = []
        for key, spec in members_of(PluginSpec(kind=cls.kind, **settings)).items():
            require("pe.adapters", spec.kind)
            look = class_default(load("pe.adapters", spec.kind), "look")
            findings += look(cls.settings_of(key, spec))
        if not findings:
            words = f"{cls.kind}: none of its generators has an endpoint that can be looked at"
            findings.append(
                Finding(
                    "problem",
                    words,
                    "ask it for samples: pe probe RECIPE",
                )
            )
        return iter(findings)

    @property
    def others(self) -> Sequence[PluginInfo]:
        """Declarations of the members."""
        return [member.info for member in self._members]

    @property
    def _hosts(self) -> tuple[str, ...] | None:
        """Hosts of all members, each once, or None if a member does not declare its own."""
        hosts = [info.hosts for info in self.others]
        if None in hosts:
            return None
        return tuple(dict.fromkeys(host for each in hosts for host in each or ()))

    def describe_wait(self) -> str:
        """Return the reasons why requests wait now, each after its member's name."""
        waits = {member.name: member.api.describe_wait() for member in self._members}
        return "; ".join(f"{name}: {wait}" for name, wait in waits.items() if wait)

    def check_machine(self) -> None:
        """Raise PEError if this machine lacks what a member needs."""
        for member in self._members:
            with member.naming():
                member.api.check_machine()

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError for a label that a member cannot make samples of."""
        for member in self._members:
            with member.naming():
                member.api.check_labels(labels)
                member.api.draw_conditions(tuple(labels), np.arange(len(labels), dtype=np.uint64))


def cut(request: Request, items: Items, can: Capabilities) -> Iterator[Items]:
    """Yield `items` of a request in chunks that a generator with the capabilities `can` takes."""
    groups: dict[object, list[int]] = {}
    for item in items.tolist():
        groups.setdefault(_group_key(request, item, can), []).append(item)
    for group in groups.values():
        for part in slices(len(group), can.max_chunk):
            yield np.array(group[part])


def _group_key(request: Request, item: int, can: Capabilities) -> object:
    """Return a value that is equal for items that may share a chunk."""
    if can.shares == "nothing":
        return None
    if can.shares == "parent" and isinstance(request, VariationRequest):
        return request.samples.array[item].tobytes()
    columns = [column for name, column in request.conditions.items() if name != DRAWN]
    return request.labels[item], *(column[item].tobytes() for column in columns)


def part_of(request: Request, items: Items) -> Request:
    """Return `items` of a request as a separate request, whose job is not noted durably."""
    labels = tuple(request.labels[item] for item in items)
    conditions = request.conditions.take(items)
    job = JobNote(check_stop=request.job.check_stop)
    if isinstance(request, RandomRequest):
        return RandomRequest(
            labels,
            request.seeds[items],
            conditions,
            job,
        )
    return replace(
        request,
        samples=request.samples.take(items),
        labels=labels,
        conditions=conditions,
        seeds=request.seeds[items],
        job=job,
    )


def together(parts: Sequence[tuple[Items, Answer]]) -> Answer:
    """Return one answer from the answers to parts of a request, each with its items.

    Raise ContractError if shapes differ.
    """
    missing: dict[int, Refused | Failed] = {}
    usage = NOTHING
    answers = []
    for items, answer in parts:
        missing |= {int(items[i]): miss for i, miss in answer.missing.items()}
        usage += answer.bill
        if len(answer.samples):
            answers.append((np.delete(items, sorted(answer.missing)), answer))
    if not answers:
        return replace(parts[0][1], missing=missing, usage=usage)
    shapes = {answer.samples.array.shape[1:] for _, answer in answers}
    if len(shapes) > 1:
        raise ContractError(f"The generators answered with samples of the shapes {sorted(shapes)}.")
    order = np.argsort(np.concatenate([items for items, _ in answers]), kind="stable")
    samples = type(answers[0][1].samples)(
        np.concatenate([answer.samples.array for _, answer in answers])[order]
    )
    conditions = Conditions.concatenate([answer.conditions for _, answer in answers]).take(order)
    return Answer(samples, conditions, missing, usage)
