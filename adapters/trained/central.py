"""Central images, the first stage of DP-FETA: noisy mean images of each label in random subsets of
the records.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from pe.data.arrays import Float64Array, ImageShape, Int64Array, UInt8Array, UInt64Array
from pe.data.images import Images
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.privacy.release import Poisson, Release

Pixels = UInt8Array

COUNTING = 0.2
"""A record adds this to its label's count and a vector of norm ≤ √(1 − 0.2²) to the image sum: norm
≤ 1 in all."""

_FEWEST = 0.25
"""A label's noisy count is raised to at least this fraction of its value if all labels had equally
many records."""

_CENTRES = "central.npy"
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Reading:
    """Public rule by which an image becomes a vector of L2 norm ≤ 1."""

    shrink: int  # side, in pixels, of the squares that are averaged into one pixel each
    centre: float  # the brightness in [0, 1] that is subtracted from each value
    # the L2 norm to which a shrunken, centred image is cut, divided by the root of its number of
    # values
    clip: float

    def small(self, shape: ImageShape) -> ImageShape:
        """Return height, width and channels of a shrunken image."""
        height, width, channels = shape
        return -(-height // self.shrink), -(-width // self.shrink), channels

    def __call__(self, image: Pixels) -> Float64Array:
        """Return float64 (D + 1,), of L2 norm ≤ 1: the shrunken, centred and cut image's D values,
        then COUNTING.
        """
        height, width, _ = self.small(image.shape)
        wide = (
            (0, height * self.shrink - image.shape[0]),
            (0, width * self.shrink - image.shape[1]),
            (0, 0),
        )
        padded = np.pad(image, wide, mode="edge").reshape(
            height, self.shrink, width, self.shrink, -1
        )
        values = (padded.mean(axis=(1, 3)) / 255.0 - self.centre).reshape(-1) / (
            self.clip * self._root(image.shape)
        )
        values *= np.sqrt(1 - COUNTING**2) / max(1.0, float(np.linalg.norm(values)))
        return np.append(values, COUNTING)

    def images(self, sums: Int64Array, release: Release, size: float, shape: ImageShape) -> Pixels:
        """Return the central images, uint8 (subsets, classes, h, w, c), computed from noisy sums.

        Post-processing.

        Args:
            sums: int64 (subsets, classes, D + 1), in grid steps.
            release: the release that drew the sums.
            size: records of one label in one subset, on average, if all labels had equally many.
            shape: height, width and channels of an image before it is shrunk.
        """
        vectors = sums / release.grid
        counts = np.maximum(vectors[..., -1].mean(axis=0) / COUNTING, _FEWEST * size)
        means = vectors[..., :-1] / counts[:, None] / np.sqrt(1 - COUNTING**2)
        pixels = self.centre + self.clip * self._root(shape) * means.reshape(
            *sums.shape[:2], *self.small(shape)
        )
        wide = ndimage.zoom(
            pixels, (1, 1, self.shrink, self.shrink, 1), order=1, mode="nearest", grid_mode=True
        )
        whole = wide[:, :, : shape[0], : shape[1]]
        return np.asarray((whole * 255).round().clip(0, 255), dtype=np.uint8)

    def _root(self, shape: tuple[int, ...]) -> float:
        return float(np.sqrt(np.prod(self.small((shape[0], shape[1], shape[2])))))


@plugin
class CentralImages(FittedMethod):
    """Blurred means of the records: the first stage of `dp_feta` (Li et al., S&P 2025), weak alone.

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
                f"subsets is {self.subsets}: it must be 1 where rate is 1, because all subsets "
                "would be the same."
            )
        sampling = Poisson(self.rate) if self.rate < 1 else None
        release = fit.sum("central_images", sampling=sampling, count=self.subsets)
        fit.begin()
        terms = fit.terms
        rule = Reading(self.shrink, self.centre, self.clip)
        length = int(np.prod(rule.small(terms.image_shape))) + 1
        sums = fit.sums(release, rule, (self.subsets, len(terms.classes), length))
        size = terms.declared_size * self.rate / len(terms.classes)
        np.save(fit.folder / _CENTRES, rule.images(sums, release, size, terms.image_shape))
        write_json({"classes": terms.classes}, fit.folder / _SETTINGS)

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
        """Return, for each seed and label, a bent copy of one of the label's central images, drawn
        by the seed.
        """
        if self._centres is None:
            raise not_fitted("central_images")
        rngs = _generators(request.seeds)
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
        return self._answer(
            request.samples.pixels, _generators(request.seeds), self.bend * request.degree
        )

    def _answer(
        self, parents: list[Pixels] | Pixels, rngs: list[np.random.Generator], strength: float
    ) -> Answer:
        bent = [_bent(parent, rng, strength) for parent, rng in zip(parents, rngs, strict=True)]
        return Answer(Images(np.stack(bent)))


def _generators(seeds: UInt64Array) -> list[np.random.Generator]:
    return [rng_of(int(seed)) for seed in seeds]


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
