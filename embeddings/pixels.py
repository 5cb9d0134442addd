"""Pixels as the embedding, for images that show similar things in the same places.

There is no model, and nothing is learned.

Each image is shrunk and blurred by two matrices, one from each side, in a product for that image
alone: so its vector is the same to the last bit whichever images are beside it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pe.data.arrays import Float32Array, Float64Array
from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import RecipeError
from pe.plugins.embed import expect
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

DIRECTIONS = 8  # of gradients, over the full circle
PYRAMID = (
    (1, 1.0),
    (2, 1.5),
    (4, 2.0),
)  # for each level: every how many pixels it is sampled, and its weight

LEAST = 1e-8
"""Smaller weights of a blur are 0. They would make denormal numbers (below 1.2e-38), in the weights
themselves or in products of two vectors' entries, which some processors compute many times more
slowly."""
_FLAT = np.float32(1e-10)  # the cube of a smaller gradient would be denormal


@plugin
class Pixels:
    """For small images with the same thing in the same place: digits, aligned scans.

    Images → blurred pixels, a pyramid of them, or their gradients' directions.

    Attributes:
        features: `pixels`, blurred pixels; `pyramid`, blurred pixels at three scales (blur ×1, ×2,
            ×4, the coarse ones weighted up); `gradients`, the strength of the gradients in each of
            8 directions, pooled over cells × cells places (as HOG does: strokes and edges count,
            brightness does not).
        size: side, in pixels, to which images are shrunk or enlarged first; proportions are
            ignored.
        blur: standard deviation of the Gaussian blur, in pixels of the shrunk image.
        cells: places per side at which gradients are pooled; for `gradients` only.
        normalise: `l2` scales each vector to length 1 (a black image's stays 0); `none` keeps it.
        colour: keep the channels apart; otherwise they are averaged.
        batch_size: images per call.
    """

    info = PluginInfo(hosts=())

    features: Literal["pixels", "pyramid", "gradients"] = "pixels"
    size: Annotated[int, Field(ge=4)] = 28
    blur: float = 1.0
    cells: Count = 7
    normalise: Literal["none", "l2"] = "none"
    colour: bool = True
    batch_size: Count = 256

    def __post_init__(self) -> None:
        if not 0 <= self.blur < self.size:
            raise RecipeError(
                f"blur is {self.blur}: it must lie from 0 to below the size, {self.size}."
            )

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d, finite: each row depends on its own image alone, to the last bit.

        d is size²·c for `pixels`, about 1.3·size²·c for `pyramid`, and 8·cells²·c for `gradients`,
        where c is the number of channels that are kept apart.

        Raises:
            ContractError: the samples are not images.
        """
        images = np.moveaxis(expect(samples, Images, "pixels").pixels, 3, 1).astype(
            np.float32, order="C"
        )
        images /= np.float32(255)
        if not self.colour:
            images = images.mean(axis=1, keepdims=True, dtype=np.float32)
        parts = [
            part.reshape(len(images), int(np.prod(part.shape[1:]))) for part in self._parts(images)
        ]
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if self.normalise == "l2":
            lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def _parts(self, images: Float32Array) -> list[Float32Array]:
        """Return the features, n×…, of images n×c×h×w in [0, 1]."""
        levels = PYRAMID if self.features == "pyramid" else ((1, 1.0),)
        parts = []
        for step, weight in levels:
            rows, columns = (
                _reduction(self.size, length, self.blur * step) for length in images.shape[2:]
            )
            parts.append(
                np.float32(weight)
                * _both_sides(rows[step // 2 :: step], images, columns[step // 2 :: step])
            )
        return [self._gradients(parts[0])] if self.features == "gradients" else parts

    def _gradients(self, smooth: Float32Array) -> Float32Array:
        """Return the pooled strength of the gradients in each direction, square-rooted.

        The shape is n×c×DIRECTIONS×cells×cells.
        """
        right = np.zeros_like(smooth)
        down = np.zeros_like(smooth)
        right[..., 1:-1] = smooth[..., 2:] - smooth[..., :-2]
        down[..., 1:-1, :] = smooth[..., 2:, :] - smooth[..., :-2, :]
        strength = right * right + down * down + np.float32(1e-12)
        pool = _resampling(self.cells, self.size).astype(np.float32)
        cells = []
        for direction in range(DIRECTIONS):
            angle = 2 * np.pi * direction / DIRECTIONS
            along: Float32Array = np.maximum(
                right * np.float32(np.cos(angle)) + down * np.float32(np.sin(angle)), np.float32(0)
            )
            along *= along > _FLAT
            # The cosine cubed shares a gradient between its neighbouring directions.
            share: Float32Array = (along * along * along / strength).astype(np.float32, copy=False)
            cells.append(_both_sides(pool, share, pool))
        return np.sqrt(np.maximum(np.stack(cells, axis=2), 0))


def _both_sides(left: Float32Array, images: Float32Array, right: Float32Array) -> Float32Array:
    """Return left · image · rightᵀ, computed separately for each image and channel."""
    half: Float32Array = np.matmul(images, np.ascontiguousarray(right.T))
    product: Float32Array = np.matmul(left, half)
    return product


@lru_cache
def _reduction(size: int, length: int, blur: float) -> Float32Array:
    """Return size×length: the matrix that resamples a line of pixels and blurs it.

    Weights below LEAST are 0.
    """
    weights = _gaussian(size, blur) @ _resampling(size, length)
    return np.where(weights < LEAST, 0, weights).astype(np.float32)


def _resampling(size: int, length: int) -> Float64Array:
    """Return size×length: linear interpolation, widened to cover all pixels when shrinking.

    Rows sum to 1.
    """
    if size == length:
        return np.eye(size)
    scale = length / size
    centres = (np.arange(size) + 0.5) * scale - 0.5
    weights = np.maximum(
        1 - np.abs(np.arange(length)[None, :] - centres[:, None]) / max(scale, 1.0), 0
    )
    rows: Float64Array = weights / weights.sum(axis=1, keepdims=True)
    return rows


def _gaussian(size: int, deviation: float) -> Float64Array:
    """Return the size×size matrix that blurs a line of pixels. Beyond it lies black."""
    if deviation == 0:
        return np.eye(size)
    reach = np.arange(-size, size + 1)
    distance = np.arange(size)[None, :] - np.arange(size)[:, None]
    total, kernel = (
        np.exp(-np.minimum((each / deviation) ** 2 / 2, 100)) for each in (reach, distance)
    )
    weights: Float64Array = kernel / total.sum()
    return weights
