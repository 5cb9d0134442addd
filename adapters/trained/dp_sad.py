"""DP-SAD's teacher: what it is trained on, what that costs, and the network that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from adapters.trained.diffusion import FittedDiffusion
from adapters.trained.files import write_model
from adapters.trained.public import Public, PublicSet, ReadsPublic, Source
from adapters.trained.releases import TRAINING, blocks_of, settled, train_blocks
from adapters.trained.settings import Discrimination, Learning, PlainTraining, Teaching, levels
from pe.errors import RecipeError
from pe.fit.trainer import FIT
from pe.plugins.devices import require_torch
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    import torch
    from diffusers import UNet2DModel
    from torch import nn

    from adapters.trained.dp_sad_networks import Distillation
    from adapters.trained.dp_sgd.training import FloatArray
    from adapters.trained.plain import Clusters
    from adapters.trained.settings import DPSGD, FineTuning
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
        from adapters.trained.plain import Clusters

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
        from adapters.trained.diffusion_training import Velocity, pretrained, with_new_classes
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
        from adapters.trained.diffusion_training import Velocity, pretraining_dry_run
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


# DP-SAD: a student diffusion model that learns from the records, a teacher and a discriminator (Liu et al. 2024).


Begin = Literal["teacher", "new"]
_TEACHERS = ("teacher.micro_batch", "teacher.processes")


@dataclass(kw_only=True, eq=False, repr=False)
class DPSAD(ReadsPublic, FittedDiffusion):
    """A student trained by DP-SGD to match the records, the teacher, and what a discriminator takes for the teacher's.

    The teacher is a diffusion model that DP-SGD trained on the records with a share of the budget, or that public
    images alone did. The discriminator sees what both make of public noise, between the student's blocks. Both are
    known when a record is read, so the gradient of a record's whole loss is its own, and is clipped whole. This is not
    the algorithm as published, whose claim does not hold; docs/privacy.md says why. All else, the other arguments too,
    is as in `FittedDiffusion`.

    Args:
        public: images on which the teacher begins. Where it learns from them alone, they are those of the private
            labels' names.
        pretraining: on them.
        teacher: its DP-SGD.
        begin: whether the student begins as the `teacher`, or as a `new` network.
        clusters: into how many classes each label is split, by centroids of the public images; 1: into none.
        imitation: weight of the distance to the teacher; 0 leaves it out.
        adversarial: λ, the weight of the discriminator's judgement; 0 leaves it out.
        discrimination: training of the discriminator.
        guidance: classifier-free guidance scale of sampling; 1: none.
        network: of teacher and student: its size.
        training: of the student, on the private records.

    Raises:
        RecipeError: a setting is out of range, or the teacher has nothing to learn from or to teach.
    """

    info = replace(FittedDiffusion.info, machine_settings=(*FittedDiffusion.info.machine_settings, *_TEACHERS))

    public: Public | None = None
    pretraining: PlainTraining | None = None
    teacher: Teaching = Teaching()
    begin: Begin = "teacher"
    clusters: int = 1
    imitation: float = 1.0
    adversarial: float = 1.0
    discrimination: Discrimination = Discrimination()
    guidance: float = 1.8
    training: Learning = Learning()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in (("imitation", self.imitation), ("adversarial", self.adversarial)):
            if not 0 <= weight < np.inf:
                raise RecipeError(f"{name} is {weight}: it must be at least 0.")
        if not 1 <= self.guidance < np.inf:
            raise RecipeError(f"guidance is {self.guidance}: it must be at least 1, which is none.")
        if self.begin not in get_args(Begin):
            raise RecipeError(f"begin is '{self.begin}': it must be one of {', '.join(get_args(Begin))}.")
        if self.public is None and self.pretraining is not None:
            raise RecipeError("pretraining is given, and public names no images for it: leave it out, or name some.")
        if self.begin == "new" and not self.imitation and not self.adversarial:
            raise RecipeError(
                "imitation and adversarial are 0, and begin is new, so the teacher would teach nothing: "
                "take begin: teacher, or api.kind: dpdm."
            )
        self._guidance = self.guidance
        pretraining = self.pretraining or PlainTraining()
        self._teacher = Teacher(self.public, pretraining, self.teacher, self.clusters, self._new, self._places)

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """The teacher's blocks of DP-SGD steps, then the student's; all calibrated together to the budget.

        Raises:
            RecipeError: a setting is out of range, the images are too small, or the public set does not serve.
            PrivacyError: the budget is too small for one useful step, or the unit is larger than a record.
        """
        height, width, _ = terms.image_shape
        levels(self.network, height, width)
        self._teacher.check(terms)
        return [*self._teacher.releases(terms), *blocks_of(self._settled(terms), terms)]

    def fit(self, fitting: Fitting) -> None:
        """The teacher first, then the student, with the discriminator between its blocks.

        Guarantee: the planned releases'; all else is post-processing of them, or public. The private records are read
        only while a block is drawn. When a fit goes on that was broken off, the discriminator learns again what it had
        learned, from the same states.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.training import Training

        terms, devices = fitting.terms, self._places(self.training)
        public = self._teacher.public_set(terms)
        split = self._teacher.split(public, terms)
        private = cache(lambda: classed(fitting.private(), split))
        teacher = self._teacher.trained(fitting, private, public)
        student = deepcopy(teacher) if self.begin == "teacher" else self._new(terms, self._teacher.classes(terms) + 1)
        settings = self._settled(terms)
        loss = self._loss(teacher.eval().requires_grad_(False), terms)
        training = Training(student, loss, settings, *devices)

        def learn(state: FloatArray) -> None:
            if loss.judge is not None and training.step_of(state) < settings.steps:
                loss.judge.learn(training.load(state, average=False))

        learn(training.start())
        state = train_blocks(training, blocks_of(settings, terms), fitting, private, "training the student", learn)
        write_model(training.load(state), terms.classes, fitting.folder, self.clusters)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of each part, on random images; the discriminator's training is not told.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.forecast import dry_run

        model = self._new(terms, self._teacher.classes(terms) + 1).to(self._place())
        found, settings = self._teacher.dry_runs(model, terms), self._settled(terms)
        loss = self._loss(deepcopy(model).eval().requires_grad_(False), terms)
        return [*found, dry_run(model, loss, terms.image_shape, settings, self._place(), TRAINING)]

    def _settled(self, terms: FitTerms) -> DPSGD:
        """The student's, beside the teacher's releases."""
        return settled(self.training, terms, self._teacher.releases(terms))

    def _loss(self, teacher: nn.Module, terms: FitTerms) -> Distillation:
        """The student's, with a new discriminator."""
        from adapters.trained.dp_sad_networks import Distillation, Judge

        height, width, channels = terms.image_shape
        shape, classes = (channels, height, width), self._teacher.classes(terms)
        judge = None
        if self.adversarial:
            judge = Judge(teacher, shape, classes, self.discrimination, self.sampling.steps, terms.seed)
        return Distillation(teacher, judge, self.imitation, self.adversarial, none=classes)
