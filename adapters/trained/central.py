"""Central images, the first stage of DP-FETA.

They are noisy mean images of each label in random subsets of the records.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy import ndimage

from adapters.trained.fit import (
    Fit,
    FittedMethod,
    label_numbers,
    load_json,
    not_fitted,
    reading,
    rng_of,
    write_json,
)
from adapters.trained.settings import Fraction
from pe.data.arrays import Float64Array, ImageShape, Int64Array, UInt8Array
from pe.data.images import Images
from pe.errors import APIError, RecipeError
from pe.fit.trainer import FitTerms
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.privacy.release import Poisson, Release

Pixels = UInt8Array

# A record adds this to its label's count and a vector of norm ≤ √(1 − 0.2²) to the image sum: norm
# ≤ 1 in all.
COUNTING = 0.2

# A label's noisy count is raised to at least this fraction of its value if all labels had equally
# many records.
_FEWEST = 0.25

_CENTRES = "central.npy"
_SETTINGS = "settings.json"


@plugin
class CentralImages(FittedMethod):
    """Bent copies of noisy mean images of the records: the first stage of `dp_feta`, weak alone.

    Source: Li et al., S&P 2025.

    Random subsets of the privacy units are drawn. For each subset and label, the sum of the images
    and their number are released with noise. A new sample is a label's mean image in a subset, bent
    at random (shifted, turned, stretched); a variation of degree d is its parent, bent d times as
    strongly. `dp_feta` trains a diffusion model on them.

    Args:
        subsets: number of subsets.
        rate: probability, in (0, 1], that a subset takes a privacy unit; with 1, the only subset
            holds all units.
        shrink: side of the squares that are averaged into one pixel each before the noise; fewer
            pixels get less noise.
        centre: the brightness in [0, 1] that is subtracted from each pixel before an image's norm
            is taken.
        clip: largest norm of an image, divided by the root of its number of values; 0.5 with centre
            0.5 cuts no image.
        bend: standard deviation of shifts (as a fraction of the side), turns (radians) and
            stretches.
    """

    info = PluginInfo(hosts=(), by_label=True)
    capabilities = Capabilities(max_chunk=1024)
    subsets: Count = 1
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    shrink: Count = 2
    centre: Annotated[float, Field(ge=0, le=1)] = 0.5
    clip: Annotated[float, Field(gt=0, le=1)] = 0.5
    bend: Fraction = 0.06

    def __post_init__(self) -> None:
        self._centres: Pixels | None = None
        self._classes: tuple[str, ...] = ()

    def _fit(self, fit: Fit) -> None:
        if self.rate == 1 and self.subsets > 1:
            raise RecipeError(
                f"`subsets` is {self.subsets}, but with `rate: 1` all subsets are the same. Set "
                "`subsets: 1`, or lower `rate`."
            )
        sampling = Poisson(self.rate) if self.rate < 1 else None
        release = fit.sum("central_images", sampling=sampling, count=self.subsets)
        fit.begin()
        terms = fit.terms
        length = math.prod(self._small(terms.image_shape)) + 1
        sums = fit.sums(release, self.vector, (self.subsets, len(terms.classes), length))
        np.save(fit.folder / _CENTRES, self._images(sums, release, terms))
        write_json({"classes": terms.classes}, fit.folder / _SETTINGS)

    def vector(self, image: Pixels) -> Float64Array:
        """Return an image's vector, float64 (D + 1,), of L2 norm ≤ 1.

        It holds the D values of the shrunken, centred and cut image, then COUNTING.
        """
        height, width, _ = self._small(image.shape)
        down = height * self.shrink - image.shape[0]
        right = width * self.shrink - image.shape[1]
        padded = np.pad(image, ((0, down), (0, right), (0, 0)), mode="edge")
        squares = padded.reshape(height, self.shrink, width, self.shrink, -1)
        centred = (squares.mean(axis=(1, 3)) / 255.0 - self.centre).reshape(-1)
        values = centred / self._bound(image.shape)
        values *= np.sqrt(1 - COUNTING**2) / max(1.0, float(np.linalg.norm(values)))
        return np.append(values, COUNTING)

    def _images(self, sums: Int64Array, release: Release, terms: FitTerms) -> Pixels:
        """Return the central images, uint8 (subsets, classes, h, w, c), by the noisy sums.

        Post-processing.
        """
        shape = terms.image_shape
        vectors = sums / release.grid
        # Records of one label in one subset, on average, if all labels had equally many.
        size = terms.declared_size * self.rate / len(terms.classes)
        counts = np.maximum(vectors[..., -1].mean(axis=0) / COUNTING, _FEWEST * size)
        means = vectors[..., :-1] / counts[:, None] / np.sqrt(1 - COUNTING**2)
        means = means.reshape(*sums.shape[:2], *self._small(shape))
        wide = ndimage.zoom(
            self.centre + self._bound(shape) * means,
            (1, 1, self.shrink, self.shrink, 1),
            order=1,
            mode="nearest",
            grid_mode=True,
        )
        whole = wide[:, :, : shape[0], : shape[1]]
        return np.asarray((whole * 255).round().clip(0, 255), dtype=np.uint8)

    def _small(self, shape: tuple[int, ...]) -> ImageShape:
        """Return height, width and channels of a shrunken image."""
        height, width, channels = shape
        return -(-height // self.shrink), -(-width // self.shrink), channels

    def _bound(self, shape: tuple[int, ...]) -> float:
        """Return the norm to which a shrunken, centred image is cut."""
        return self.clip * math.sqrt(math.prod(self._small(shape)))

    def load(self, folder: Path) -> None:
        """Answer from the central images in `folder`.

        Raise RecipeError if there are none, or they are damaged.
        """
        with reading(folder, "central images"):
            classes = tuple(load_json(folder / _SETTINGS)["classes"])
            centres = np.load(folder / _CENTRES, allow_pickle=False)
            if centres.dtype != np.uint8 or centres.ndim != 5 or centres.shape[1] != len(classes):
                raise ValueError("another form")
        self._centres = centres
        self._classes = classes

    def random_api(self, request: RandomRequest) -> Answer:
        """Return a bent copy of a central image for each label.

        The seed draws which of the label's images is bent, and how.
        """
        if self._centres is None:
            raise not_fitted()
        rngs = list(map(rng_of, request.seeds))
        numbers = label_numbers(request.labels, self._classes)
        parents = [
            self._centres[rng.integers(len(self._centres)), number]
            for rng, number in zip(rngs, numbers, strict=True)
        ]
        return self._answer(parents, rngs, self.bend)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Bend each parent, `degree` times as strongly as a new sample is bent."""
        if not isinstance(request.samples, Images):
            raise APIError(f"central_images varies images, not {type(request.samples).__name__}.")
        rngs = list(map(rng_of, request.seeds))
        return self._answer(request.samples.pixels, rngs, self.bend * request.degree)

    def _answer(
        self,
        parents: list[Pixels] | Pixels,
        rngs: list[np.random.Generator],
        strength: float,
    ) -> Answer:
        bent = [_bent(parent, rng, strength) for parent, rng in zip(parents, rngs, strict=True)]
        return Answer(Images(np.stack(bent)))


def _bent(image: Pixels, rng: np.random.Generator, strength: float) -> Pixels:
    """Return an image shifted, turned, stretched and sheared by normal draws times `strength`.

    0 changes nothing.
    """
    matrix = np.eye(2) + strength * rng.standard_normal((2, 2))
    middle = (np.array(image.shape[:2]) - 1) / 2
    offset = middle - matrix @ (middle + strength * rng.standard_normal(2) * image.shape[:2])
    bent = [
        ndimage.affine_transform(
            image[..., i].astype(np.float32), matrix, offset, order=1, mode="nearest"
        )
        for i in range(image.shape[2])
    ]
    return np.asarray(np.stack(bent, axis=2).round().clip(0, 255), dtype=np.uint8)
