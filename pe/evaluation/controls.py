"""Controls: what synthetic data must be compared with.

Un-evolved samples, straight from the generator; and controls that need calls of their own. Each of the latter is a run
of its own in the confidential side, kept and gone on with: random selection and one vote, a file each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

import numpy as np
import numpy.typing as npt

from pe.data.conditions import Conditions
from pe.data.population import NO_PARENT, Population
from pe.dispatch.answers import Standing
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.work import Work
from pe.errors import ContractError, RunError
from pe.evaluation.labelled import Labelled, label_samples
from pe.planning.build import build_dispatcher, price_of, usage_of
from pe.plugins.price import Price
from pe.plugins.protocols import Embedding, GenerationAPI, info_of
from pe.plugins.usage import Usage
from pe.progress import Part, Progress
from pe.recipe.schema import Recipe
from pe.store.places import RECIPE
from pe.store.run import Run
from pe.store.writer import RunWriter, read_journal

QUICK = 1800.0
"""Seconds that a free control may take, as the run's journal foretells, to be run without being asked for."""


def unevolved(api: GenerationAPI, labels: npt.NDArray[np.int32], classes: tuple[str, ...], seed: int) -> Labelled:
    """One sample straight from RANDOM_API for each of `labels`, int32 (n,): what the generator gives without votes."""
    work = Work("control/unevolved", labels, classes, seed, np.full(len(labels), NO_PARENT, np.int64))
    standing = Standing.untouched(len(labels))
    parts = []
    for chunk in work.chunks(np.arange(len(labels)), standing, api):
        answer = work.ask(api, chunk, standing)
        if answer.missing:
            raise ContractError(f"{type(api).__name__} left {len(answer.missing)} of {len(chunk)} control samples out.")
        parts.append((chunk, answer.samples, answer.conditions))
    order = np.argsort(np.concatenate([chunk for chunk, *_ in parts]))
    samples = type(parts[0][1])(np.concatenate([part.array for _, part, _ in parts]))
    conditions = Conditions.concatenate([part for *_, part in parts])
    return label_samples(samples.take(order), labels, conditions.take(order))


@dataclass(frozen=True)
class ControlRun:
    """A control that asks the generator, in the confidential side of the run whose control it is.

    Attributes:
        run: whose control it is.
        recipe: the run's.
        api: its generator.
        name: the control's, as a folder and an option have it: `random-selection`.
        images: samples that it asks for, if none is refused.
        calls: that it makes, at the most, if none fails.
        make: makes it; what it was answered before, the dispatcher does not ask for again.
        embedding: that it hands images and private records to; None: to none.
    """

    run: Run
    recipe: Recipe
    api: GenerationAPI
    name: str
    images: int
    calls: int
    make: Callable[[Dispatcher], Population]
    embedding: Embedding | None = None

    def describe(self) -> str:
        """What it asks for and costs, in a sentence or two."""
        if not self.calls:
            return f"The {self.name} control asks the generator for nothing."
        price, noun = self._price, self.recipe.private.modality.noun
        usage = usage_of(price, self.api, self.calls, self.images)
        known = price.most_of(usage or Usage(self.calls, self.images))
        cost = "free of charge" if price.free else f"about {known:,.2f} {price.currency}"
        if usage is None:
            cost += f" and the price of the {'tokens' if price.has_tokens else 'pixels'}"
        more = f" It has the private records and these {noun} embedded elsewhere." if self._embeds_elsewhere else ""
        return f"The {self.name} control makes up to {self.calls:,} calls for {self.images:,} {noun}, {cost}.{more}"

    @property
    def comes_of_itself(self) -> bool:
        """Whether it is run without being asked for: free, on no other host, and quick."""
        here = info_of(self.api).hosts == () and not self._embeds_elsewhere
        return self._price.free and here and self.quick(self.images)

    def quick(self, images: int) -> bool:
        """Whether so many images took the run at most QUICK seconds; unknown, hence no, once its journal is gone."""
        try:
            with read_journal(self.run) as journal:
                rate = journal.samples_per_second()
        except RunError:
            return False
        return rate is not None and images / rate <= QUICK

    def result(self, progress: Progress, stop: Event) -> Population:
        """What it comes to; what it was answered before is not asked for again.

        Raises:
            LimitReached: a limit of the recipe; they hold for this control anew.
            Interrupted: the user stops it.
            APIError: the generator cannot answer.
        """
        folder = self.run.confidential / self.name
        self.run.confidential.mkdir(mode=0o700, exist_ok=True)
        files = {RECIPE: self.recipe.dump_shareable().encode()}
        with RunWriter.reopen(folder) if folder.exists() else RunWriter.create(folder, files) as writer:
            told = Part(progress, self.name.replace("-", " "))
            dispatcher = build_dispatcher(
                self.recipe, self.api, run=writer, progress=told, stop=stop, command=lambda _: "pe evaluate"
            )
            return self.make(dispatcher)

    @property
    def _price(self) -> Price:
        return price_of(self.recipe)

    @property
    def _embeds_elsewhere(self) -> bool:
        return self.embedding is not None and info_of(self.embedding).hosts != ()
