"""Controls: what synthetic data must be compared with.

Un-evolved samples, straight from the generator; and controls that need calls of their own. Each of the latter is a run
of its own in the confidential side, kept and gone on with: random selection and one vote, a file each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.population import NO_PARENT, Members, Population
from pe.data.samples import Conditions, generator
from pe.dispatch.answers import Standing
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.work import Work
from pe.errors import ContractError, RecipeError, RunError
from pe.evaluation.labelled import Labelled, label_samples
from pe.histogram import Voting, histogram_release, noisy_votes
from pe.lookahead import embed
from pe.planning.build import build_dispatcher, price_of, usage_of
from pe.planning.calls import Span, first_calls, variation_calls, variation_images
from pe.planning.choice import Numbers, choose
from pe.plugins.price import Price
from pe.plugins.protocols import Embedding, GenerationAPI, PluginInfo, Usage, info_of
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Release
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import FILE, embed_private
from pe.progress import Part, Progress
from pe.recipe.schema import Recipe
from pe.selection import Descent, Items, descend, parent_weights, select_parents
from pe.steps import Plan, by_label
from pe.store.places import RECIPE, population_place
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


# One vote, a control: what the run's images and the whole budget of its votes bring if nothing is varied.
#
# Images come straight from RANDOM_API: as many as the planner has for one vote, and no more than the run asked for.
# The private records vote once for them, and those that are chosen are taken as they are.


Labels = npt.NDArray[np.int32]

MANY = 10**9
"""Records of a data set whose size is not declared: the candidates are not limited by it."""


@dataclass(frozen=True)
class Vote:
    """How the records vote, once.

    Attributes:
        sizes: candidates of each label.
        voting: how a record votes.
        release: the histogram and its noise; it is counted nowhere, for the control is no release.
        threshold: H, in votes.
    """

    sizes: tuple[int, ...]
    voting: Voting
    release: Release
    threshold: float


def one_vote_run(
    run: Run,
    recipe: Recipe,
    plan: Plan,
    api: GenerationAPI,
    populations: Sequence[Population],
    dataset: PrivateDataset,
    embedding: Embedding,
) -> ControlRun:
    """The control by one vote of a run with this plan and these S_0 … S_t; nothing is asked yet.

    Args:
        run: with its journal, which says how many images were asked for.
        recipe: the run's.
        plan: likewise.
        api: its generator.
        populations: the control gets the images and the noise of the votes that these took.
        dataset: the private records.
        embedding: the run's.

    Raises:
        RecipeError: the run has voted once so far.
        RunError: it has no journal.
    """
    t, wanted = len(populations) - 1, populations[-1].labels
    if t == 1:
        raise RecipeError("The run has voted once, as this control would.")
    vote = plan_vote(recipe, plan, t, images_asked_for(run, t), wanted, info_of(api))

    def make(dispatcher: Dispatcher) -> Population:
        done = dispatcher.run.population(population_place(t))
        if done is not None:
            return done
        place = f"candidates/{t:03d}"
        candidates = dispatcher.draw(f"control/one-vote/{t}", place, by_label(vote.sizes), "RANDOM_API")
        with dispatcher.progress.task("the private records vote", None):
            chosen = choose_once(vote, candidates, wanted, dataset, embedding, dispatcher, recipe.seed)
        members = candidates.take(chosen)
        columns = Population.columns(members.samples, members.conditions)
        return dispatcher.run.add_population(population_place(t), members.labels, chosen, [(slice(None), columns)])

    return ControlRun(
        run=run,
        recipe=recipe,
        api=api,
        name="one-vote",
        images=sum(vote.sizes),
        calls=first_calls(replace(plan, sizes=vote.sizes, initial_variations=0), api)[0].most,
        make=make,
        embedding=embedding,
    )


def images_asked_for(run: Run, t: int) -> int:
    """Images that a run has asked for up to its S_t, those of its lookahead, and refused ones, included.

    Raises:
        RunError: it has no journal.
    """
    with read_journal(run) as journal:
        phases = [phase for phase in journal.phases() if _is_before(phase, t)]
        return sum(row.usage.images for phase in phases for row in journal.chunks(phase))


def _is_before(phase: str, t: int) -> bool:
    """Whether a phase of the journal is of an iteration up to t, or of what comes before all of them."""
    kind, _, of = phase.partition("/")
    return kind not in ("population", "lookahead", "extension") or (kind != "extension" and int(of) <= t)


def plan_vote(recipe: Recipe, plan: Plan, t: int, images: int, wanted: Labels, info: PluginInfo) -> Vote:
    """One vote as `evolution: auto` would have it, with the noise of a run's first t votes together.

    All of it is public, since the generator sees how many images it is asked for. Without a declared size q is that of
    the run.

    The noise: t Gaussian histograms with noise multipliers z_i are worth one with 1/z² = Σ 1/z_i². The threshold
    is that of samples whose mistakes stay, known labels or not, since nothing is varied (measured: docs/evaluation.md).

    Args:
        recipe: the run's.
        plan: likewise.
        t: how often it has voted.
        images: that it asked for; there are no more candidates.
        wanted: the labels of the samples to be chosen, whose shares the candidates have.
        info: what the generator declares.
    """
    declared = recipe.private.declared_size
    records = declared or MANY
    first = [step.release for step in plan.steps[:t]]
    noised = all(release.noised for release in first)
    multiplier = 1 / sqrt(sum(1 / release.noise_multiplier**2 for release in first)) if noised else 0.0
    numbers = Numbers(
        labels=len(plan.classes),
        records=records,
        units=recipe.private.declared_units or records,
        sigma=first[0].sensitivity * multiplier,
        growing=True,
        images=images,
        paid=False,
        degrees=info.degrees,
        by_label=False,
        distinct=info.distinct,
    )
    given: dict[str, Any] = {"iterations": 1, "degree": 0} | ({} if declared else {"neighbors": plan.voting.neighbors})
    chosen = choose(numbers, given)
    q, most = chosen["neighbors"], min(chosen["population"][0], images)
    counts = np.bincount(wanted, minlength=len(plan.classes)).tolist()
    return Vote(
        sizes=tuple(max(most * count // len(wanted), q) if count else 0 for count in counts),
        voting=replace(plan.voting, neighbors=q),
        release=histogram_release(1, multiplier or None, first[0].relation, first[0].unit, q),
        threshold=chosen["threshold_sigmas"] * numbers.sigma,
    )


def choose_once(
    vote: Vote,
    candidates: Population,
    wanted: Labels,
    dataset: PrivateDataset,
    embedding: Embedding,
    dispatcher: Dispatcher,
    seed: int,
) -> Items:
    """The candidates that one vote chooses, one for each of the labels `wanted`, as indices. Confidential.

    Guarantee: none that is counted. The noise is of the votes' strength, but this is no release: the result stays in
    the confidential side.
    """
    folder = dispatcher.run.run.confidential / "embeddings"
    vectors = embed(embedding, candidates.samples)
    private = embed_private(dataset, embedding, folder)
    noised = noisy_votes(private, vectors, candidates.labels, vote.release, SystemNoise(), vote.voting)
    votes = noised / vote.release.grid
    (folder / FILE).unlink()
    rng = generator(seed, "control/one-vote")
    chosen = np.empty(len(wanted), np.int64)
    for label in np.unique(wanted):
        members, rows = np.flatnonzero(candidates.labels == label), np.flatnonzero(wanted == label)
        weights, _ = parent_weights(votes[members], vote.threshold)
        chosen[rows] = members[select_parents(weights, len(rows), "systematic", rng)]
    return chosen


# Random selection, a control: the run again, with parents chosen without votes.


def random_selection_run(
    run: Run, recipe: Recipe, plan: Plan, api: GenerationAPI, populations: Sequence[Population]
) -> ControlRun:
    """The control by random selection of a run with this plan and these S_0 … S_t; nothing is asked yet.

    From the same S_0, each step follows from equal votes for all candidates by the run's own `keep` and `offspring`.
    The offspring are asked for as in the run; the lookahead is not: it only serves the votes.
    """
    total, images, steps = Span(), 0, plan.steps[: len(populations) - 1]
    chosen: list[tuple[Members, float]] = []
    for step, before, after in zip(steps, populations, populations[1:], strict=False):
        seeds = generator(recipe.seed, f"control/random-selection/{step.t}")
        members = choose_without_votes(before.labels, after.labels, step.descent, seeds)
        chosen.append((members, step.degree))
        candidates, new = (
            tuple(np.bincount(labels, minlength=len(plan.classes)).tolist())
            for labels in (before.labels, before.labels[members.parents[~members.kept]])
        )
        asking = replace(step, sizes=new, lookahead=0, reuse=0, descent=Descent())
        total += variation_calls(candidates, asking, api)
        images += variation_images(candidates, asking).most

    def make(dispatcher: Dispatcher) -> Population:
        population = populations[0]
        for t, (members, degree) in enumerate(chosen, start=1):
            population = dispatcher.variations(t, population, members, degree)
        return population

    return ControlRun(
        run=run, recipe=recipe, api=api, name="random-selection", images=images, calls=total.most, make=make
    )


def choose_without_votes(
    candidates: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32], descent: Descent, rng: np.random.Generator
) -> Members:
    """How S_t follows from S_{t-1} if all candidates of a label have the same votes, whichever of them stay.

    Args:
        candidates: labels of S_{t-1}.
        wanted: labels of S_t, ascending.
        descent: the run's; but parents are drawn with replacement, each as likely as any other.
        rng: of the choice.
    """
    found = []
    for label, size in zip(*np.unique(wanted, return_counts=True), strict=True):
        rows = rng.permutation(np.flatnonzero(candidates == label))
        none = np.zeros(len(rows), np.bool_)
        one = descend(np.ones(len(rows)), none, int(size), 0.0, replace(descent, selection="sample"), rng)
        found.append(Members(rows[one.parents], one.kept))
    return Members(np.concatenate([one.parents for one in found]), np.concatenate([one.kept for one in found]))
