"""Samples: an ordered batch of one modality. Images are the first.

The engine only counts, takes, concatenates, saves and loads samples. Another modality is another class
with these members, one entry in MODALITIES, and no change to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from pe.errors import ContractError

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.integer] | slice | Sequence[int]


class Samples(Protocol):
    """An ordered batch of one modality, held in one array whose first axis counts the samples."""

    kind: ClassVar[str]

    @property
    def array(self) -> Array:
        """The samples as they are stored; `type(self)(array)` makes them again."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> Self:
        """The samples at `indices`, in that order."""
        ...

    def only(self, *indices: int) -> Self:
        """As many samples of the same shape, blank but for those at `indices`."""
        ...


@dataclass(frozen=True, eq=False)
class Images:
    """A batch of images of one size.

    Attributes:
        pixels: uint8, n×h×w×c, sRGB; c is 1 (grey) or 3. May be memory-mapped.

    Raises:
        ContractError: the array has another dtype, rank or number of channels.
    """

    pixels: npt.NDArray[np.uint8]

    kind: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        array = self.pixels
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ContractError(f"Images are uint8 arrays, not {kind}: scale to 0…255 and convert.")
        if array.ndim != 4 or array.shape[3] not in (1, 3):
            raise ContractError(f"Images are n×h×w×c with 1 or 3 channels, not of shape {array.shape}.")

    @property
    def array(self) -> Array:
        """The pixels."""
        return self.pixels

    def __len__(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        _, height, width, channels = self.pixels.shape
        return height, width, channels

    def take(self, indices: Indices) -> Images:
        """The images at `indices`, in that order."""
        return Images(self.pixels[indices])

    def only(self, *indices: int) -> Images:
        """As many images, black but for those at `indices`."""
        pixels = np.zeros_like(self.pixels)
        pixels[list(indices)] = self.pixels[list(indices)]
        return Images(pixels)


MODALITIES: dict[str, type[Images]] = {Images.kind: Images}
