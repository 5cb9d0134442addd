"""Central images as a generator: noised means of the records, bent a little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from adapters.trained.central.means import Reading, noisy_sums
from adapters.trained.labels import check_labels
from adapters.trained.releases import sum_release
from pe.data.images import Images
from pe.errors import APIError, RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.privacy.release import Poisson, Relation, Release

Pixels = npt.NDArray[np.uint8]

_CENTRES, _SETTINGS = "central.npy", "settings.json"


@dataclass(kw_only=True, eq=False, repr=False)
class CentralImages:
    """RANDOM_API and VARIATION_API by central images, the first stage of DP-FETA (Li et al., S&P 2025).

    Subsets of the records are drawn by coins; for each, the sum of every label's images is released with noise, and
    how many they are. A new sample is the mean image of its label in some subset, bent; a variation of degree d is
    its parent bent d times as much. To begin a diffusion model with, see dp_feta.

    Args:
        subsets: how many are drawn.
        rate: probability of a record to be in one, in (0, 1]; 1: all are, in one subset.
        shrink: pixels of a side that are averaged into one before the noise; the fewer values, the less noise on each.
        centre: the brightness in [0, 1] from which an image's norm counts.
        clip: the largest norm of an image, over the root of the number of its values; 0.5 from centre 0.5 cuts nothing.
        bend: standard deviation of shifts (over the side), turns (radians) and stretches.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(hosts=(), by_label=True)

    subsets: int = 1
    rate: float = 1.0
    shrink: int = 2
    centre: float = 0.5
    clip: float = 0.5
    bend: float = 0.06

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise RecipeError(f"rate is {self.rate}: it must lie above 0, and be 1 at most.")
        if self.subsets < 1 or (self.rate == 1 and self.subsets > 1):
            wanted = "at least 1" if self.subsets < 1 else "1 where rate is 1, because all subsets would be the same"
            raise RecipeError(f"subsets is {self.subsets}: it must be {wanted}.")
        if self.shrink < 1:
            raise RecipeError(f"shrink is {self.shrink}: it must be at least 1.")
        if not 0 <= self.centre <= 1:
            raise RecipeError(f"centre is {self.centre}: it must lie between 0 and 1.")
        if not 0 < self.clip <= 1:
            raise RecipeError(f"clip is {self.clip}: it must lie above 0, and be 1 at most.")
        if not 0 <= self.bend < 1:
            raise RecipeError(f"bend is {self.bend}: it must be at least 0, and less than 1.")
        self._centres: Pixels | None = None
        self._labels: dict[str, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request."""
        return Capabilities(max_chunk=1024)

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """The one release: the sums of all subsets.

        Raises:
            PrivacyError: no noise meets the budget.
        """
        sensitivity = 2.0 if terms.relation is Relation.REPLACE_ONE else 1.0
        sampling = Poisson(self.rate) if self.rate < 1 else None
        return [
            sum_release(
                f"{FIT}central_images",
                sensitivity,
                terms.budget,
                terms.relation,
                terms.unit,
                fractional=True,
                sampling=sampling,
                count=self.subsets,
            )
        ]

    def fit(self, fitting: Fitting) -> None:
        """Release the sums, and make the central images of them.

        Guarantee: the release's; all that follows is post-processing.
        """
        terms = fitting.terms
        (release,) = self.planned(terms)
        reading = Reading(self.shrink, self.centre, self.clip)
        sums = fitting.ledger.release(
            release, lambda noise: noisy_sums(fitting.private(), len(terms.classes), reading, release, noise)
        )
        expected = terms.declared_size * self.rate / len(terms.classes)
        np.save(fitting.folder / _CENTRES, reading.images(sums, release, expected, terms.image_shape))
        (fitting.folder / _SETTINGS).write_text(json.dumps({"classes": terms.classes}) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Answer from the central images in `folder`.

        Raises:
            RecipeError: there are none, or they are damaged.
        """
        try:
            classes = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))["classes"]
            centres = np.load(folder / _CENTRES, allow_pickle=False)
            if centres.dtype != np.uint8 or centres.ndim != 5 or centres.shape[1] != len(classes):
                raise ValueError("another form")
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise RecipeError(f"{folder} holds no central images: fit them in a new run.") from error
        self._labels = {name: i for i, name in enumerate(classes)}
        self._centres = centres

    def random_api(self, request: RandomRequest) -> Answer:
        """Central images of each label, bent.

        Raises:
            RecipeError: they were fitted for other labels.
            APIError: there are none yet.
        """
        if self._centres is None:
            raise APIError("central_images answers once it is fitted: `pe run` does that first.")
        check_labels(request.labels, self._labels)
        draws = [np.random.Generator(np.random.Philox(key=int(seed))) for seed in request.seeds]
        parents = [
            self._centres[rng.integers(len(self._centres)), self._labels[label]]
            for rng, label in zip(draws, request.labels, strict=True)
        ]
        return Answer(Images(np.stack([_bent(*one, self.bend) for one in zip(parents, draws, strict=True)])))

    def variation_api(self, request: VariationRequest) -> Answer:
        """The parents, bent by the degree.

        Raises:
            APIError: they are no images.
        """
        if not isinstance(request.samples, Images):
            raise APIError(f"central_images varies images, not {type(request.samples).__name__}.")
        draws = [np.random.Generator(np.random.Philox(key=int(seed))) for seed in request.seeds]
        strength = self.bend * request.degree
        pairs = zip(request.samples.pixels, draws, strict=True)
        return Answer(Images(np.stack([_bent(*pair, strength) for pair in pairs])))


def _bent(image: Pixels, rng: np.random.Generator, strength: float) -> Pixels:
    """The image, shifted, turned, stretched and sheared by normal draws; unchanged where `strength` is 0."""
    matrix = np.eye(2) + strength * rng.standard_normal((2, 2))
    middle = (np.array(image.shape[:2]) - 1) / 2
    offset = middle - matrix @ (middle + strength * rng.standard_normal(2) * image.shape[:2])
    bent = [
        ndimage.affine_transform(image[..., i].astype(np.float32), matrix, offset, order=1, mode="nearest")
        for i in range(image.shape[2])
    ]
    return np.asarray(np.stack(bent, axis=2).round().clip(0, 255), dtype=np.uint8)
