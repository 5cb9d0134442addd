"""Private Evolution: Algorithms 1 and 3 of Lin et al. (2024)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pe.data.population import Mask, Members, Population
from pe.data.samples import generator
from pe.dispatch.dispatcher import Dispatcher
from pe.histogram import CountVotes, Votes, dp_nn_histogram
from pe.lookahead import EmbeddingCache, lookahead_embeddings
from pe.nearest.label_weights import LabelWeights, label_weights
from pe.plugins.protocols import Embedding
from pe.privacy.ledger import Ledger
from pe.private.embeddings import PrivateEmbeddings
from pe.selection import descend, votes_of_equals
from pe.steps import Plan, Step, by_label


def evolve(
    plan: Plan,
    private: Callable[[], PrivateEmbeddings],
    api: Dispatcher,
    embedding: Embedding,
    ledger: Ledger,
    warn: Callable[[str], None],
    count: CountVotes,
    keep: Callable[[int, Callable[[], LabelWeights]], LabelWeights],
    on_population: Callable[[int], None] = lambda t: None,
) -> Population:
    """Run Algorithm 3, Private Evolution with labels (Algorithm 1 when there is one label).

    Return S_T.

    Guarantee: everything that `api` is asked for, and the population returned, is post-processing
    of the releases charged to `ledger`. `on_population` is called with t when S_t is durable.
    `keep` makes iteration t's label weights durable, or returns those that are: computed again
    elsewhere, they may differ in the last bits.
    """
    population = api.random(by_label(plan.sizes), plan.initial_variations, plan.first_degree)  # S_0
    survivors = np.zeros(len(population), np.bool_)
    vectors = EmbeddingCache(embedding, api.progress)
    on_population(0)
    for step in plan.steps:
        candidates = partial(
            lookahead_embeddings,
            population,
            step.t,
            step.lookahead,
            step.degree,
            api,
            vectors,
        )
        labels = population.labels
        histogram = dp_nn_histogram(
            private,
            candidates,
            labels,
            step.release,
            ledger,
            plan.voting,
            count,
        )  # Alg. 2
        weigh = partial(_weigh, histogram, population, step, plan, vectors)
        weights = keep(step.t, weigh) if plan.smooth else None
        members = choose(histogram, population, survivors, step, plan, warn, weights)  # P and S'
        population = api.variations(step.t, population, members, step.degree, step.reuse)  # S_t
        survivors = vectors.follow(members)
        on_population(step.t)
    return population


def _weigh(
    histogram: Votes,
    population: Population,
    step: Step,
    plan: Plan,
    vectors: EmbeddingCache,
) -> LabelWeights:
    """Return the label weights of the members of S_{t-1}.

    They are computed from the members' own vectors, because the lookahead's may be gone by now.
    """
    sigma = step.release.sensitivity * step.release.noise_multiplier
    rng = generator(plan.seed, f"claims/{step.t}")
    return label_weights(
        histogram,
        population.labels,
        vectors.embed(population.samples),
        sigma,
        rng,
    )


def choose(
    histogram: Votes,
    population: Population,
    survivors: Mask,
    step: Step,
    plan: Plan,
    warn: Callable[[str], None],
    weights: LabelWeights | None = None,
) -> Members:
    """Return the members of S_t, chosen from S_{t-1} label by label.

    Where parents are ranked without lookahead or label weights, equal candidates all count with the
    votes of the first.
    """
    # Otherwise each candidate has votes of its own.
    alike = weights is None and step.selection_rule.selection == "rank" and not step.lookahead
    rng = generator(plan.seed, f"selection/{step.t}")
    members: list[Members] = []
    for label, (name, size) in enumerate(zip(plan.classes, step.sizes, strict=True)):
        rows = np.flatnonzero(population.labels == label)
        if size == 0:
            continue
        votes = histogram[rows]
        if alike:
            votes = votes_of_equals(votes, population.samples.take(rows))
        own = 1.0 if weights is None else weights[rows]
        highest = votes.max()
        if highest <= step.threshold:
            warn(
                f"Iteration {step.t}, label '{name}': no candidate's noisy votes exceed the "
                f"threshold of {step.threshold:g} (highest {highest:.1f}), so parents are drawn "
                "from the votes without a threshold; lower the threshold or the population."
            )
        one = descend(votes, survivors[rows], size, step.threshold, step.selection_rule, rng, own)
        members.append(Members(rows[one.parents], one.survives))
    return Members(
        np.concatenate([one.parents for one in members]),
        np.concatenate([one.survives for one in members]),
    )
