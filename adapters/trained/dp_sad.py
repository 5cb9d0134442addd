"""DP-SAD: a student model learns from records, teacher and discriminator (Liu et al. 2024)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from adapters.trained.diffusion_model import FittedDiffusion
from adapters.trained.fit import Fit
from adapters.trained.own_network import OwnNetwork
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.settings import Discrimination, FineTuning, Fraction, PlainTraining, Weight
from adapters.trained.trainings import PlannedTraining, declare_training
from pe.data.arrays import Float32Array
from pe.errors import RecipeError
from pe.fit.trainer import FIT
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from adapters.trained.dp_sgd.training import Training
    from pe.fit.trainer import FitTerms


class Teaching(FineTuning):
    """DP-SGD of DP-SAD's teacher.

    Attributes:
        share: the share of the fit's ε that this training costs, taken alone; 0: only public images
            train the teacher.
    """

    section: ClassVar[str] = "teacher"

    share: Fraction = 0.5


class Learning(FineTuning):
    """DP-SGD of DP-SAD's student. Before each block the discriminator learns."""

    block: Count = 10


@plugin
class DPSAD(ReadsPublic, OwnNetwork, FittedDiffusion):
    """If public images have your labels' names: a student learns from records and a teacher.

    DP-SGD trains a diffusion model, the student, to match the records and a teacher, judged by a
    discriminator.

    The teacher is a diffusion model, trained by DP-SGD on the records with a share of the budget,
    or on public images alone. The discriminator learns between the student's blocks, from images
    that teacher and student make of public noise. Teacher and discriminator are fixed while records
    are read, so the gradient of a record's whole loss depends on no other record, and is clipped
    whole. The published algorithm differs, and its claim does not hold: see docs/proofs.md. For the
    other arguments see `FittedDiffusion`.

    Args:
        public: images on which the teacher is trained first; if the teacher learns from nothing
            else, only those whose public label is also the name of a private label.
        pretraining: of the teacher, on the public images.
        teacher: DP-SGD of the teacher.
        imitation: weight of the distance to the teacher; 0 leaves it out.
        adversarial: λ, the weight of the discriminator's judgement; 0 leaves it out.
        discrimination: training of the discriminator.
        guidance: classifier-free guidance scale of sampling; 1: none.
        network: size of the UNet, of teacher and student alike.
        training: of the student, on the private records.
    """

    info = replace(
        FittedDiffusion.info,
        machine_settings=(*FittedDiffusion.info.machine_settings, "teacher.micro_batch"),
    )

    public: Public | None = None
    pretraining: PlainTraining | None = None
    teacher: Teaching = Teaching()
    imitation: Weight = 1.0
    adversarial: Weight = 1.0
    discrimination: Discrimination = Discrimination()
    guidance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.8
    training: Learning = Learning()

    def load(self, folder: Path) -> None:
        """See `FittedDiffusion`."""
        self.load_guided(folder, self.guidance)

    def _fit(self, fit: Fit) -> None:
        terms = fit.terms
        self._check(terms)
        teaching = None
        if self.teacher.share:
            teaching = declare_training(fit, self.teacher, f"{FIT}teacher", self.teacher.share)
        learning = self.declare_dp_sgd(fit)
        fit.begin()
        from adapters.trained.diffusion_networks import write_model
        from adapters.trained.dp_sad_networks import Distillation, Judge

        none = len(terms.classes)  # the number of the class that means "no class"
        teacher = self._teacher(fit, teaching)
        student = deepcopy(teacher)
        teacher.eval().requires_grad_(False)
        judge = None
        if self.adversarial:
            judge = Judge(
                teacher,
                terms.image_shape,
                none,
                self.discrimination,
                self.sampling.steps,
                terms.seed,
            )

        def learn(engine: Training, state: Float32Array) -> None:
            if judge is not None and engine.step_of(state) < learning.settings.steps:
                judge.learn(engine.load(state, average=False))

        loss = Distillation(teacher, judge, self.imitation, self.adversarial, none)
        self.train_by_dp_sgd(
            fit, student, loss, learning, task="training the student", between=learn
        )
        write_model(student, terms.classes, fit.folder)

    def _teacher(self, fit: Fit, teaching: PlannedTraining | None) -> UNet2DModel:
        """Return the teacher, trained on public images, then by DP-SGD.

        The settings may leave out either training.
        """
        from adapters.trained.diffusion_networks import Denoising, with_new_classes

        terms = fit.terms
        none = len(fit.terms.classes)
        source = self.public
        if source is None:
            model = self.new(terms, none + 1)
        else:
            names = source.label_names() if teaching else terms.classes
            classes = max(1, len(names))

            def images() -> PublicSet:
                public = source.read(terms.image_shape, terms.seed)
                # If no record teaches the labels, they are those of the private labels' names.
                return (
                    public
                    if teaching
                    else public.select(np.array([[public.names.index(name)] for name in names]))
                )

            model = self.new(terms, classes + 1)
            self.pretrain(fit, model, images, self.pretraining or PlainTraining(), none=classes)
            if teaching:
                model = with_new_classes(model, none + 1, terms.seed)
        if teaching:
            loss = Denoising(none)
            self.train_by_dp_sgd(fit, model, loss, teaching, task="training the teacher")
        return model

    def _check(self, terms: FitTerms) -> None:
        """Raise RecipeError if the teacher has nothing to learn from."""
        if self.public is None:
            if self.pretraining is not None:
                raise RecipeError(
                    "`api.pretraining` needs public images: set `api.public`, or remove it."
                )
            if not self.teacher.share:
                raise RecipeError(
                    "`api.teacher.share` is 0 and `api.public` is missing, so the teacher has "
                    "nothing to learn from. Set one of the two."
                )
            return
        self.public.check(terms.image_shape)
        missing = sorted(set(terms.classes) - set(self.public.label_names()))
        if missing and not self.teacher.share:
            raise RecipeError(
                "`teacher.share` is 0, so the teacher learns the labels from public images, but "
                f"they have none named '{missing[0]}'. Name public labels as the private ones, or "
                "give the teacher a share."
            )
