"""DP-ImgSyn as a generator: fitted once, it aligns public images by RANDOM_API, and realigns them by VARIATION_API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adapters.diffusion.device import check_arithmetic, choose_devices
from adapters.trained.dp_imgsyn_moments import moments_release
from adapters.trained.public import Public, ReadsPublic
from adapters.trained.releases import TRAINING, blocks_of, settled, training_device, training_devices
from adapters.trained.settings import TEACHERS, Alignment, TeacherTraining
from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions
from pe.errors import APIError, PrivacyError, RecipeError
from pe.plugins.devices import memory_refused, require_torch
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    import torch
    from torch import nn

    from adapters.trained.dp_imgsyn_networks import CrossEntropy, Model
    from pe.fit.trainer import DryRun, FitTerms, Fitting
    from pe.privacy.release import Release


_PUBLIC = "public"
_STATE = "settings.json"


@dataclass(kw_only=True, eq=False, repr=False)
class DPImgSyn(ReadsPublic):
    """RANDOM_API and VARIATION_API by DP-ImgSyn (Roy et al. 2024), with a guarantee that holds.

    A classifier, the teacher, is trained on the private images by DP-SGD. The moments of the channels that enter its
    GroupNorm layers leave once, as a noisy sum. Public images are then moved, by their pixels, until the teacher sees
    in them what it saw in the private ones, and is sure of the label that they are to have. They need not look like
    private images, nor like their label: what they carry is the teacher's view, and its soft labels, not `labels`, are
    what to train with. RANDOM_API aligns a public image drawn by the sample's seed, whatever label that has itself.
    VARIATION_API of degree d begins anew with another public image with probability d²; else it adds low-pass noise of
    d to the parent and runs the last ⌈d·k⌉ of the k steps: 0 changes nothing, 1 forgets all.

    Conditions: `public` (int64: the public image that a sample began as), `soft_label` (float32, n×classes: the
    teacher's probabilities), with which a student is trained.

    Args:
        public: the images to begin with; their labels are not looked at. They are read again whenever the model
            answers, from a `path` that may change if the images there do not.
        teacher: `small`, `resnet18`, or `package.module:function` that makes one from the numbers of channels and of
            classes. It must keep nothing from one call to the next, and normalise by GroupNorm.
        training: of the teacher, on the private records.
        moments_share: of the fit's ε, which the release of the moments alone takes.
        alignment: of public images.
        device: auto, cpu, cuda, cuda:1, or a list of cards for `training.processes`.
        batch_size: images aligned at once.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("device", "batch_size", "training.micro_batch", "training.processes", "public.path"),
        code_settings=("teacher",),
        by_label=True,
    )

    public: Public
    teacher: str = "small"
    training: TeacherTraining = TeacherTraining()
    moments_share: float = 0.1
    alignment: Alignment = Alignment()
    device: str | list[str] = "auto"
    batch_size: int = 256

    def __post_init__(self) -> None:
        check_arithmetic(self.device, "fp32")
        if not 0 < self.moments_share < 1:
            raise RecipeError(f"moments_share is {self.moments_share}: it must lie between 0 and 1.")
        if self.batch_size < 1:
            raise RecipeError(f"batch_size is {self.batch_size}: it must be at least 1.")
        self._model: Model | None = None
        self._aligning = Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request; a second request waits while one is made."""
        return Capabilities(1024, 2, "nothing", "exact")

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        steps = int(np.ceil(degree * self.alignment.steps))
        return f"another public image with probability {degree**2:.2g}, else {steps} steps from a noisy parent"

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """The moments' release, then each block of the teacher's training, calibrated together to the budget.

        Raises:
            RecipeError: a setting is out of range, there are no two labels, or the public set does not serve.
            PluginError: a teacher of one's own that does not serve.
            PrivacyError: the budget is too small, or the unit is larger than a record.
        """
        self._check(terms)
        others = self._others(terms)
        noise = others[0].sensitivity * others[0].noise_multiplier
        if noise > terms.declared_size:
            raise PrivacyError(
                f"moments_share is {self.moments_share:g}, which asks for noise of {noise:,.0f} on a sum to which "
                f"{terms.declared_size} records add at most 1 each: take a larger share, or raise epsilon."
            )
        return [*others, *blocks_of(settled(self.training, terms, others), terms)]

    def fit(self, fitting: Fitting) -> None:
        """Train the teacher, release the moments, and align the companions.

        Guarantee: the planned releases'; all else is post-processing of them, or public. The private records are read
        only while one of them is drawn.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_imgsyn_networks import fit_model

        terms = fitting.terms
        public, (release,) = self.public.read(terms.image_shape, terms.seed), self._others(terms)
        model = fit_model(
            fitting,
            teacher=self._new_teacher(terms.image_shape, len(terms.classes), terms.seed),
            loss=self._loss(),
            training=settled(self.training, terms, (release,)),
            moments=release,
            public=public,
            alignment=self.alignment,
            batch_size=self.batch_size,
            devices=training_devices(self.device, self.training),
        )
        model.write(fitting.folder)
        state = {"classes": terms.classes, "image_shape": terms.image_shape, "seed": terms.seed}
        state["public_sha256"] = self._digest(public.images)
        (fitting.folder / _STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of the teacher's training, on random images.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.forecast import dry_run

        teacher = self._new_teacher(terms.image_shape, len(terms.classes), terms.seed)
        settings = settled(self.training, terms, self._others(terms))
        device = training_devices(self.device, self.training)[0]
        return [dry_run(teacher, self._loss(), terms.image_shape, settings, device, TRAINING)]

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`; the public images are read again from where the recipe says.

        Raises:
            RecipeError: there is none, it is damaged, or the public images are gone, or others.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_imgsyn_networks import Model

        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            classes, (height, width, channels) = tuple(state["classes"]), state["image_shape"]
            seed, digest = int(state["seed"]), str(state["public_sha256"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(f"{folder} holds no fitted DP-ImgSyn: fit it in a new run.") from error
        teacher = self._new_teacher((height, width, channels), len(classes), seed)
        public = self.public.read((height, width, channels), seed)
        if self._digest(public.images) != digest:
            raise RecipeError(
                f"api.public: the images of {self.public.place} are not those with which {folder} was fitted: name "
                "those."
            )
        self._model = Model.read(folder, teacher, classes, public, self.alignment, self._place())

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """The teacher's cross-entropy on each image, float64 (n,); raises as `load` does."""
        self.load(folder)
        return self._fitted().losses(samples, labels)

    def random_api(self, request: RandomRequest) -> Answer:
        """Public images, drawn by the seeds and aligned.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or memory does not suffice.
        """
        model = self._fitted()
        labels = model.numbers(request.labels)
        starts = [model.anew(int(seed)) for seed in request.seeds]
        images = np.stack([image for image, _ in starts])
        return self._answer(images, labels, np.zeros(len(labels), dtype=np.int64), np.array([i for _, i in starts]))

    def variation_api(self, request: VariationRequest) -> Answer:
        """The parents, noised and aligned again, or other public images in their place.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, the parents are no images, or memory does not suffice.
        """
        model = self._fitted()
        if not isinstance(request.samples, Images):
            raise APIError("DP-ImgSyn varies images, and the parents are none.")
        labels = model.numbers(request.labels)
        known = request.conditions.get(_PUBLIC, np.full(len(labels), -1, dtype=np.int64))
        moved = [
            model.moved(image, int(place), request.degree, int(seed))
            for image, place, seed in zip(request.samples.array, known, request.seeds, strict=True)
        ]
        images, begin, places = (np.stack(part) for part in zip(*moved, strict=True))
        return self._answer(images, labels, begin, places)

    def _answer(
        self,
        images: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        begin: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> Answer:
        model, parts = self._fitted(), range(0, len(images), self.batch_size)
        try:
            with self._aligning:
                aligned = [
                    model.aligned(images[part], labels[part], begin[part])
                    for part in (slice(start, start + self.batch_size) for start in parts)
                ]
        except (RuntimeError, MemoryError) as error:
            if memory_refused(error):
                raise APIError(f"Aligning {self.batch_size} images at once needs more memory: take less.") from error
            raise
        pixels, soft = (np.concatenate(part) for part in zip(*aligned, strict=True))
        return Answer(Images(pixels), Conditions({_PUBLIC: places.astype(np.int64), SOFT_LABEL: soft}))

    def _check(self, terms: FitTerms) -> None:
        if len(terms.classes) < 2:
            raise RecipeError(
                "api.kind is dp_imgsyn, whose teacher tells labels apart, and private.classes has fewer than two: "
                "give labels, or take an adapter that needs none."
            )
        self.public.check(terms.image_shape)
        wanted, public = self.alignment.companions, self.public.number()
        if public < wanted:
            raise RecipeError(
                f"alignment.companions is {wanted}, and the public set has {public} images: take fewer companions, or "
                "more public images."
            )
        if self.teacher not in TEACHERS:  # what it lacks is told before anything is charged
            require_torch("trained", "Fitting a generator")
            from adapters.trained.dp_imgsyn_networks import check_own

            check_own(self.teacher, terms.image_shape, len(terms.classes), self._loss())

    def _digest(self, images: npt.NDArray[np.uint8]) -> str:
        """The SHA-256 (hexadecimal) of images that were read; of made ones, which other fonts change, their number."""
        told = np.ascontiguousarray(images).tobytes() if self.public.paths else b"made"
        return hashlib.sha256(repr(images.shape).encode() + told).hexdigest()

    def _new_teacher(self, shape: tuple[int, int, int], classes: int, seed: int) -> nn.Module:
        from adapters.trained.dp_imgsyn_networks import make_teacher

        return make_teacher(self.teacher, shape[2], min(shape[:2]), classes, seed)

    def _loss(self) -> CrossEntropy:
        from adapters.trained.dp_imgsyn_networks import CrossEntropy

        return CrossEntropy(self.training.shift)

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        budget = Budget(self.moments_share * terms.budget.epsilon, terms.budget.delta)
        return (moments_release(budget, terms.relation, terms.unit),)

    def _place(self) -> torch.device:
        return training_device(self.device)

    def _fitted(self) -> Model:
        if self._model is None:
            raise APIError("dp_imgsyn answers once it is fitted: `pe run` does that first.")
        return self._model
