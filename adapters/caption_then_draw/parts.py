"""One of the two generators that make a sample together: what it is asked, and what its answers cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from adapters.prompts import PROMPT
from pe.data.conditions import Conditions
from pe.data.samples import modality
from pe.errors import RecipeError
from pe.plugins.price import Price
from pe.plugins.protocols import (
    Answer,
    ChecksLabels,
    ChecksMachine,
    DescribesDegree,
    DrawsConditions,
    GenerationAPI,
    PluginInfo,
    RandomRequest,
    Seeds,
    Usage,
    VariationRequest,
    info_of,
)
from pe.plugins.registry import construct, load, require, settings_of
from pe.plugins.specs import PartSpec, members_of
from pe.plugins.waits import DescribesWait

PLACE = "{caption}"
"""In a prompt of `draw`, what becomes the caption."""


@dataclass(frozen=True)
class Part:
    """A generator, and its part in each sample.

    Attributes:
        name: the setting that names it; begins the reasons for what it does not make.
        api: the generator itself.
        price: what its provider charges.
        gate: lets as many requests through at once as it can take.
    """

    name: str
    api: GenerationAPI
    price: Price
    gate: BoundedSemaphore

    @classmethod
    def of(cls, name: str, spec: PartSpec, settings: dict[str, Any], noun: str) -> Part:
        """The generator of samples called `noun` that a recipe names.

        Raises:
            RecipeError: a setting is wrong, or it cannot do this part.
            MissingDependency: a library that it needs is not installed.
        """
        require("pe.adapters", spec.kind)
        if members_of(spec):
            raise RecipeError(f"{name}: {spec.kind} has generators of its own, which cannot be a part: name one alone.")
        api: GenerationAPI = construct("pe.adapters", spec.kind, settings)
        if hasattr(api, "planned"):
            raise RecipeError(f"{name}: {spec.kind} is fitted on the private records, which a part is not: omit it.")
        made = modality(info_of(api).modality).noun
        if made != noun:
            raise RecipeError(f"{name}: {spec.kind} makes {made}: name one that makes {noun}.")
        return cls(name, api, spec.price.price, BoundedSemaphore(api.capabilities.concurrency))

    @property
    def info(self) -> PluginInfo:
        """What it declares."""
        return info_of(self.api)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """What it draws for new samples; no columns where it draws nothing."""
        return self.api.draw_conditions(labels, seeds) if isinstance(self.api, DrawsConditions) else Conditions()

    def prompts(self, labels: tuple[str, ...], seeds: Seeds) -> list[str]:
        """The prompt that it draws for each of these labels."""
        return [str(prompt) for prompt in self.draw_conditions(labels, seeds)[PROMPT]]

    def ask(self, request: RandomRequest | VariationRequest) -> Answer:
        """Its answer, every sample with its conditions, and what it cost."""
        with self.gate:
            if isinstance(request, RandomRequest):
                answer = self.api.random_api(request)
            else:
                answer = self.api.variation_api(request)
        conditions = answer.conditions
        if not conditions:
            conditions = request.conditions.take([i for i in range(len(request)) if i not in answer.missing])
        missing = {i: replace(miss, reason=f"{self.name}: {miss.reason}") for i, miss in answer.missing.items()}
        return Answer(answer.samples, conditions, missing, replace(answer.billed, cost=self.price.of(answer.billed)))

    def tokens(self, priced: bool) -> Usage | None:
        """That a sample of it is billed as; None: not known. `priced`: parts have prices of their own."""
        free_of_tokens = self.info.hosts == () or (priced and not self.price.has_tokens)
        return Usage(0) if free_of_tokens else self.info.tokens

    def check_machine(self) -> None:
        """Raise PEError if this machine lacks what it needs."""
        try:
            if isinstance(self.api, ChecksMachine):
                self.api.check_machine()
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from error

    def check_labels(self, labels: tuple[str, ...]) -> None:
        """Raise RecipeError for a label that it cannot make samples of."""
        try:
            if isinstance(self.api, ChecksLabels):
                self.api.check_labels(labels)
            else:
                self.draw_conditions(labels, np.arange(len(labels), dtype=np.uint64))
        except RecipeError as error:
            raise RecipeError(f"{self.name}: {error}") from error

    def describe_degree(self, degree: float, iteration: int) -> str:
        """What a degree comes to for it; empty: it has no words for it."""
        return self.api.describe_degree(degree, iteration) if isinstance(self.api, DescribesDegree) else ""

    def describe_wait(self) -> str:
        """What its requests wait for now, with its name; empty: for nothing."""
        wait = self.api.describe_wait() if isinstance(self.api, DescribesWait) else ""
        return f"{self.name}: {wait}" if wait else ""


def drawer_settings(spec: PartSpec) -> dict[str, Any]:
    """The settings of the generator that draws captions: as given, and without prompts with the caption alone.

    Raises:
        RecipeError: it draws from no prompts, or one of its prompts has no place for the caption.
    """
    require("pe.adapters", spec.kind)
    if "prompts" not in settings_of(load("pe.adapters", spec.kind)).model_fields:
        raise RecipeError(f"draw: {spec.kind} draws from no prompts: name a text-to-image generator.")
    settings = {"prompts": PLACE} | spec.settings
    for text in _texts(settings["prompts"]):
        if PLACE not in text:
            raise RecipeError(f"draw.prompts: '{text}' has no {PLACE}: say where the caption stands, or omit prompts.")
    return settings


def _texts(setting: Any) -> list[str]:
    """The texts of a setting: one, a list, or either by label."""
    if isinstance(setting, dict):
        setting = list(setting.values())
    return [text for each in setting for text in _texts(each)] if isinstance(setting, list) else [str(setting)]
