"""DP-SAD: a student diffusion model that learns from the records, a teacher and a discriminator (Liu et al. 2024)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from adapters.trained.diffusion import FittedDiffusion
from adapters.trained.fit import Draws, Fit, Plan, Steps
from adapters.trained.public import PUBLIC_IMAGES, Public
from adapters.trained.settings import Discrimination, FineTuning, Fraction, PlainTraining, Weight
from pe.data.arrays import Float32Array
from pe.errors import RecipeError
from pe.fit.trainer import FIT
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    from diffusers import UNet2DModel
    from torch import nn

    from adapters.trained.dp_sad_networks import Distillation
    from adapters.trained.dp_sgd.training import Training
    from pe.fit.trainer import DryRun, FitTerms

_TEACHER = f"{FIT}teacher"


class Teaching(FineTuning):
    """DP-SGD of DP-SAD's teacher.

    Attributes:
        share: the share of the fit's ε that this training costs, taken alone; 0: only public images train the teacher.
    """

    section: ClassVar[str] = "teacher"

    share: Fraction = 0.5


class Learning(FineTuning):
    """DP-SGD of DP-SAD's student; before each block the discriminator learns."""

    block: Count = 10


@plugin
class DPSAD(FittedDiffusion):
    """If public images have your labels' names: a student learns by DP-SGD from records and a teacher.

    A diffusion model, the student, that DP-SGD trains to match the records and a teacher, judged by a discriminator.

    The teacher is a diffusion model, trained by DP-SGD on the records with a share of the budget, or on public images
    alone. The discriminator learns between the student's blocks, from images that teacher and student make of
    public noise. Teacher and discriminator are fixed while records are read, so the gradient of a record's whole loss
    depends on no other record, and is clipped whole. The published algorithm differs, and its claim does not hold: see
    docs/proofs.md. For the other arguments see `FittedDiffusion`.

    Args:
        public: images on which the teacher is trained first; if the teacher learns from nothing else, only those whose
            public label is also the name of a private label.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public is None and self.pretraining is not None:
            raise RecipeError("pretraining is given, and public names no images for it: leave it out, or name some.")
        if self.public is None and not self.teacher.share:
            raise RecipeError(
                "teacher.share is 0, and public names no images, so the teacher has nothing to learn from: "
                "give it a share, or public images."
            )
        self._guidance = self.guidance

    def _check(self, terms: FitTerms) -> None:
        super()._check(terms)
        missing = sorted(set(terms.classes) - set(self.public.label_names() if self.public else terms.classes))
        if missing and not self.teacher.share:
            raise RecipeError(
                f"teacher.share is 0, so the teacher learns the labels from public images, which have none named "
                f"'{missing[0]}': name public labels as the private ones, or give the teacher a share."
            )

    def _draws(self, terms: FitTerms) -> Draws:
        teacher = [Steps(self.teacher, _TEACHER, self.teacher.share)] if self.teacher.share else []
        return [*teacher, Steps(self.training)]

    def _fit(self, fit: Fit) -> None:
        from adapters.trained.diffusion_networks import write_model

        terms = fit.terms
        teacher = self._teacher(fit)
        student = deepcopy(teacher)
        loss = self._loss(teacher.eval().requires_grad_(False), terms)

        def learn(training: Training, state: Float32Array) -> None:
            if loss.judge is not None and training.step_of(state) < training.settings.steps:
                loss.judge.learn(training.load(state, average=False))

        student = fit.dp_sgd(student, loss, self._places(), task="training the student", between=learn)
        write_model(student, terms.classes, fit.fitting.folder)

    def _teacher(self, fit: Fit) -> UNet2DModel:
        """Return the teacher, trained on public images, then by DP-SGD; the settings may leave out either training."""
        from adapters.trained.diffusion_networks import Velocity, pretrain, with_new_classes

        terms, none = fit.terms, len(fit.terms.classes)
        if self.public is None:
            model = self._new(terms, none + 1)
        else:
            public = self.public.read(terms.image_shape, terms.seed)
            if not self.teacher.share:  # no record teaches the labels: they are those of the private labels' names
                public = public.select(np.array([[public.names.index(name)] for name in terms.classes]))
            model = self._new(terms, public.classes + 1)
            settings = self.pretraining or PlainTraining()
            model = pretrain(fit, model, lambda: public, settings, none=public.classes)
            if self.teacher.share:
                model = with_new_classes(model, none + 1, terms.seed)
        if self.teacher.share:
            fit.dp_sgd(model, Velocity(none=none), self._places(), name=_TEACHER, task="training the teacher")
        return model

    def _start(self, terms: FitTerms) -> tuple[nn.Module, Distillation]:
        model = self._new(terms, len(terms.classes) + 1)
        return model, self._loss(deepcopy(model).eval().requires_grad_(False), terms)

    def _pretrainings(self) -> dict[str, PlainTraining]:
        return {} if self.public is None else {PUBLIC_IMAGES: self.pretraining or PlainTraining()}

    def _first_classes(self, terms: FitTerms) -> int:
        return len(terms.classes) + 1

    def _other_dry_runs(self, terms: FitTerms, plan: Plan) -> list[DryRun]:
        from adapters.trained.diffusion_networks import Velocity
        from adapters.trained.dp_sgd.training import dry_run

        runs = super()._other_dry_runs(terms, plan)
        if self.teacher.share:
            model, loss = self._new(terms, len(terms.classes) + 1), Velocity(len(terms.classes))
            runs.append(dry_run(model, loss, terms.image_shape, plan.settings[_TEACHER], self._places(), _TEACHER))
        return runs

    def _loss(self, teacher: nn.Module, terms: FitTerms) -> Distillation:
        """Return the student's loss, with a new discriminator."""
        from adapters.trained.dp_sad_networks import Distillation, Judge

        height, width, channels = terms.image_shape
        shape, classes = (channels, height, width), len(terms.classes)
        judge = None
        if self.adversarial:
            judge = Judge(teacher, shape, classes, self.discrimination, self.sampling.steps, terms.seed)
        return Distillation(teacher, judge, self.imitation, self.adversarial, none=classes)
