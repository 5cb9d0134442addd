"""A pool of public images as the generator: RANDOM deals it out, VARIATION takes a neighbour.

Nearness is the L2 distance of shrunken, blurred pixels on a grid of LEVELS steps. On that grid float32
arithmetic is exact, so neither the chunk nor the order of a sum can change who is whose neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from adapters.public_files import images_at, read_arrays, read_folder
from pe.data.conditions import Conditions
from pe.data.decoding import Resize
from pe.data.images import Images
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, Seeds, VariationRequest

Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

SIDE = 16  # pixels to which images are shrunk for comparison
LEVELS = 64  # 16·16·3 squares of differences below 64 stay below 2²⁴, where float32 is exact
BLOCK = 64  # parents compared with the pool at once


class PublicImages:
    """RANDOM_API and VARIATION_API over a pool of public images.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt, so that no image is twice among
    new samples of a label before every other was there. VARIATION_API draws, uniformly, from the parent and its
    ⌈degree·(m−1)⌉ nearest neighbours, where m is the size of the pool: degree 0 gives the parent
    itself, degree 1 a random draw. An answer depends on each item's seed and condition alone.

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
        self._members = _members(names) if by_label else None
        self._everyone = np.arange(len(self._pixels))
        self._vectors = _comparable(self._pixels, blur)
        self._squares = np.square(self._vectors).sum(axis=1)
        distinct = len(self._everyone) if self._members is None else max(map(len, self._members.values()))
        height, width = self._pixels.shape[1:3]
        self.info = replace(self.info, by_label=by_label, distinct=distinct, shape=(height, width, channels))

    def __len__(self) -> int:
        """The number of images in the pool."""
        return len(self._pixels)

    @property
    def capabilities(self) -> Capabilities:
        """Any number at once, the degree obeyed exactly, always the same answer."""
        return Capabilities(max_chunk=1024)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if the pool has no images of a label."""
        for label in labels:
            self._pool(label)

    def public_paths(self) -> tuple[Path, ...]:
        """The pool's place."""
        return (self._path,)

    def public_images(self, shape: tuple[int, int, int], resize: Resize | None) -> Iterator[tuple[str, Pixels]]:
        """The pool's images, decoded anew at `shape`: see `pe.plugins.protocols.ReadsPublicImages`."""
        return images_at(self._path, shape, resize or self._resize)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Places of the pool for new samples: of each label its images in random order, over again where they end.

        Raises:
            RecipeError: the pool has no images of a label.
        """
        places = np.empty(len(labels), dtype=np.int64)
        for label, items in _by_label(labels):
            pool, rng = self._pool(label), np.random.Generator(np.random.Philox(key=int(seeds[items[0]])))
            rounds = [rng.permutation(pool) for _ in range(-(-len(items) // len(pool)))]
            places[items] = np.concatenate(rounds)[: len(items)]
        return Conditions({"pool": places})

    def random_api(self, request: RandomRequest) -> Answer:
        """The images of the pool that `draw_conditions` dealt to these samples.

        Raises:
            APIError: the request carries no places in this pool.
        """
        return self._answer(self._places(request.conditions))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A near neighbour of each parent; the degree says how many count as near.

        Raises:
            APIError: the parents carry no places in this pool.
            RecipeError: the pool has no images of a label.
        """
        parents = self._places(request.conditions)
        if request.degree == 0:
            return self._answer(parents)
        chosen = np.empty(len(request), dtype=np.int64)
        places = _uniforms(request.seeds, stream=2)
        for label, items in _by_label(request.labels):
            pool = self._pool(label)
            near = 1 + int(np.ceil(request.degree * (len(pool) - 1)))
            ranks = np.floor(places[items] * near).astype(np.int64)
            for start in range(0, len(items), BLOCK):
                block = slice(start, start + BLOCK)
                chosen[items[block]] = self._rank(pool, parents[items[block]], ranks[block])
        return self._answer(chosen)

    def _rank(self, pool: Indices, parents: Indices, ranks: Indices) -> Indices:
        """For each parent the member of `pool` of that rank in nearness: 0 is itself, ties go to the first."""
        products = self._vectors[parents] @ self._vectors[pool].T
        squares = self._squares[parents][:, None] + self._squares[pool][None, :] - 2 * products
        keys = squares.astype(np.int64) * len(pool) + np.arange(len(pool))
        keys[parents[:, None] == pool[None, :]] = -1
        return np.array([pool[np.argpartition(key, rank)[rank]] for key, rank in zip(keys, ranks, strict=True)])

    def _pool(self, label: str) -> Indices:
        if self._members is None:
            return self._everyone
        if label not in self._members:
            known = ", ".join(f"'{name}'" for name in sorted(self._members)) or "none"
            raise RecipeError(f"The public pool has no images of label '{label}'; its labels are {known}.")
        return self._members[label]

    def _places(self, conditions: Conditions) -> Indices:
        if "pool" not in conditions:
            raise APIError("The samples carry no 'pool': public_images makes and varies only what it drew itself.")
        places = conditions["pool"].astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise APIError(f"A sample's place lies outside the pool of {len(self)}: give the pool it was drawn from.")
        return places

    def _answer(self, chosen: Indices) -> Answer:
        return Answer(Images(self._pixels[chosen]), Conditions({"pool": chosen}))


def _members(names: Sequence[str]) -> dict[str, Indices]:
    """Label → its places in the pool, ascending."""
    unique, inverse = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
    return {str(name): np.flatnonzero(inverse == k) for k, name in enumerate(unique)}


def _by_label(labels: Sequence[str]) -> list[tuple[str, Indices]]:
    """Each label and the items that have it."""
    return list(_members(labels).items())


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


def _uniforms(seeds: Seeds, *, stream: int) -> npt.NDArray[np.float64]:
    """float64 (n,) in [0, 1): one number per seed, by SplitMix64's mixing (Steele, Lea and Flood, 2014)."""
    z = np.asarray(seeds, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15 * stream % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
