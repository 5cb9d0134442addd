"""Private Evolution: Algorithms 1 and 3 of Lin et al. (2024)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.seeds import generator
from pe.dispatch.dispatcher import Dispatcher
from pe.histogram import Votes, dp_nn_histogram
from pe.lookahead import lookahead_embeddings
from pe.plugins.protocols import Embedding
from pe.privacy.ledger import Ledger
from pe.private.embeddings import PrivateEmbeddings
from pe.selection import Items, parent_weights, select_parents
from pe.steps import Plan, Step, by_label


def evolve(
    plan: Plan,
    private: Callable[[], PrivateEmbeddings],
    api: Dispatcher,
    embedding: Embedding,
    ledger: Ledger,
    warn: Callable[[str], None],
) -> Population:
    """Algorithm 3: Private Evolution with labels; Algorithm 1 when there is one label.

    Guarantee: everything that `api` is asked and that is returned is post-processing of the releases
    charged to `ledger`.
    """
    population = api.random(by_label(plan.sizes))  # S_0
    for step in plan.steps:
        candidates = partial(lookahead_embeddings, population, step.t, step.lookahead, step.degree, api, embedding)
        histogram = dp_nn_histogram(private, candidates, population.labels, step.release, ledger, plan.voting)  # Alg. 2
        parents = choose(histogram, population.labels, step, plan, warn)  # P and S'
        population = api.variations(step.t, population, parents, step.degree, step.reuse)  # S_t
        api.forget(f"lookahead/{step.t}")
    return population


def choose(
    histogram: Votes, labels: npt.NDArray[np.int32], step: Step, plan: Plan, warn: Callable[[str], None]
) -> Items:
    """The parents of S_t, label by label, as indices into S_{t-1}."""
    rng = generator(plan.seed, f"selection/{step.t}")
    parents: list[Items] = []
    for label, (name, size) in enumerate(zip(plan.classes, step.sizes, strict=True)):
        members = np.flatnonzero(labels == label)
        if size == 0:
            continue
        weights, stand_in = parent_weights(histogram[members], step.threshold)
        if stand_in:
            warn(
                f"Iteration {step.t}, label '{name}': no candidate's noisy votes exceed the threshold of "
                f"{step.threshold:g} (highest {histogram[members].max():.1f}), so parents are drawn from the votes "
                "without a threshold; lower the threshold or the population."
            )
        parents.append(members[select_parents(weights, size, plan.selection, rng)])
    return np.concatenate(parents)
