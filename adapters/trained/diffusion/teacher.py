"""DP-SAD's teacher: what it is trained on, what that costs, and the network that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.trained.blocks import blocks_of, settled, train_blocks
from adapters.trained.diffusion.dp_sad_sections import Teaching
from adapters.trained.public import PublicSet, Source
from adapters.trained.sections import PlainTraining
from pe.errors import RecipeError
from pe.fit.trainer import FIT
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    import torch
    from diffusers import UNet2DModel

    from adapters.trained.clusters import Clusters
    from adapters.trained.dp_sgd.hyperparameters import DPSGD, FineTuning
    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords
    from pe.privacy.release import Release

_NAME = f"{FIT}teacher"


@dataclass(frozen=True)
class Teacher:
    """Trained on public images, then by DP-SGD with a share of the budget; one of the two may be left out.

    Attributes:
        public: images on which it begins; None: there are none.
        pretraining: on them.
        training: its DP-SGD; with a share of 0 it learns the labels from public images of their names.
        clusters: into how many classes each label is split.
        new: a network that was never trained, of so many classes.
        places: where each process of a training computes.

    Raises:
        RecipeError: it has nothing to learn from, or clusters without public images.
    """

    public: Source | None
    pretraining: PlainTraining
    training: Teaching
    clusters: int
    new: Callable[[FitTerms, int], UNet2DModel]
    places: Callable[[FineTuning], list[torch.device]]

    def __post_init__(self) -> None:
        if self.public is None and not self.training.share:
            raise RecipeError(
                "teacher.share is 0, and public names no images, so the teacher has nothing to learn from: "
                "give it a share, or public images."
            )
        if self.clusters < 1 or (self.clusters > 1 and self.public is None):
            raise RecipeError(
                f"clusters is {self.clusters}: it must be at least 1, and above 1 it needs public images, from which "
                "the centroids are found."
            )

    def check(self, terms: FitTerms) -> None:
        """Raise RecipeError if the public images do not serve."""
        if self.public is None:
            return
        self.public.check(terms.image_shape)
        missing = sorted(set(terms.classes) - set(self.public.label_names()))
        if missing and not self.training.share:
            raise RecipeError(
                f"teacher.share is 0, so the teacher learns the labels from public images, which have none named "
                f"'{missing[0]}': name public labels as the private ones, or give the teacher a share."
            )

    def classes(self, terms: FitTerms) -> int:
        """How many it tells apart, beside the one that stands for none."""
        return len(terms.classes) * self.clusters

    def releases(self, terms: FitTerms) -> tuple[Release, ...]:
        """Each block of its DP-SGD steps; none where public images alone teach it."""
        return blocks_of(self._settled(terms), terms, _NAME) if self.training.share else ()

    def public_set(self, terms: FitTerms) -> PublicSet | None:
        """The public images; where no record teaches the labels, those of the private labels' names."""
        if self.public is None:
            return None
        public = self.public.read(terms.image_shape, terms.seed)
        if self.training.share:
            return public
        named = public.selected(np.array([[public.names.index(name)] for name in terms.classes]))
        split = self.split(named, terms)
        if split is None:
            return named
        names = tuple(map(str, range(self.classes(terms))))
        return PublicSet(named.images, split.split(named.images, named.labels).astype(np.int64), names)

    def split(self, public: PublicSet | None, terms: FitTerms) -> Clusters | None:
        """How each label is split; None: it is not."""
        from adapters.trained.clusters import Clusters

        if self.clusters == 1:
            return None
        assert public is not None
        return Clusters.of(public, self.clusters, terms.seed)

    def trained(self, fitting: Fitting, private: Callable[[], PrivateRecords], public: PublicSet | None) -> UNet2DModel:
        """The network after all steps; the private ones are released.

        Raises:
            Interrupted: the fit was told to stop.
            RecipeError: memory does not suffice.
        """
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.diffusion.network import with_new_classes
        from adapters.trained.diffusion.pretraining import pretrained
        from adapters.trained.dp_sgd.training import Training

        terms, classes = fitting.terms, self.classes(fitting.terms) + 1
        devices = self.places(self.training)
        model = self.new(terms, classes if public is None else public.classes + 1).to(devices[0])
        if public is not None:
            model = pretrained(model, lambda: public, self.pretraining, fitting, none=public.classes)
        if self.training.share:
            model = model if public is None else with_new_classes(model, classes, terms.seed)
            training = Training(model, Velocity(none=classes - 1), self._settled(terms), *devices)
            training.load(train_blocks(training, self.releases(terms), fitting, private, "training the teacher"))
        return model

    def dry_runs(self, model: UNet2DModel, terms: FitTerms) -> list[DryRun]:
        """A step of each part of its training, on random images; `model` is new."""
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.diffusion.pretraining import pretraining_dry_run
        from adapters.trained.dp_sgd.forecast import dry_run

        found = [] if self.public is None else [pretraining_dry_run(model, terms, self.pretraining)]
        if self.training.share:
            loss, settings = Velocity(self.classes(terms)), self._settled(terms)
            found.append(dry_run(model, loss, terms.image_shape, settings, self.places(self.training)[0], _NAME))
        return found

    def _settled(self, terms: FitTerms) -> DPSGD:
        budget = Budget(self.training.share * terms.budget.epsilon, terms.budget.delta)
        return settled(self.training, terms, (), budget)


def classed(records: PrivateRecords, split: Clusters | None) -> PrivateRecords:
    """CONFIDENTIAL: the records with the network's classes for labels, each a function of its record alone."""
    return records if split is None else replace(records, labels=split.split(records.samples, records.labels))
