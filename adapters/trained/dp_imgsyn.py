"""DP-ImgSyn: public images, changed until a classifier finds the private moments in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from adapters.trained.fit import (
    Fit,
    FittedMethod,
    label_numbers,
    load_json,
    not_fitted,
    reading,
    write_json,
)
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.settings import Alignment, FineTuning, Fraction, Rate, Share
from adapters.trained.trainings import ByDPSGD, declare_training
from pe.data.arrays import Float64Array, Int64Array, UInt8Array
from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions, slices
from pe.errors import APIError, PrivacyError, RecipeError
from pe.fit.trainer import FitTerms
from pe.plugins.devices import raising_for_memory, require_torch
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.privacy.release import Release

if TYPE_CHECKING:
    from adapters.trained.dp_imgsyn_networks import AlignedModel, Reader

_PUBLIC = "public"
_STATE = "settings.json"


class TeacherTraining(FineTuning):
    """DP-SGD of the classifier.

    Attributes:
        draws: number of shifted copies of each record; the record's gradient is averaged over them,
            then clipped.
        ema: decay of the moving average of the weights, which the teacher gets; with 0 it gets the
            last weights.
        shift: most pixels by which a copy is moved, along each side.
    """

    steps: Count = 150
    learning_rate: Rate = 4e-3
    ema: Fraction = 0.95
    draws: Count = 2
    micro_batch: Count = 64
    shift: Annotated[int, Field(ge=0, le=8)] = 1


@plugin
class DPImgSyn(ReadsPublic, ByDPSGD, FittedMethod):
    """For training sets that must not look private: public images, changed for a classifier.

    Roy et al. 2024, with a guarantee, which the published code lacks.

    A classifier, the teacher, is trained on the private images by DP-SGD. The moments of the
    channels that enter its GroupNorm layers are released once, as a noisy sum. The pixels of public
    images are then changed until the teacher sees in them the moments of the private images, and is
    sure of the label that they are to have. Such images need not look like private ones, nor like
    their label: train with the teacher's soft labels, not with `labels`. RANDOM_API aligns a public
    image drawn by the sample's seed, of whatever public label. With probability d², VARIATION_API
    of degree d begins anew with another public image; otherwise it adds low-pass noise in
    proportion to d to the parent, and runs the last ⌈d·k⌉ of the k steps of alignment: degree 0
    changes nothing, 1 always begins anew.

    Conditions: `public` (int64: the public image that a sample began as), `soft_label` (float32,
    n×classes: the teacher's probabilities), with which to train a classifier.

    Args:
        public: the images to begin with; their labels are not used. They are read again when the
            model is loaded: `path` may have changed by then, the images may not.
        teacher: `small`, or `package.module:function` for a function of the numbers of channels and
            of classes that returns a classifier. The classifier must keep nothing between calls,
            and normalise by GroupNorm.
        training: of the teacher, on the private records.
        moments_share: the share of the fit's ε that the release of the moments costs, taken alone.
        alignment: of public images.
        batch_size: images aligned at once.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("device", "batch_size", "training.micro_batch", "public.path"),
        code_settings=("teacher",),
        by_label=True,
    )
    capabilities = Capabilities(1024, 2)  # of two requests at once the second waits for the first

    public: Public
    teacher: str = "small"
    training: TeacherTraining = TeacherTraining()
    moments_share: Share = 0.1
    alignment: Alignment = Alignment()
    batch_size: Count = 256

    def __post_init__(self) -> None:
        self._model: Any = None
        self._lock = Lock()

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        steps = int(np.ceil(degree * self.alignment.steps))
        return (
            f"another public image with probability {degree**2:.2g}, else {steps} steps from a "
            "noisy parent"
        )

    def _fit(self, fit: Fit) -> None:
        terms = fit.terms
        self._check(terms)
        sum_of_moments = self._declare_moments(fit)
        training = declare_training(fit, self.training)
        fit.begin()
        from adapters.trained.dp_imgsyn_networks import (
            Aim,
            CrossEntropy,
            Reader,
            align_companions,
            clip,
            factors_of,
            make_teacher,
            write_moments,
        )

        public = self._enough_images(terms)
        device = self.places()[0]
        teacher = make_teacher(self.teacher, terms.image_shape[2], len(terms.classes), terms.seed)
        self.train_by_dp_sgd(fit, teacher, CrossEntropy(self.training.shift), training)
        reader = Reader(teacher, device)
        with raising_for_memory(_too_many("batch_size")):
            means, squares = self._moments(reader, public.images)
            factors = factors_of(means, squares, reader.widths)

        def vector(image: UInt8Array) -> Float64Array:
            # A record is seen by itself; over ALL layers together its moments are cut to an L2 norm
            # of 1.
            return clip(np.hstack(reader.moments(image[None]))[0] * factors)

        noisy = fit.sums(sum_of_moments, vector, (len(factors),))
        aim = Aim.of_sum(reader, noisy, factors, sum_of_moments.grid, terms.declared_size)
        with raising_for_memory(_too_many("alignment.companions")):
            way = align_companions(public.images, len(terms.classes), aim, self.alignment)
        write_moments(aim, way, fit.folder)
        state = {
            "classes": terms.classes,
            "image_shape": terms.image_shape,
            "seed": terms.seed,
            "public_sha256": self._digest(public.images),
        }
        write_json(state, fit.folder / _STATE)

    def _declare_moments(self, fit: Fit) -> Release:
        """Declare the sum of moments. Raise PrivacyError if noise would drown it."""
        release = fit.sum("moments", self.moments_share)
        noise = release.sensitivity * release.noise_multiplier
        records = fit.terms.declared_size
        if noise > records:
            raise PrivacyError(
                f"`moments_share` is {self.moments_share:g}, which asks for noise of {noise:,.0f} "
                f"on a sum to which {records} records add at most 1 each. Take a larger share, or "
                "raise `privacy.epsilon`."
            )
        return release

    def _enough_images(self, terms: FitTerms) -> PublicSet:
        """Read the public images. Raise RecipeError if they are fewer than the companions."""
        public = self.public.read(terms.image_shape, terms.seed)
        companions = self.alignment.companions
        if len(public.images) < companions:
            raise RecipeError(
                f"`alignment.companions` is {companions}, but the public set has "
                f"{len(public.images)} images. Take fewer companions, or more public images."
            )
        return public

    def _moments(self, reader: Reader, images: UInt8Array) -> Iterator[Float64Array]:
        """Return means and mean squares of public images, float64 (m, d) each."""
        parts = [reader.moments(images[part]) for part in slices(len(images), self.batch_size)]
        return map(np.concatenate, zip(*parts, strict=True))

    def _check(self, terms: FitTerms) -> None:
        """Raise an error if these terms, or this teacher, cannot be served."""
        if len(terms.classes) < 2:
            raise RecipeError(
                "`dp_imgsyn` needs two labels or more, which its teacher learns to tell apart. Set "
                "`private.classes`, or use another generator."
            )
        self.public.check(terms.image_shape)
        if self.teacher != "small":
            require_torch("trained", "An own teacher")
            from adapters.trained.dp_imgsyn_networks import CrossEntropy, check_own

            check_own(
                self.teacher,
                terms.image_shape,
                len(terms.classes),
                CrossEntropy(self.training.shift),
            )

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder` and the recipe's public images.

        Raise RecipeError if these changed.
        """
        from adapters.trained.dp_imgsyn_networks import AlignedModel, make_teacher

        with reading(folder, "fitted DP-ImgSyn"):
            state = load_json(folder / _STATE)
            classes = tuple(state["classes"])
            height, width, channels = state["image_shape"]
            seed = int(state["seed"])
            digest = str(state["public_sha256"])
        teacher = make_teacher(self.teacher, channels, len(classes), seed)
        public = self.public.read((height, width, channels), seed)
        if self._digest(public.images) != digest:
            raise RecipeError(
                f"`api.public`: the images of {self.public.place} are not those with which "
                f"{folder} was fitted. Name those."
            )
        self._model = AlignedModel.read(
            folder, teacher, classes, public, self.alignment, self.places()[0]
        )

    def record_losses(
        self, folder: Path, samples: UInt8Array, labels: Sequence[str]
    ) -> Float64Array:
        """Return the teacher's cross-entropy on each image, float64 (n,)."""
        self.load(folder)
        model = self._fitted_model()
        return model.losses(samples, label_numbers(labels, model.labels))

    def random_api(self, request: RandomRequest) -> Answer:
        """Return public images, each drawn by a seed and aligned to its label."""
        return self._answer(request, [None] * len(request), np.full(len(request), -1), 1.0)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Add noise to each parent and align it again, or align another public image instead."""
        if not isinstance(request.samples, Images):
            raise APIError("DP-ImgSyn varies images only.")
        places = request.conditions.get(_PUBLIC, np.full(len(request), -1))
        return self._answer(request, list(request.samples.array), places, request.degree)

    def _answer(
        self,
        request: RandomRequest | VariationRequest,
        parents: Sequence[UInt8Array | None],
        places: Int64Array,
        degree: float,
    ) -> Answer:
        """Return a sample for each item, which starts from its parent, if it has one.

        See `AlignedModel.start`.
        """
        model = self._fitted_model()
        labels = label_numbers(request.labels, model.labels)
        starts = [
            model.start(parent, place, degree, seed)
            for parent, place, seed in zip(parents, places, request.seeds, strict=True)
        ]
        images, begin, places = (np.stack(part) for part in zip(*starts, strict=True))
        # The teacher's hooks serve one thread at a time: see `Reader`.
        refusal = APIError(
            "Memory does not suffice for so many images at once. Lower `batch_size`."
        )
        with raising_for_memory(refusal), self._lock:
            batches = [
                model.align_batch(images[part], labels[part], begin[part])
                for part in slices(len(images), self.batch_size)
            ]
        pixels, soft = (np.concatenate(part) for part in zip(*batches, strict=True))
        return Answer(
            Images(pixels),
            Conditions({_PUBLIC: places.astype(np.int64), SOFT_LABEL: soft}),
        )

    def _digest(self, images: UInt8Array) -> str:
        """Return a SHA-256 of the images, or of their shape if they are drawn.

        Fonts differ between machines, so drawn images differ, too.
        """
        content = np.ascontiguousarray(images).tobytes() if self.public.paths else b"made"
        return hashlib.sha256(repr(images.shape).encode() + content).hexdigest()

    def _fitted_model(self) -> AlignedModel:
        if self._model is None:
            raise not_fitted()
        model: AlignedModel = self._model
        return model


def _too_many(setting: str) -> RecipeError:
    return RecipeError(f"Memory does not suffice for so many images at once. Lower `{setting}`.")
