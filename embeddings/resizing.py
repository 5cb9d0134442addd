"""Images brought to the size a network was trained on, the way its own pipeline did it.

Each way is two matrices, one for the rows and one for the columns, so it is the same on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pe.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

Filter = Literal["bicubic", "bilinear"]
Matrix = npt.NDArray[np.float32]


def antialiased(images: Tensor, height: int, width: int, kind: Filter = "bicubic", between: bool = True) -> Tensor:
    """n×c×height×width: resized as Pillow does, the filter widened to cover all pixels when shrinking.

    Grey levels are cut to 0…255 at the end and, if `between`, between the two passes, too, as Pillow does with
    images of 8 bits but not with those of 32. They are not rounded to whole numbers, so that a vector is a
    continuous function of its image.
    """
    rows, columns = images.shape[2:]
    images = _product(images, _filter(width, columns, kind))
    images = images.clamp(0, 255) if between else images
    return _product(images.mT, _filter(height, rows, kind)).mT.clamp(0, 255)


def shortest_side(images: Tensor, size: int, crop: int, kind: Filter = "bicubic") -> Tensor:
    """n×c×crop×crop: the shorter side brought to `size` ≥ crop, then the middle cut out."""
    rows, columns = images.shape[2:]
    shorter = min(rows, columns)
    height, width = (size * length // shorter for length in (rows, columns))
    images = antialiased(images, height, width, kind)
    top, left = (round((length - crop) / 2) for length in (height, width))
    return images[:, :, top : top + crop, left : left + crop]


def check_crop(crop: int, size: int) -> None:
    """Refuse a crop that `shortest_side` cannot cut out.

    Raises:
        RecipeError: it is none, or larger than the shorter side will be.
    """
    if not 1 <= crop <= size:
        raise RecipeError(f"crop is {crop} and resize {size}: take 1 ≤ crop ≤ resize.")


def tensorflow_bilinear(images: Tensor, height: int, width: int) -> Tensor:
    """n×c×height×width: bilinear as TensorFlow 1 resized (align_corners off), which FID's network was given.

    Pixel i is taken at i·(in/out), without the half-pixel offset of today's conventions and without
    antialiasing.
    """
    rows, columns = images.shape[2:]
    return _product(_product(images, _legacy(width, columns)).mT, _legacy(height, rows)).mT


def _product(images: Tensor, matrix: Matrix) -> Tensor:
    """The product image · matrixᵀ for each image and channel, in float32."""
    import torch

    return images @ torch.from_numpy(matrix).to(images.device).T


def _filter(size: int, length: int, kind: Filter) -> Matrix:
    """size×length: the filter at each new pixel's centre; rows sum to 1."""
    if size == length:
        return np.eye(size, dtype=np.float32)
    scale = length / size
    spread = max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    distance = np.abs(np.arange(length)[None, :] + 0.5 - centres[:, None]) / spread
    weights = _cubic(distance) if kind == "bicubic" else np.maximum(1 - distance, 0)
    rows: Matrix = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return rows


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' cubic convolution kernel with a = −½, which is Pillow's."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _legacy(size: int, length: int) -> Matrix:
    """size×length: two neighbours each, weighted by where i·(length/size) lies between them."""
    places = np.arange(size, dtype=np.float32) * np.float32(length / size)
    low = np.floor(places).astype(np.int64)
    share = places - low.astype(np.float32)
    matrix = np.zeros((size, length), np.float32)
    np.add.at(matrix, (np.arange(size), low), 1 - share)
    np.add.at(matrix, (np.arange(size), np.minimum(low + 1, length - 1)), share)
    return matrix
