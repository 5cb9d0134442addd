"""Pixels as the embedding: no model, nothing learned; for images that are alike where they are placed alike.

Each image is shrunk and blurred by two matrices, one from each side, in a product of its own: so its
vector is the same to the last bit whichever images are beside it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import ContractError, RecipeError
from pe.plugins.protocols import PluginInfo, Vectors

Features = Literal["pixels", "pyramid", "gradients"]
Normalise = Literal["none", "l2"]
Floats = npt.NDArray[np.float32]

DIRECTIONS = 8  # of gradients, over the full circle
PYRAMID = ((1, 1.0), (2, 1.5), (4, 2.0))  # every how many pixels a level is sampled, and its weight

LEAST = 1e-8
"""Smaller weights of a blur are 0. They would make denormal numbers (below 1.2e-38), in the weights themselves or in
products of two vectors' entries, which some processors compute many times more slowly."""
_FLAT = np.float32(1e-10)  # the cube of a smaller gradient would be such a number


class Pixels:
    """Images → blurred pixels, a pyramid of them, or their gradients' directions.

    Args:
        features: `pixels`, blurred; `pyramid`, the same at three scales (blur ×1, ×2, ×4, the coarse ones
            weighted up); `gradients`, their strength in each of 8 directions, pooled over
            cells × cells places (as HOG does: strokes and edges count, brightness does not).
        size: side, in pixels, to which images are shrunk or enlarged first, ≥ 4; proportions are ignored.
        blur: standard deviation of the Gaussian blur, in pixels of the shrunk image, ≥ 0.
        cells: places per side at which gradients are pooled, ≥ 1; for `gradients` only.
        normalise: `l2` scales each vector to length 1 (a black image's stays 0); `none` keeps it.
        colour: keep the channels apart; otherwise they are averaged.
        batch_size: images per call, ≥ 1.

    Raises:
        RecipeError: an argument is out of range.
    """

    info = PluginInfo(hosts=())

    def __init__(
        self,
        *,
        features: Features = "pixels",
        size: int = 28,
        blur: float = 1.0,
        cells: int = 7,
        normalise: Normalise = "none",
        colour: bool = True,
        batch_size: int = 256,
    ) -> None:
        for name, value, known in (("features", features, Features), ("normalise", normalise, Normalise)):
            if value not in get_args(known):
                raise RecipeError(f"{name} is '{value}': it must be one of {', '.join(get_args(known))}.")
        for name, number, least in (("size", size, 4), ("cells", cells, 1), ("batch_size", batch_size, 1)):
            if number < least:
                raise RecipeError(f"{name} is {number}: it must be at least {least}.")
        if not 0 <= blur < size:
            raise RecipeError(f"blur is {blur}: it must lie from 0 to below the size, {size}.")
        self._features, self._size, self._blur, self._cells = features, size, blur, cells
        self._normalise, self._colour, self._batch_size = normalise, colour, batch_size

    @property
    def batch_size(self) -> int:
        """Images per call."""
        return self._batch_size

    def embed(self, samples: Samples) -> Vectors:
        """float32, n×d, finite: one row per image, a function of that image alone, to the last bit.

        d is size²·c for `pixels`, about 1.3 times that for `pyramid`, and 8·cells²·c for `gradients`,
        where c is the number of channels that are kept apart.

        Raises:
            ContractError: the samples are not images.
        """
        if not isinstance(samples, Images):
            raise ContractError(f"The embedding 'pixels' takes images, not {type(samples).__name__}.")
        images = np.moveaxis(samples.pixels, 3, 1).astype(np.float32, order="C")
        images /= np.float32(255)
        if not self._colour:
            images = images.mean(axis=1, keepdims=True, dtype=np.float32)
        parts = [part.reshape(len(images), int(np.prod(part.shape[1:]))) for part in self._parts(images)]
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if self._normalise == "l2":
            lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
            np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def _parts(self, images: Floats) -> list[Floats]:
        """The features, n×…, of images n×c×h×w in [0, 1]."""
        height, width = images.shape[2:]
        if self._features == "pyramid":
            return [
                np.float32(weight)
                * _both_sides(
                    _reduction(self._size, height, self._blur * step)[step // 2 :: step],
                    images,
                    _reduction(self._size, width, self._blur * step)[step // 2 :: step],
                )
                for step, weight in PYRAMID
            ]
        rows, columns = (_reduction(self._size, length, self._blur) for length in (height, width))
        smooth = _both_sides(rows, images, columns)
        return [smooth] if self._features == "pixels" else [self._gradients(smooth)]

    def _gradients(self, smooth: Floats) -> Floats:
        """Strength of the gradient in each direction, pooled: n×c×DIRECTIONS×cells×cells, square roots."""
        right, down = np.zeros_like(smooth), np.zeros_like(smooth)
        right[..., 1:-1] = smooth[..., 2:] - smooth[..., :-2]
        down[..., 1:-1, :] = smooth[..., 2:, :] - smooth[..., :-2, :]
        strength = right * right + down * down + np.float32(1e-12)
        pool = _resampling(self._cells, self._size).astype(np.float32)
        pooled = []
        for direction in range(DIRECTIONS):
            angle = 2 * np.pi * direction / DIRECTIONS
            along: Floats = np.maximum(
                right * np.float32(np.cos(angle)) + down * np.float32(np.sin(angle)), np.float32(0)
            )
            along *= along > _FLAT
            # The cosine cubed shares a gradient between its neighbouring directions.
            share: Floats = (along * along * along / strength).astype(np.float32, copy=False)
            pooled.append(_both_sides(pool, share, pool))
        return np.sqrt(np.maximum(np.stack(pooled, axis=2), 0))


def _both_sides(left: Floats, images: Floats, right: Floats) -> Floats:
    """The product left · image · rightᵀ for each image and channel; one small product each, whatever the batch."""
    half: Floats = np.matmul(images, np.ascontiguousarray(right.T))
    product: Floats = np.matmul(left, half)
    return product


@lru_cache
def _reduction(size: int, length: int, blur: float) -> Floats:
    """The matrix, size×length, that resamples a line of pixels to the size and blurs it; no weight below LEAST."""
    weights = _gaussian(size, blur) @ _resampling(size, length)
    return np.where(weights < LEAST, 0, weights).astype(np.float32)


def _resampling(size: int, length: int) -> npt.NDArray[np.float64]:
    """size×length: linear interpolation, widened to cover all pixels when shrinking; rows sum to 1."""
    if size == length:
        return np.eye(size)
    scale = length / size
    centres = (np.arange(size) + 0.5) * scale - 0.5
    weights = np.maximum(1 - np.abs(np.arange(length)[None, :] - centres[:, None]) / max(scale, 1.0), 0)
    rows: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return rows


def _gaussian(size: int, deviation: float) -> npt.NDArray[np.float64]:
    """size×size: Gaussian blur with black beyond the border."""
    if deviation == 0:
        return np.eye(size)
    reach, distance = np.arange(-size, size + 1), np.arange(size)[None, :] - np.arange(size)[:, None]
    total, kernel = (np.exp(-np.minimum((each / deviation) ** 2 / 2, 100)) for each in (reach, distance))
    weights: npt.NDArray[np.float64] = kernel / total.sum()
    return weights
