"""Controls to compare synthetic data with: un-evolved samples, public data, one vote.

One vote is stored in the confidential side as a run of its own, and can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import sqrt
from threading import Event
from typing import Any

import numpy as np

from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions, generator
from pe.dispatch.answers import ItemState
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.work import Work
from pe.errors import ContractError, PEError, RecipeError, RunError
from pe.histogram import Voting, histogram_release, noisy_votes
from pe.judgement.labelled import Labelled, Labels, label_samples
from pe.lookahead import embed
from pe.planning.calls import most_calls
from pe.planning.choice import Numbers, choose_numbers
from pe.planning.parts import build_dispatcher, price_of, usage_of
from pe.plugins.protocols import Embedding, Generator, PluginInfo, Usage, info_of
from pe.plugins.registry import load
from pe.plugins.settings import fields_of
from pe.plugins.specs import construct, settings_of
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Release
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import FILE, embed_private
from pe.progress import Part, Progress
from pe.recipe.schema import OBJECT, Recipe
from pe.selection import Items, parent_weights, select_parents
from pe.steps import Phase, Plan, by_label
from pe.store.places import RECIPE, population_place
from pe.store.run import Run
from pe.store.writer import RunWriter, read_journal

QUICK = 20.0
"""Most seconds that a free control may take to be run by default, by the rate in the run's
journal."""

NAME = "one-vote"
"""The folder of the one-vote control in the run's confidential side."""

MANY = 10**9
"""Number of records assumed without a declared size: so many that they do not limit the number of
candidates."""


def make_unevolved(api: Generator, labels: Labels, classes: tuple[str, ...], seed: int) -> Labelled:
    """Return one sample from RANDOM_API for each of `labels`, int32 (n,).

    These are the generator's data without votes.
    """
    work = Work(
        "control/unevolved", labels, classes, seed, np.full(len(labels), NO_PARENT, np.int64)
    )
    standing = ItemState.of(len(labels))
    parts = []
    for chunk in work.chunks(np.arange(len(labels)), standing, api):
        answer = work.ask(api, chunk, standing)
        if answer.missing:
            raise ContractError(
                f"{type(api).__name__} left {len(answer.missing)} of {len(chunk)} control samples "
                "out."
            )
        parts.append((chunk, answer.samples, answer.conditions))
    order = np.argsort(np.concatenate([chunk for chunk, *_ in parts]))
    samples = type(parts[0][1])(np.concatenate([part.array for _, part, _ in parts]))
    conditions = Conditions.concatenate([part for *_, part in parts])
    return label_samples(samples.take(order), labels, conditions.take(order))


def label_pool(recipe: Recipe, labels: Labels) -> Labelled | None:
    """Return a sample of the run's pool by the pool's own labels for each of `labels`, int32 (n,).

    Returns None if the generator is no pool, draws by these labels already, or has none that match
    the run's.
    """
    kind = recipe.api.kind
    settings = recipe.api.settings
    classes = recipe.private.labels
    if kind.startswith(OBJECT) or settings.get("by_label"):
        return None
    fields = fields_of(settings_of(load("pe.adapters", kind)))
    if "by_label" not in fields:
        return None
    has_open_column = "label_column" in fields and not settings.get("label_column")
    for more in ({"label_column": "label"}, {}) if has_open_column else ({},):
        own = settings | {"by_label": True} | more
        with suppress(PEError):  # no such column, no labels, or others than the run's
            api = construct("pe.adapters", kind, own)
            if info_of(api).hosts == ():
                api.check_labels(classes)
                return make_unevolved(api, labels, classes, recipe.seed)
    return None


def public_samples(recipe: Recipe, api: Generator, labels: Labels) -> Labelled | None:
    """Return public samples as the generator was given them, of as many labels as `labels`.

    None if they do not come with all of the run's labels.
    """
    found = api.labelled_public(recipe.private.shape, recipe.seed)
    classes = recipe.private.labels
    if found is None:
        return None
    samples, names = found
    rng = generator(recipe.seed, "control/public")
    chosen = []
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        members = np.flatnonzero(np.array(names) == classes[label])
        if not len(members):
            return None
        chosen.append(rng.permutation(members)[:count])
    rows = np.concatenate(chosen)
    places = [classes.index(names[row]) for row in rows]
    return Labelled(samples.take(rows), np.array(places, np.int32))


def is_free(recipe: Recipe, api: Generator) -> bool:
    """Return True if the generator costs nothing and uses no other host."""
    return price_of(recipe).free and info_of(api).hosts == ()


def is_quick(run: Run, images: int) -> bool:
    """Return True if `images` samples take at most QUICK seconds, by the rate in the run's journal.

    False without one.
    """
    try:
        with read_journal(run) as journal:
            rate = journal.samples_per_second()
    except RunError:
        return False
    return rate is not None and images / rate <= QUICK


@dataclass(frozen=True)
class ControlRun:
    """A control that asks the generator.

    It is stored in the confidential side of the run whose control it is.
    """

    run: Run  # whose control it is
    recipe: Recipe
    api: Generator
    images: int  # samples that it asks for, if none is refused
    calls: int  # at most, if none fails
    make: Callable[[Dispatcher], Population]  # earlier answers are reused by the dispatcher
    embedding: Embedding  # receives samples and private records

    def describe(self) -> str:
        """Say what the control asks for and costs, in a sentence or two."""
        price = price_of(self.recipe)
        noun = self.recipe.private.modality.noun
        usage = usage_of(price, self.api, self.calls, self.images)
        amount = price.most_of(usage or Usage(self.calls, self.images))
        cost = "free of charge" if price.free else f"about {amount:,.2f} {price.currency}"
        if usage is None:
            cost += f" and the price of the {'tokens' if price.has_tokens else 'pixels'}"
        more = (
            f" It has the private records and these {noun} embedded elsewhere."
            if self._embeds_elsewhere
            else ""
        )
        return (
            f"The one-vote control makes up to {self.calls:,} calls for {self.images:,} {noun}, "
            f"{cost}.{more}"
        )

    @property
    def comes_of_itself(self) -> bool:
        """True if the control is run by default: it is free, uses no other host, and is quick."""
        is_here = is_free(self.recipe, self.api) and not self._embeds_elsewhere
        return is_here and is_quick(self.run, self.images)

    @property
    def _embeds_elsewhere(self) -> bool:
        return info_of(self.embedding).hosts != ()

    def result(self, progress: Progress, stop: Event) -> Population:
        """Make or resume the control, and return its samples.

        The recipe's limits count the control alone.

        Raises:
            LimitReached, Interrupted, APIError: it cannot be finished; what was answered is stored.
        """
        folder = self.run.confidential / NAME
        self.run.confidential.mkdir(mode=0o700, exist_ok=True)
        files = {RECIPE: self.recipe.dump_shareable().encode()}
        with (
            RunWriter.reopen(folder)
            if folder.exists()
            else RunWriter.create(folder, files) as writer
        ):
            dispatcher = build_dispatcher(
                self.recipe,
                self.api,
                run=writer,
                progress=Part(progress, "one vote"),
                stop=stop,
                command=lambda _: "pe evaluate",
            )
            return self.make(dispatcher)


@dataclass(frozen=True)
class Vote:
    """A single vote of the records."""

    sizes: tuple[int, ...]  # candidates of each label
    voting: Voting
    # the histogram and its noise; it is charged nowhere, since the control is not released
    release: Release
    threshold: float  # H, in votes


def one_vote_run(
    run: Run,
    recipe: Recipe,
    plan: Plan,
    api: Generator,
    populations: Sequence[Population],
    dataset: PrivateDataset,
    embedding: Embedding,
) -> ControlRun:
    """Return the one-vote control of a run with this plan and these S_0 … S_t.

    The generator is not asked yet.

    The private records vote once for samples straight from RANDOM_API, as many as the planner would
    choose for one vote and no more than the run asked for. The chosen samples are not varied.
    """
    t = len(populations) - 1
    labels = populations[-1].labels
    # with one vote the control would be the run itself
    if t == 1:
        raise RecipeError("The run has voted once, as this control would.")
    vote = plan_vote(recipe, plan, t, images_asked_for(run, t), labels, info_of(api))

    def make(dispatcher: Dispatcher) -> Population:
        earlier = dispatcher.run.population(population_place(t))
        if earlier is not None:
            return earlier
        place = f"candidates/{t:03d}"
        candidates = dispatcher.draw(
            f"control/one-vote/{t}", place, by_label(vote.sizes), "RANDOM_API"
        )
        with dispatcher.progress.task("the private records vote", None):
            folder = dispatcher.run.run.confidential / "embeddings"
            vectors = embed(embedding, candidates.samples)
            private = embed_private(dataset, embedding, folder)
            steps = noisy_votes(
                private, vectors, candidates.labels, vote.release, SystemNoise(), vote.voting
            )
            # the embeddings serve this control alone
            (folder / FILE).unlink()
            rng = generator(recipe.seed, "control/one-vote")
            parents = _select(
                steps / vote.release.grid, vote.threshold, candidates.labels, labels, rng
            )
        members = candidates.take(parents)
        columns = Population.columns(members.samples, members.conditions)
        return dispatcher.run.add_population(
            population_place(t), members.labels, parents, [(slice(None), columns)]
        )

    calls = most_calls(Phase("population/0", 0, asks="random", samples=vote.sizes), plan, api)
    return ControlRun(run, recipe, api, sum(vote.sizes), calls, make, embedding)


def images_asked_for(run: Run, t: int) -> int:
    """Count the images that a run has asked for up to its S_t.

    Refused images and those of the lookahead count, too.
    """
    with read_journal(run) as journal:
        images = 0
        for phase in journal.phases():
            kind, _, iteration = phase.partition("/")
            is_later = kind in ("population", "lookahead") and int(iteration) > t
            if kind != "extension" and not is_later:
                images += sum(row.usage.images for row in journal.chunks(phase))
        return images


def plan_vote(
    recipe: Recipe, plan: Plan, t: int, images: int, labels: Labels, info: PluginInfo
) -> Vote:
    """Plan one vote as `evolution: auto` would, with the budget of a run's first t votes.

    The plan follows from public numbers.

    t Gaussian histograms with noise multipliers z_i are worth one with 1/z² = Σ 1/z_i². Without a
    declared size q is the run's. The threshold is the planner's for a generator that may ignore
    labels, even if this one obeys them: nothing is varied, so a sample of another label stays.
    """
    size = recipe.private.declared_size
    first = [step.release for step in plan.steps[:t]]
    with_noise = all(release.has_noise for release in first)
    multiplier = (
        1 / sqrt(sum(1 / release.noise_multiplier**2 for release in first)) if with_noise else 0.0
    )
    numbers = Numbers(
        labels=len(plan.classes),
        records=size or MANY,
        units=recipe.private.declared_units or size or MANY,
        sigma=first[0].sensitivity * multiplier,
        growing=True,
        images=images,
        is_paid=False,
        degrees=info.degrees,
        by_label=False,
        distinct=info.distinct,
    )
    keys: dict[str, Any] = {"iterations": 1, "degree": 0} | (
        {} if size else {"neighbors": plan.voting.neighbors}
    )
    evolution = choose_numbers(numbers, keys)
    q = evolution["neighbors"]
    most = min(evolution["population"][0], images)
    counts = np.bincount(labels, minlength=len(plan.classes)).tolist()
    return Vote(
        sizes=tuple(max(most * count // len(labels), q) if count else 0 for count in counts),
        voting=replace(plan.voting, neighbors=q),
        release=histogram_release(1, multiplier or None, first[0].relation, first[0].unit, q),
        threshold=evolution["threshold_sigmas"] * numbers.sigma,
    )


def _select(
    votes: np.ndarray,
    threshold: float,
    candidates: Labels,
    labels: Labels,
    rng: np.random.Generator,
) -> Items:
    """Return for each of `labels` the index of a candidate of this label, chosen by noisy votes.

    Guarantee: none. The noise is as strong as a release's, but nothing is charged: the result stays
    confidential.
    """
    chosen_rows = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(candidates == label)
        rows = np.flatnonzero(labels == label)
        weights, _ = parent_weights(votes[members], threshold)
        chosen_rows[rows] = members[select_parents(weights, len(rows), "systematic", rng)]
    return chosen_rows
