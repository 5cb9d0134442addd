"""One vote, a control: what the run's images and the whole budget of its votes bring if nothing is varied.

Images come straight from RANDOM_API: as many as the planner has for one vote, and no more than the run asked for. The
private records vote once for them, and those that are chosen are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.seeds import generator
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import RecipeError
from pe.evaluation.controls import ControlRun
from pe.histogram import Voting, histogram_release, noisy_votes
from pe.lookahead import embed
from pe.planning.calls import first_calls
from pe.planning.choice import Numbers, choose
from pe.plugins.protocols import Embedding, GenerationAPI, PluginInfo, info_of
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Release
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import FILE, embed_private
from pe.recipe.schema import Recipe
from pe.selection import Items, parent_weights, select_parents
from pe.steps import Plan, by_label
from pe.store.places import population_place
from pe.store.run import Run
from pe.store.writer import read_journal

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
