"""Controls: what synthetic data must be compared with.

Un-evolved samples, straight from the generator, and the run again with parents chosen without votes. The latter
needs calls of its own, so it is a run of its own in the confidential side, kept and gone on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event

import numpy as np
import numpy.typing as npt

from pe.data.conditions import Conditions
from pe.data.images import Images
from pe.data.population import NO_PARENT, Members, Population
from pe.data.seeds import generator
from pe.dispatch.answers import Items, Standing
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.work import Work
from pe.errors import ContractError, RunError
from pe.evaluation.labelled import Labelled, label_images
from pe.planning.build import build_dispatcher, price_of, usage_of
from pe.planning.calls import Span, variation_calls
from pe.planning.layout import plan_of
from pe.plugins.price import Price
from pe.plugins.protocols import GenerationAPI, info_of
from pe.plugins.usage import Usage
from pe.progress import Part, Progress
from pe.recipe.schema import Recipe
from pe.store.places import RECIPE
from pe.store.run import Run
from pe.store.writer import RunWriter, read_journal

PLACE = "random-selection"
QUICK = 1800.0
"""Seconds that a free control may take, as the run's journal foretells, to be run without being asked for."""


def unevolved(api: GenerationAPI, labels: npt.NDArray[np.int32], classes: tuple[str, ...], seed: int) -> Labelled:
    """One image straight from RANDOM_API for each of `labels`, int32 (n,): what the generator gives without votes."""
    work = Work("control/unevolved", labels, classes, seed, np.full(len(labels), NO_PARENT, np.int64))
    standing = Standing.untouched(len(labels))
    parts = []
    for chunk in work.chunks(np.arange(len(labels)), standing, api):
        answer = work.ask(api, chunk, standing)
        if answer.missing or not isinstance(answer.samples, Images):
            raise ContractError(f"{type(api).__name__} left {len(answer.missing)} of {len(chunk)} control images out.")
        parts.append((chunk, answer.samples.pixels, answer.conditions))
    order = np.argsort(np.concatenate([chunk for chunk, *_ in parts]))
    pixels = np.concatenate([part for _, part, _ in parts])
    conditions = Conditions.concatenate([part for *_, part in parts])
    return label_images(Images(pixels[order]), labels, conditions.take(order))


def random_selection(
    populations: Sequence[Population], degrees: Sequence[float], seed: int, dispatcher: Dispatcher
) -> Population:
    """What the run would have come to without votes: from the same S_0, parents chosen uniformly within each label.

    The offspring are asked for as in the run, as many of each label in every iteration. The lookahead is not:
    it only serves the votes.

    Args:
        populations: the run's S_0 … S_T.
        degrees: v_1 … v_T.
        seed: of the choice.
        dispatcher: asks, commits and limits; it writes elsewhere than into the run's own populations.
    """
    population = populations[0]
    for t, (evolved, degree) in enumerate(zip(populations[1:], degrees, strict=True), start=1):
        parents = _uniform(population.labels, evolved.labels, generator(seed, f"control/random-selection/{t}"))
        population = dispatcher.variations(t, population, Members.offspring(parents), degree)
    return population


def _uniform(candidates: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32], rng: np.random.Generator) -> Items:
    """A parent of each of the labels `wanted`, drawn with replacement among the candidates of that label."""
    parents = np.empty(len(wanted), np.int64)
    for label in np.unique(wanted):
        rows = np.flatnonzero(wanted == label)
        parents[rows] = np.sort(rng.choice(np.flatnonzero(candidates == label), len(rows)))
    return parents


@dataclass(frozen=True)
class ControlRun:
    """The run with votes ignored, in a run's confidential side.

    Attributes:
        run: whose control it is.
        recipe: the run's.
        api: its generator.
        populations: its S_0 … S_t, as far as it is.
    """

    run: Run
    recipe: Recipe
    api: GenerationAPI
    populations: Sequence[Population]

    @property
    def images(self) -> int:
        """Images that it asks for, if none is refused."""
        return sum(map(len, self.populations[1:]))

    @property
    def calls(self) -> int:
        """Calls that it makes, at the most, if none fails."""
        plan, total = plan_of(self.run, self.recipe), Span()
        sizes = [_sizes(population, len(plan.classes)) for population in self.populations]
        for step, before, after in zip(plan.steps, sizes, sizes[1:], strict=False):
            offspring_only = replace(step, sizes=after, lookahead=0, reuse=0)
            total += variation_calls(before, offspring_only, self.api)
        return total.most

    def describe(self) -> str:
        """What it asks for and costs, in a sentence."""
        price = self._price
        usage = usage_of(price, self.api, self.calls, self.images)
        known = price.most_of(usage or Usage(self.calls, self.images))
        cost = "free of charge" if price.free else f"about {known:,.2f} {price.currency}"
        if usage is None:
            cost += f" and the price of the {'tokens' if price.has_tokens else 'pixels'}"
        return f"The random-selection control makes up to {self.calls:,} calls for {self.images:,} images, {cost}."

    @property
    def comes_of_itself(self) -> bool:
        """Whether it is run without being asked for: free, on no other host, and quick."""
        return self._price.free and info_of(self.api).hosts == () and self.quick(self.images)

    def quick(self, images: int) -> bool:
        """Whether so many images took the run at most QUICK seconds; unknown, hence no, once its journal is gone."""
        try:
            with read_journal(self.run) as journal:
                rate = journal.images_per_second()
        except RunError:
            return False
        return rate is not None and images / rate <= QUICK

    def result(self, progress: Progress, stop: Event) -> Population:
        """Its last population; what it was answered before is not asked for again.

        Raises:
            LimitReached: a limit of the recipe; they hold for this control anew.
            Interrupted: the user stops it.
            APIError: the generator cannot answer.
        """
        folder = self.run.confidential / PLACE
        self.run.confidential.mkdir(mode=0o700, exist_ok=True)
        files = {RECIPE: self.recipe.dump_shareable().encode()}
        recipe = self.recipe
        plan = plan_of(self.run, recipe)
        degrees = [step.degree for step in plan.steps[: len(self.populations) - 1]]
        with RunWriter.reopen(folder) if folder.exists() else RunWriter.create(folder, files) as writer:
            told = Part(progress, "random selection")
            dispatcher = build_dispatcher(
                recipe, self.api, run=writer, progress=told, stop=stop, command=lambda _: "pe evaluate"
            )
            return random_selection(self.populations, degrees, recipe.seed, dispatcher)

    @property
    def _price(self) -> Price:
        return price_of(self.recipe)


def _sizes(population: Population, classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(population.labels, minlength=classes).tolist())
