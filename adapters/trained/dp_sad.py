"""DP-SAD: a student diffusion model that learns from the records, a teacher and a discriminator (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.cluster.vq import kmeans2

from adapters.trained.diffusion import FittedDiffusion
from adapters.trained.fit import Draws, Fit, Plan, Steps
from adapters.trained.public import PUBLIC_IMAGES, Public, PublicSet, ReadsPublic, torch_seed
from adapters.trained.settings import Discrimination, FineTuning, PlainTraining
from pe.errors import RecipeError
from pe.fit.trainer import FIT, PrivateRecords
from pe.plugins.settings import Count

if TYPE_CHECKING:
    from diffusers import UNet2DModel
    from torch import nn

    from adapters.trained.dp_sad_networks import Distillation
    from adapters.trained.dp_sgd.training import FloatArray, Training
    from pe.fit.trainer import DryRun, FitTerms

_TEACHER = f"{FIT}teacher"

Begin = Literal["teacher", "new"]


class Teaching(FineTuning):
    """DP-SAD's teacher: DP-SGD of its own.

    Attributes:
        share: of the fit's ε, which the teacher's training alone takes; 0: it learns from public images alone.
    """

    section: ClassVar[str] = "teacher"

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5


class Learning(FineTuning):
    """DP-SAD's student; between two blocks the discriminator learns."""

    block: Count = 10


# Classes for records that have no labels, or only coarse ones: by centroids of PUBLIC images.

Images = npt.NDArray[np.uint8]

_GRID = 16
"""Cells a side, at most, over whose means images are compared."""

_MOST = 20_000
"""Public images from which the centroids are computed, at most."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """The nearest of k centroids of public images.

    Guarantee: an image's cluster is a function of that image and of public values alone; so a record's class is a part
    of the record, nothing is released, and the ledger needs no entry. (Centroids of private images would need one.)

    Attributes:
        centroids: float64 (k, d).
    """

    centroids: npt.NDArray[np.float64]

    @classmethod
    def of(cls, public: PublicSet, count: int, seed: int) -> Clusters:
        """Run k-means++ and Lloyd's steps over public images, an even choice if there are many.

        Raises:
            RecipeError: there are fewer public images than clusters.
        """
        if len(public.images) < count:
            raise RecipeError(
                f"clusters is {count}, and the public set has {len(public.images)} images: take fewer clusters."
            )
        rows = np.unique(np.linspace(0, len(public.images) - 1, _MOST).astype(np.int64))
        features = np.stack([_features(image) for image in public.images[rows]])
        rng = np.random.default_rng(torch_seed(seed, "clusters"))
        centroids, _ = kmeans2(features, count, minit="++", rng=rng)
        return cls(centroids.astype(np.float64))

    def of_image(self, image: Images) -> int:
        """Return the cluster of one image, uint8 h×w×c; ties go to the first."""
        distances = ((self.centroids - _features(image)) ** 2).sum(axis=1)
        return int(distances.argmin())

    def split(self, images: Images, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Split each label into k classes, int32 (n,): label·k + cluster."""
        clusters = np.array([self.of_image(image) for image in images], dtype=np.int32)
        return (labels * len(self.centroids) + clusters).astype(np.int32)


def _features(image: Images) -> npt.NDArray[np.float64]:
    """Return means over a grid of cells, in [0, 1]."""
    rows, columns = (np.linspace(0, side, min(side, _GRID) + 1).astype(np.int64)[:-1] for side in image.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows, axis=0), columns, axis=1)
    ones = np.ones(image.shape[:2])
    sizes = np.add.reduceat(np.add.reduceat(ones, rows, axis=0), columns, axis=1)
    return (sums / sizes[..., None] / 255).ravel()


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

    info = replace(
        FittedDiffusion.info,
        machine_settings=(*FittedDiffusion.info.machine_settings, "teacher.micro_batch", "teacher.processes"),
    )

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
        if self.public is None and not self.teacher.share:
            raise RecipeError(
                "teacher.share is 0, and public names no images, so the teacher has nothing to learn from: "
                "give it a share, or public images."
            )
        if self.clusters < 1 or (self.clusters > 1 and self.public is None):
            raise RecipeError(
                f"clusters is {self.clusters}: it must be at least 1, and above 1 it needs public images, from which "
                "the centroids are found."
            )
        self._guidance = self.guidance

    def _check(self, terms: FitTerms) -> None:
        self.network.levels(*terms.image_shape[:2])
        self._check_public(terms)
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
        public, clusters = self._public_set(terms)

        @cache
        def private() -> PrivateRecords:
            """CONFIDENTIAL: the records with the network's classes for labels, each a function of its record alone."""
            records = fit.fitting.private()
            return replace(records, labels=clusters.split(records.samples, records.labels)) if clusters else records

        teacher = self._teacher(fit, public, private)
        student = deepcopy(teacher) if self.begin == "teacher" else self._new(terms, self._classes(terms) + 1)
        loss = self._loss(teacher.eval().requires_grad_(False), terms)

        def learn(training: Training, state: FloatArray) -> None:
            if loss.judge is not None and training.step_of(state) < training.settings.steps:
                loss.judge.learn(training.load(state, average=False))

        places = self._places()
        student = fit.dp_sgd(student, loss, places, task="training the student", private=private, between=learn)
        write_model(student, terms.classes, fit.fitting.folder, self.clusters)

    def _public_set(self, terms: FitTerms) -> tuple[PublicSet | None, Clusters | None]:
        """Return the public images, and the clusters by which labels are split.

        If no record teaches the labels, the images are those of the private labels' names, split alike.
        """
        if self.public is None:
            return None, None
        public = self.public.read(terms.image_shape, terms.seed)
        if not self.teacher.share:
            public = public.selected(np.array([[public.names.index(name)] for name in terms.classes]))
        if self.clusters == 1:
            return public, None
        clusters = Clusters.of(public, self.clusters, terms.seed)
        if not self.teacher.share:
            labels, names = clusters.split(public.images, public.labels), map(str, range(self._classes(terms)))
            public = PublicSet(public.images, labels.astype(np.int64), tuple(names))
        return public, clusters

    def _classes(self, terms: FitTerms) -> int:
        """Return how many classes there are, beside the one that stands for none."""
        return len(terms.classes) * self.clusters

    def _teacher(self, fit: Fit, public: PublicSet | None, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        """Train the teacher on public images, then by DP-SGD; one of the two may be left out."""
        from adapters.trained.diffusion_networks import Velocity, pretrained, with_new_classes

        terms, classes, places = fit.terms, self._classes(fit.terms) + 1, self._places(self.teacher)
        model = self._new(terms, classes if public is None else public.classes + 1).to(places[0])
        if public is not None:
            pretraining = self.pretraining or PlainTraining()
            model = pretrained(fit, model, lambda: public, pretraining, none=public.classes)
        if self.teacher.share:
            model = model if public is None else with_new_classes(model, classes, terms.seed)
            loss, task = Velocity(none=classes - 1), "training the teacher"
            fit.dp_sgd(model, loss, places, name=_TEACHER, task=task, private=private)
        return model

    def _start(self, terms: FitTerms) -> tuple[nn.Module, Distillation]:
        model = self._new(terms, self._classes(terms) + 1).to(self._place())
        return model, self._loss(deepcopy(model).eval().requires_grad_(False), terms)

    def _pretrainings(self) -> dict[str, PlainTraining]:
        return {} if self.public is None else {PUBLIC_IMAGES: self.pretraining or PlainTraining()}

    def _first_classes(self, terms: FitTerms) -> int:
        return self._classes(terms) + 1

    def _other_dry_runs(self, terms: FitTerms, plan: Plan) -> list[DryRun]:
        from adapters.trained.diffusion_networks import Velocity
        from adapters.trained.dp_sgd.training import dry_run

        runs = super()._other_dry_runs(terms, plan)
        if self.teacher.share:
            model, loss = self._new(terms, self._classes(terms) + 1), Velocity(self._classes(terms))
            settings, place = plan.settings[_TEACHER], self._places(self.teacher)[0]
            runs.append(dry_run(model, loss, terms.image_shape, settings, place, _TEACHER))
        return runs

    def _loss(self, teacher: nn.Module, terms: FitTerms) -> Distillation:
        """Return the student's loss, with a new discriminator."""
        from adapters.trained.dp_sad_networks import Distillation, Judge

        height, width, channels = terms.image_shape
        shape, classes = (channels, height, width), self._classes(terms)
        judge = None
        if self.adversarial:
            judge = Judge(teacher, shape, classes, self.discrimination, self.sampling.steps, terms.seed)
        return Distillation(teacher, judge, self.imitation, self.adversarial, none=classes)
