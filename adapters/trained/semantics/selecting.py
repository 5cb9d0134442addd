"""What PrivImage's two halves share: the release of the semantics, and the public images that it selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.trained.blocks import counted_steps
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.sections import QueryTraining
from adapters.trained.semantics.counts import Counts, chosen_semantics, noisy_semantics, semantics_release
from pe.errors import RecipeError
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    import torch

    from adapters.trained.semantics.query import Query
    from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
    from pe.privacy.noise import Noise
    from pe.privacy.release import Release


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
        from adapters.trained.semantics.query import train_query

        with counted_steps(fitting, "training the semantic query", self.query.steps) as step_done:
            return train_query(public, self.query, fitting.terms.seed, device, step_done)
