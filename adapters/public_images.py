"""A pool of public images as the generator: RANDOM deals it out, VARIATION takes a neighbour.

Nearness is the L2 distance of shrunken, blurred pixels on a grid of LEVELS steps. On that grid float32
arithmetic is exact, so neither the chunk nor the order of a sum can change who is whose neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from adapters.pools import FromPool, Indices, Pool
from adapters.public_files import images_at, read_arrays, read_folder
from pe.data.decoding import Resize
from pe.data.images import Images
from pe.data.samples import Shape
from pe.errors import RecipeError
from pe.plugins.protocols import PluginInfo

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

SIDE = 16  # pixels to which images are shrunk for comparison
LEVELS = 64  # 16·16·3 squares of differences below 64 stay below 2²⁴, where float32 is exact
BLOCK = 64  # images shrunk at once


class PublicImages(FromPool):
    """RANDOM_API and VARIATION_API over a pool of public images.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt, so that no image is twice among
    new samples of a label before every other was there. VARIATION_API draws, uniformly, from the parent and its
    ⌈degree·(m−1)⌉ nearest neighbours, where m is the size of the pool: degree 0 gives the parent itself, degree 1 a
    random draw. An answer depends on each item's seed and condition alone.

    Conditions: `pool`, int64 (n,): the image's place in the pool (of files: in the order of their paths).

    Args:
        path: a folder of images (searched through), or an .npz file with `images` (m×h×w or
            m×h×w×c) and, where `by_label`, `labels` (m).
        size: height and width in pixels; None: that which all images have.
        resize: how images of another size get it.
        channels: 1 (grey) or 3.
        by_label: draw for each label only from its own images: those that `labels.csv`, the subfolder, or the
            entries of `labels`, give its name.
        blur: standard deviation of the blur before images are compared, in pixels of 16×16, ≥ 0.

    Raises:
        RecipeError: an argument is out of range, or the pool is missing, empty or not as declared.
        BadImage: a file of the pool cannot be decoded.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("path",),  # a run knows the images themselves again
        degrees=(0.0,),  # votes choose among its images; neighbours by pixels gave no more
    )

    def __init__(
        self,
        *,
        path: Path,
        size: int | None = None,
        resize: Resize = "crop",
        channels: Literal[1, 3] = 3,
        by_label: bool = False,
        blur: float = 1.0,
    ) -> None:
        if size is not None and size < 1:
            raise RecipeError(f"size is {size}: it must be at least 1 pixel.")
        if resize not in get_args(Resize):
            raise RecipeError(f"resize is '{resize}': it must be one of {', '.join(get_args(Resize))}.")
        if channels not in (1, 3):
            raise RecipeError(f"channels is {channels}: it must be 1 or 3.")
        if not 0 <= blur < SIDE:
            raise RecipeError(f"blur is {blur}: it must lie from 0 to below {SIDE}.")
        source, square = Path(path), None if size is None else (size, size)
        if source.is_dir():
            self._pixels, names = read_folder(source, square, resize, channels)
        elif source.suffix.lower() == ".npz":
            self._pixels, names = read_arrays(source, square, resize, channels)
        else:
            raise RecipeError(f"api.path: '{path}' is neither a folder nor an .npz file of public images.")
        self._path, self._resize = source, resize
        self._pool = Pool(len(self._pixels), names if by_label else None, "public_images", Images.noun)
        self._vectors = _comparable(self._pixels, blur)
        self._squares = np.square(self._vectors).sum(axis=1)
        height, width = self._pixels.shape[1:3]
        self.info = replace(self.info, by_label=by_label, distinct=self._pool.distinct, shape=(height, width, channels))

    def public_paths(self) -> tuple[Path, ...]:
        """The pool's place."""
        return (self._path,)

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Pixels]]:
        """The pool's images, decoded anew at `shape`: see `pe.plugins.protocols.ReadsPublicSamples`."""
        return images_at(self._path, shape, rule or self._resize)

    def _distances(self, parents: Indices, others: Indices) -> npt.NDArray[np.integer]:
        """Squared distances of places of the pool, exact."""
        products = self._vectors[parents] @ self._vectors[others].T
        squares = self._squares[parents][:, None] + self._squares[others][None, :] - 2 * products
        distances: npt.NDArray[np.int64] = squares.astype(np.int64)
        return distances

    def _samples(self, places: Indices) -> Images:
        return Images(self._pixels[places])


def _comparable(pixels: Pixels, blur: float) -> Vectors:
    """float32 m×d of whole numbers below LEVELS: shrunk to SIDE×SIDE, blurred."""
    vectors = []
    for start in range(0, len(pixels), BLOCK):
        images = pixels[start : start + BLOCK].astype(np.float32)
        for axis in (1, 2):
            images = _shrink(images, axis)
        smooth = ndimage.gaussian_filter(images, (0, blur, blur, 0)) if blur else images
        vectors.append(np.rint(smooth * ((LEVELS - 1) / 255)).reshape(len(images), -1))
    return np.concatenate(vectors).astype(np.float32)


def _shrink(images: Vectors, axis: int) -> Vectors:
    """The axis brought to SIDE: means of its pixels' runs, or repeats when it is shorter."""
    length = images.shape[axis]
    if length <= SIDE:
        repeats: Vectors = images.take(np.arange(SIDE) * length // SIDE, axis=axis)
        return repeats
    starts = np.arange(SIDE + 1) * length // SIDE
    sums: Vectors = np.add.reduceat(images, starts[:-1], axis=axis)
    counts = np.diff(starts).astype(np.float32)
    sums /= np.expand_dims(counts, [k for k in range(images.ndim) if k != axis])
    return sums
