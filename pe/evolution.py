"""Private Evolution: Algorithms 1 and 3 of Lin et al. (2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pe.data.population import Population
from pe.data.seeds import generator
from pe.histogram import Metric, Votes, dp_nn_histogram
from pe.lookahead import lookahead_embeddings
from pe.nearest import Backend
from pe.selection import Items, Selection, parent_weights, select_parents

if TYPE_CHECKING:
    from pe.privacy.ledger import Ledger
    from pe.privacy.release import Release
    from pe.private.embeddings import PrivateEmbeddings
    from pe.protocols import Embedding
    from pe.run.dispatch import Dispatcher


@dataclass(frozen=True)
class Step:
    """What iteration t does. All of it is public.

    Attributes:
        t: the iteration, ≥ 1.
        sizes: members of S_t per label.
        degree: v_t, variation in [0, 1].
        lookahead: k, variations per candidate.
        threshold: H, in votes.
        release: the histogram's release.
        reuse: k, when the lookahead's variations become offspring; else 0.
    """

    t: int
    sizes: tuple[int, ...]
    degree: float
    lookahead: int
    threshold: float
    release: Release
    reuse: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run does, settled before its first call. All of it is public.

    Attributes:
        classes: the label names.
        sizes: members of S_0 per label.
        steps: one per iteration.
        selection: how parents are chosen.
        neighbors: q, candidates that each record votes for.
        metric: distance in embedding space.
        seed: the recipe's seed.
        class_counts: the release of the label counts, where label sizes are estimated from it.
        neighbor_search: who finds nearest candidates; it changes no vote.
        fit: the releases that the generator is fitted by, before S_0.
    """

    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    selection: Selection
    neighbors: int
    metric: Metric
    seed: int
    class_counts: Release | None = None
    neighbor_search: Backend = "auto"
    fit: tuple[Release, ...] = ()

    @property
    def releases(self) -> list[Release]:
        """Every release that the run intends."""
        counts = [] if self.class_counts is None else [self.class_counts]
        return [*counts, *self.fit, *(step.release for step in self.steps)]


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
        histogram = dp_nn_histogram(
            private, candidates, population.labels, step.release, ledger, plan.neighbors, plan.metric,
            plan.neighbor_search,
        )  # Alg. 2  # fmt: skip
        parents = choose(histogram, population.labels, step, plan, warn)  # P and S'
        population = api.variations(step.t, population, parents, step.degree, step.reuse)  # S_t
        api.forget_lookahead(step.t)
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


def by_label(sizes: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Labels of a population with `sizes[c]` members of label c, in label order."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
