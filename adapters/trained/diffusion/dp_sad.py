"""DP-SAD: a student diffusion model that learns from the records, a teacher and a discriminator (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from adapters.trained.blocks import TRAINING, blocks_of, settled, train_blocks
from adapters.trained.diffusion.base import FittedDiffusion
from adapters.trained.diffusion.dp_sad_sections import Discrimination, Learning, Teaching
from adapters.trained.diffusion.files import Sampling, write_model
from adapters.trained.diffusion.levels import Network
from adapters.trained.public import Public, PublicSet
from adapters.trained.sections import PlainTraining
from pe.errors import RecipeError
from pe.fit.trainer import FIT
from pe.plugins.devices import require_torch
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from adapters.trained.clusters import Clusters
    from adapters.trained.diffusion.discriminator import Judge
    from adapters.trained.diffusion.loss import Velocity
    from adapters.trained.dp_sgd.hyperparameters import DPSGD
    from adapters.trained.dp_sgd.state import FloatArray
    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords
    from pe.privacy.release import Release

Begin = Literal["teacher", "new"]

_TEACHER = f"{FIT}teacher"


class DPSAD(FittedDiffusion):
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
        imitation: weight of the distance to the teacher; 0 leaves it out. Of a teacher that DP-SGD trained on a share
            of the budget a quarter, say, is better than all (docs/methods.md).
        adversarial: λ, the weight of the discriminator's judgement; 0 leaves it out.
        discrimination: training of the discriminator.
        guidance: classifier-free guidance scale of sampling; 1: none.
        network: of teacher and student: its size.
        training: of the student, on the private records.

    Raises:
        RecipeError: a setting is out of range, or the teacher has nothing to learn from or to teach.
    """

    info = replace(
        FittedDiffusion.info, machine_settings=(*FittedDiffusion.info.machine_settings, "teacher.micro_batch")
    )

    def __init__(
        self,
        *,
        public: Public | None = None,
        pretraining: PlainTraining | None = None,
        teacher: Teaching | None = None,
        begin: Begin = "teacher",
        clusters: int = 1,
        imitation: float = 1.0,
        adversarial: float = 1.0,
        discrimination: Discrimination | None = None,
        guidance: float = 1.8,
        network: Network | None = None,
        training: Learning | None = None,
        sampling: Sampling | None = None,
        device: str | list[str] = "auto",
        batch_size: int | None = None,
    ) -> None:
        super().__init__(network, training or Learning(), sampling, device, batch_size)
        for name, weight in (("imitation", imitation), ("adversarial", adversarial)):
            if not 0 <= weight < np.inf:
                raise RecipeError(f"{name} is {weight}: it must be at least 0.")
        if not 1 <= guidance < np.inf:
            raise RecipeError(f"guidance is {guidance}: it must be at least 1, which is none.")
        if begin not in get_args(Begin):
            raise RecipeError(f"begin is '{begin}': it must be one of {', '.join(get_args(Begin))}.")
        self._public, self._pretraining = public, pretraining or PlainTraining()
        self._teacher, self._begin = teacher or Teaching(), begin
        if public is None and not self._teacher.share:
            raise RecipeError(
                "teacher.share is 0, and public names no images, so the teacher has nothing to learn from: "
                "give it a share, or public images."
            )
        if public is None and pretraining is not None:
            raise RecipeError("pretraining is given, and public names no images for it: leave it out, or name some.")
        if clusters < 1 or (clusters > 1 and public is None):
            raise RecipeError(
                f"clusters is {clusters}: it must be at least 1, and above 1 it needs public images, from which the "
                "centroids are found."
            )
        if begin == "new" and not imitation and not adversarial:
            raise RecipeError(
                "imitation and adversarial are 0, and begin is new, so the teacher would teach nothing: "
                "take begin: teacher, or api.kind: dpdm."
            )
        self._clusters = clusters
        self._imitation, self._adversarial, self._guidance = imitation, adversarial, guidance
        self._discrimination = discrimination or Discrimination()

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

        terms, public = fitting.terms, self._read(fitting.terms)
        split = self._split(public, terms)
        private = cache(lambda: _classed(fitting.private(), split))
        teacher = self._taught(fitting, private, public)
        student = deepcopy(teacher) if self._begin == "teacher" else self._new(terms, self._classes(terms) + 1)
        teacher.eval().requires_grad_(False)
        judge = self._judge(teacher, terms)
        settings = self._settled(terms)
        training = Training(student, self._loss(teacher, judge, terms), settings, self._place())

        def learn(state: FloatArray) -> None:
            if judge is not None and training.step_of(state) < settings.steps:
                judge.learn(training.load(state, average=False))

        learn(training.start())
        state = train_blocks(training, blocks_of(settings, terms), fitting, private, "training the student", learn)
        write_model(training.load(state), terms.classes, fitting.folder, self._clusters)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of each part, on random images; the discriminator's training is not told.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.diffusion.pretraining import pretraining_dry_run
        from adapters.trained.dp_sgd.forecast import dry_run

        shape, place, classes = terms.image_shape, self._place(), self._classes(terms)
        model, found = self._new(terms, classes + 1).to(place), []
        if self._public is not None:
            found.append(pretraining_dry_run(model, terms, self._pretraining))
        if self._teacher.share:
            found.append(dry_run(model, Velocity(classes), shape, self._teaching(terms), place, _TEACHER))
        teacher = deepcopy(model).eval().requires_grad_(False)
        settings = self._settled(terms)
        loss = self._loss(teacher, self._judge(teacher, terms), terms)
        return [*found, dry_run(model, loss, shape, settings, place, TRAINING)]

    def _taught(self, fitting: Fitting, private: Callable[[], PrivateRecords], public: PublicSet | None) -> UNet2DModel:
        """The teacher, all of whose private steps are released."""
        from adapters.trained.diffusion.loss import Velocity
        from adapters.trained.diffusion.network import with_new_classes
        from adapters.trained.diffusion.pretraining import pretrained
        from adapters.trained.dp_sgd.training import Training

        terms, classes = fitting.terms, self._classes(fitting.terms) + 1
        model = self._new(terms, classes).to(self._place())
        if public is not None:
            model = self._new(terms, public.classes + 1).to(self._place())
            model = pretrained(model, public, self._pretraining, fitting, none=public.classes)
            if self._teacher.share:
                model = with_new_classes(model, classes, terms.seed)
        if self._teacher.share:
            settings = self._teaching(terms)
            training = Training(model, Velocity(none=classes - 1), settings, self._place())
            blocks = blocks_of(settings, terms, _TEACHER)
            training.load(train_blocks(training, blocks, fitting, private, "training the teacher"))
        return model

    def _settled(self, terms: FitTerms) -> DPSGD:
        """The student's, beside which the budget holds the teacher's spare blocks, too."""
        blocks = self._others(terms)
        return settled(self._training, terms, (*blocks, *blocks[:1] * self._teacher.spare_blocks))

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        return blocks_of(self._teaching(terms), terms, _TEACHER) if self._teacher.share else ()

    def _check(self, terms: FitTerms) -> None:
        if self._public is None:
            return
        self._public.check(terms.image_shape)
        missing = sorted(set(terms.classes) - set(self._public.label_names()))
        if missing and not self._teacher.share:
            raise RecipeError(
                f"teacher.share is 0, so the teacher learns the labels from public images, which have none named "
                f"'{missing[0]}': name public labels as the private ones, or give the teacher a share."
            )

    def _teaching(self, terms: FitTerms) -> DPSGD:
        budget = Budget(self._teacher.share * terms.budget.epsilon, terms.budget.delta)
        return settled(self._teacher, terms, (), budget)

    def _read(self, terms: FitTerms) -> PublicSet | None:
        """The public images; where no record teaches the labels, those of the private labels' names."""
        if self._public is None:
            return None
        public = self._public.read(terms.image_shape, terms.seed)
        if self._teacher.share:
            return public
        named = public.selected(np.array([[public.names.index(name)] for name in terms.classes]))
        split = self._split(named, terms)
        if split is None:
            return named
        names = tuple(map(str, range(self._classes(terms))))
        return PublicSet(named.images, split.split(named.images, named.labels).astype(np.int64), names)

    def _split(self, public: PublicSet | None, terms: FitTerms) -> Clusters | None:
        from adapters.trained.clusters import Clusters

        if self._clusters == 1:
            return None
        assert public is not None
        return Clusters.of(public, self._clusters, terms.seed)

    def _classes(self, terms: FitTerms) -> int:
        """How many the network tells apart."""
        return len(terms.classes) * self._clusters

    def _judge(self, teacher: UNet2DModel, terms: FitTerms) -> Judge | None:
        from adapters.trained.diffusion.discriminator import Judge

        if not self._adversarial:
            return None
        height, width, channels = terms.image_shape
        steps, shape = self._sampling.steps, (channels, height, width)
        return Judge(teacher, shape, self._classes(terms), self._discrimination, steps, terms.seed)

    def _loss(self, teacher: UNet2DModel, judge: Judge | None, terms: FitTerms) -> Velocity:
        from adapters.trained.diffusion.distillation import Distillation

        return Distillation(teacher, judge, self._imitation, self._adversarial, none=self._classes(terms))


def _classed(records: PrivateRecords, split: Clusters | None) -> PrivateRecords:
    """CONFIDENTIAL: the records with the network's classes for labels, each a function of its record alone."""
    return records if split is None else replace(records, labels=split.split(records.images, records.labels))
