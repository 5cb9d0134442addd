"""PrivImage's private query: how often each label's records have each public semantic (Li et al. 2024, §3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.releases import counted_steps, sum_release
from adapters.trained.settings import QueryTraining
from pe.errors import RecipeError
from pe.fit.trainer import FIT, PrivateRecords
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release

if TYPE_CHECKING:
    import torch

    from adapters.trained.semantic_query import Query
    from pe.fit.trainer import FitTerms, Fitting


NAME = f"{FIT}semantics"

Counts = npt.NDArray[np.int64]
Tops = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]
"""The k different semantics of one image, a function of that image alone."""


def semantics_release(budget: Budget, k: int, relation: Relation, unit: str) -> Release:
    """The release of the counts, with the least noise that alone meets `budget`.

    Its sensitivity is √k: a record adds 1 to k bins of its own label's row (Theorem 3.1). Under replace-one it may
    take as many away elsewhere: √(2k).
    """
    sensitivity = math.sqrt(2 * k if Relation(relation) is Relation.REPLACE_ONE else k)
    return sum_release(NAME, sensitivity, budget, relation, unit)


def noisy_semantics(
    records: PrivateRecords, tops: Tops, classes: int, semantics: int, release: Release, noise: Noise
) -> Counts:
    """Noisy counts, int64 (classes, semantics), in the release's grid steps.

    Guarantee: the release's. A record adds one vote to each of its k semantics, in the row of its own label, and what
    they are depends on that record and on the public query alone. No row is divided by its label's size.
    """
    counts = np.zeros((classes, semantics), dtype=np.int64)
    for image, label in zip(records.samples, records.labels, strict=True):
        counts[label, tops(image)] += release.grid
    return counts + noise.discrete_gaussian(counts.shape, release.scale)


def chosen_semantics(noisy: Counts, k: int) -> Counts:
    """The k semantics of each label, int64 (classes, k), the most frequent first; none belongs to two labels.

    Greedy: the largest noisy count of all takes its semantic for its label, then the next, until each label has k.
    Ties go to the first label, and the first semantic. Post-processing.

    Args:
        noisy: int64 (classes, semantics), of at least classes·k semantics.
        k: semantics per label.
    """
    classes, semantics = noisy.shape
    chosen: list[list[int]] = [[] for _ in range(classes)]
    taken = np.zeros(semantics, dtype=np.bool_)
    for place in np.argsort(-noisy, axis=None, kind="stable"):
        label, semantic = divmod(int(place), semantics)
        if len(chosen[label]) < k and not taken[semantic]:
            chosen[label].append(semantic)
            taken[semantic] = True
    return np.array(chosen, dtype=np.int64)


# What PrivImage's two halves share: the release of the semantics, and the public images that it selects.


@dataclass(kw_only=True, eq=False, repr=False)
class SelectsPublic(ReadsPublic):
    """A fit that asks once, under DP, which public images are most like the private ones (Li et al., USENIX 2024).

    A classifier of the public labels, the semantic query function, is asked for the k most probable semantics of each
    private image; how often each label has each is released once, with noise. Each label takes the images of its k
    most frequent semantics, and none is taken twice.

    Args:
        public: the public images, labelled.
        semantics: k: both how many a record has and how many a label takes.
        semantics_share: of the fit's ε, which the release of the semantics alone takes.
        query: the query function, and its training.

    Raises:
        RecipeError: a setting is out of range.
    """

    public: Public
    semantics: int = 1
    semantics_share: float = 0.05
    query: QueryTraining = QueryTraining()

    def __post_init__(self) -> None:
        if self.semantics < 1:
            raise RecipeError(f"semantics is {self.semantics}: it must be at least 1.")
        if not 0 < self.semantics_share < 1:
            raise RecipeError(f"semantics_share is {self.semantics_share}: it must lie between 0 and 1.")

    def _check(self, terms: FitTerms) -> None:
        """Raise RecipeError if the public images do not serve."""
        self.public.check(terms.image_shape)
        names, wanted = self.public.label_names(), self.semantics * len(terms.classes)
        if not names:
            raise RecipeError(
                f"public: '{self.public.place}' has no labels, and PrivImage selects by them: put each label's images "
                "into a folder of its name, add 'labels' to the .npz file, or take kind: pdp_diffusion."
            )
        if len(names) < wanted:
            raise RecipeError(
                f"semantics is {self.semantics} for each of {len(terms.classes)} labels, which takes {wanted} public "
                f"labels, and the public set has {len(names)}: take fewer semantics, or more public labels."
            )

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        """The release of the semantics."""
        budget = Budget(self.semantics_share * terms.budget.epsilon, terms.budget.delta)
        return (semantics_release(budget, self.semantics, terms.relation, terms.unit),)

    def _selected(self, fitting: Fitting, private: Callable[[], PrivateRecords], device: torch.device) -> PublicSet:
        """The public images of each label's semantics, labelled by the private labels' numbers."""
        public = self.public.read(fitting.terms.image_shape, fitting.terms.seed)
        return public.selected(chosen_semantics(self._released(fitting, private, public, device), self.semantics))

    def _released(
        self, fitting: Fitting, private: Callable[[], PrivateRecords], public: PublicSet, device: torch.device
    ) -> Counts:
        """The noisy counts: the stored ones, or new ones by a query function that is trained for them."""
        terms, ledger = fitting.terms, fitting.ledger
        (release,) = SelectsPublic._others(self, terms)
        query = None if ledger.drawn(release) else self._trained_query(fitting, public, device)

        def draw(noise: Noise) -> Counts:
            assert query is not None, "a stored release is not drawn again"
            sizes = len(terms.classes), public.classes
            return noisy_semantics(private(), lambda image: query.tops(image, self.semantics), *sizes, release, noise)

        return ledger.release(release, draw)

    def _trained_query(self, fitting: Fitting, public: PublicSet, device: torch.device) -> Query:
        from adapters.trained.semantic_query import train_query

        with counted_steps(fitting, "training the semantic query", self.query.steps) as step_done:
            return train_query(public, self.query, fitting.terms.seed, device, step_done)
