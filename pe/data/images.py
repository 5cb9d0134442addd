"""Images, a modality: uint8 arrays of one size."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from pe.data.arrays import Float64Array, UInt8Array
from pe.data.samples import Array, Samples, Shape, generator
from pe.errors import ContractError

_SMALL = 64
"""Images whose longer side has at most this many pixels are stored raw, not as PNG."""

TELLING = 64
"""An image of one colour alone is suspicious if it has at least this many pixels, height ×
width."""


@dataclass(frozen=True, eq=False)
class Images(Samples):
    """A batch of images of one size.

    Attributes:
        pixels: uint8, n×h×w×c, sRGB; c is 1 (grey) or 3. May be memory-mapped.

    Raises:
        ContractError: the array has another dtype, rank or number of channels.
    """

    pixels: UInt8Array

    kind = "images"
    noun = "images"
    axes = "height×width×channels"
    suffix = ".png"
    feature: ClassVar[Mapping[str, str]] = {"_type": "Image"}
    embedding = "pixels"
    unit = "root mean square of the pixels' differences, 0 to 255"

    def __post_init__(self) -> None:
        array = self.pixels
        if not isinstance(array, np.ndarray) or array.dtype == object:
            kind = (
                "an array of objects"
                if isinstance(array, np.ndarray)
                else f"a {type(array).__name__}"
            )
            raise ContractError(
                f"Images are one uint8 array, n×h×w×c, not {kind}: of pictures of one size it is "
                "np.stack([np.asarray(picture.convert('RGB')) for picture in pictures])."
            )
        if array.dtype != np.uint8:
            raise ContractError(
                f"Images are uint8 arrays, not {array.dtype}: scale to 0…255 and convert."
            )
        if array.ndim != 4 or array.shape[3] not in (1, 3):
            raise ContractError(
                f"Images are n×h×w×c with 1 or 3 channels, not of shape {array.shape}."
            )

    @classmethod
    def stack(cls, rows: Sequence[Array | None], shape: Shape) -> Images:
        """Put the images `rows`, each h×w×c, into one batch. None becomes a black one."""
        pixels = np.zeros((len(rows), *shape), dtype=np.uint8)
        for i, row in enumerate(rows):
            if row is not None:
                pixels[i] = row
        return cls(pixels)

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Images:
        """Make up images: one colour, patches of several sizes, and noise."""
        height, width, channels = shape
        pixels = np.empty((count, height, width, channels), dtype=np.uint8)
        for i, image in enumerate(pixels):
            rng = generator(i, "examples")
            cells = (1, 2, 4, 16, max(height, width))[i % 5]
            patches = rng.integers(0, 256, (cells, cells, channels), dtype=np.uint8)
            rows, columns = (np.arange(side) * cells // side for side in (height, width))
            image[:] = patches[rows[:, None], columns]
        return cls(pixels)

    @classmethod
    def costliest(cls, count: int, shape: Shape) -> Images:
        """Make up images of noise."""
        return cls(generator(0, "costliest").integers(0, 256, (count, *shape), np.uint8))

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        """Return how an image differs from the declared shape, to end a sentence, or ''."""
        if row.shape == shape:
            return ""
        own, shape_text = ("×".join(map(str, one)) for one in (row.shape, shape))
        return (
            f"is an image of {own} where {shape_text} are declared: set private.resize to crop, "
            "fit or stretch, or private.size to what all images have"
        )

    @classmethod
    def is_unique(cls, row: Array) -> bool:
        """Return True unless the image has one colour alone, as a blank page has."""
        return bool((row != row[0, 0]).any())

    @classmethod
    def pack(cls, array: Array) -> dict[str, Array]:
        """Return the images as PNG files, or raw if their longer side has at most 64 pixels.

        Raw, 40,000 lookahead images of 512×512 would take 31 GB.
        """
        if max(array.shape[1:3]) <= _SMALL:
            return {"pixels": array}
        files = [_png(image, compress_level=1) for image in array]
        ends = np.cumsum([len(file) for file in files], dtype=np.int64)
        return {"png": np.frombuffer(b"".join(files), dtype=np.uint8), "ends": ends}

    @classmethod
    def unpack(cls, parts: Mapping[str, Array]) -> Array:
        """Return the array that `pack` was given, to the bit."""
        if "pixels" in parts:
            return parts["pixels"]
        files = np.split(parts["png"], parts["ends"][:-1])
        images = np.stack([np.asarray(Image.open(io.BytesIO(file.tobytes()))) for file in files])
        return images[..., None] if images.ndim == 3 else images

    @property
    def array(self) -> Array:
        """The pixels."""
        return self.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def distances(self, others: Images) -> Float64Array:
        """Return the root mean square difference of each image from its counterpart, 0 to 255."""
        differences = self.pixels.astype(np.float32) - others.pixels.astype(np.float32)
        return np.asarray(np.sqrt(np.square(differences).mean(axis=(1, 2, 3))), np.float64)

    def suspicion(self) -> str:
        """Return a clause on the images of one colour (± 1 level), as content filters make them.

        The clause is empty if there are none.
        """
        if self.shape[0] * self.shape[1] < TELLING:
            return ""
        few = self.pixels[:, ::8, ::8]  # shows of most images that they have several
        suspects = np.flatnonzero(np.ptp(few, axis=(1, 2)).max(axis=1) <= 2)
        plain = sum(int(np.ptp(self.pixels[i], axis=(0, 1)).max()) <= 2 for i in suspects)
        return f"{plain:,} of {len(self):,} images have one colour alone" if plain else ""

    def pictures(self) -> list[Image.Image]:
        """Return the images themselves, grey ones as RGB."""
        return [
            Image.fromarray(np.ascontiguousarray(np.broadcast_to(one, (*one.shape[:2], 3))))
            for one in self.pixels
        ]

    def files(self) -> Iterator[bytes]:
        """Yield a PNG file for each image."""
        return map(_png, self.pixels)


def _png(pixels: Array, **settings: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(
        buffer,
        "PNG",
        **settings,
    )
    return buffer.getvalue()
