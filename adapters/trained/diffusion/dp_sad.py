"""DP-SAD: a student diffusion model that learns from the records, a teacher and a discriminator (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from adapters.trained.blocks import TRAINING, blocks_of, settled, train_blocks
from adapters.trained.diffusion.base import FittedDiffusion
from adapters.trained.diffusion.dp_sad_sections import Discrimination, Learning, Teaching
from adapters.trained.diffusion.files import write_model
from adapters.trained.diffusion.levels import levels
from adapters.trained.diffusion.teacher import Teacher, classed
from adapters.trained.public import Public, ReadsPublic
from adapters.trained.sections import PlainTraining
from pe.errors import RecipeError
from pe.plugins.devices import require_torch

if TYPE_CHECKING:
    from torch import nn

    from adapters.trained.diffusion.distillation import Distillation
    from adapters.trained.dp_sgd.hyperparameters import DPSGD
    from adapters.trained.dp_sgd.state import FloatArray
    from pe.fit.trainer import DryRun, FitTerms, Fitting
    from pe.privacy.release import Release

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
        from adapters.trained.diffusion.discriminator import Judge
        from adapters.trained.diffusion.distillation import Distillation

        height, width, channels = terms.image_shape
        shape, classes = (channels, height, width), self._teacher.classes(terms)
        judge = None
        if self.adversarial:
            judge = Judge(teacher, shape, classes, self.discrimination, self.sampling.steps, terms.seed)
        return Distillation(teacher, judge, self.imitation, self.adversarial, none=classes)
