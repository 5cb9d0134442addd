"""Samples: an ordered batch of one modality. Images are the first.

The engine only counts, takes, concatenates, saves and loads samples, so another modality needs
another class with these methods and no change to the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from pe.errors import ContractError

UInt8Array = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.integer] | slice | Sequence[int]


class Samples(Protocol):
    """An ordered batch of one modality."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> Self:
        """The samples at `indices`, in that order."""
        ...

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """All parts, one after another."""
        ...

    @classmethod
    def gather(cls, path: Path, parts: Iterable[Self], count: int) -> Self:
        """Write `parts`, `count` samples together, to the file `path` without holding them all; return them."""
        ...

    @classmethod
    def load(cls, path: Path) -> Self:
        """The samples of the file `path`, not read into memory before they are needed."""
        ...


@dataclass(frozen=True, eq=False)
class Images:
    """A batch of images of one size.

    Attributes:
        pixels: uint8, n×h×w×c, sRGB; c is 1 (grey) or 3. May be memory-mapped.

    Raises:
        ContractError: the array has another dtype, rank or number of channels.
    """

    pixels: UInt8Array

    def __post_init__(self) -> None:
        array = self.pixels
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ContractError(f"Images are uint8 arrays, not {kind}: scale to 0…255 and convert.")
        if array.ndim != 4 or array.shape[3] not in (1, 3):
            raise ContractError(f"Images are n×h×w×c with 1 or 3 channels, not of shape {array.shape}.")

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

    @classmethod
    def concatenate(cls, parts: Sequence[Images]) -> Images:
        """All parts, one after another; they must have one size."""
        _same_shape(parts)
        return cls(np.concatenate([part.pixels for part in parts]))

    @classmethod
    def gather(cls, path: Path, parts: Iterable[Images], count: int) -> Images:
        """Write `parts`, `count` images together, to the .npy file `path` part by part; return them mapped."""
        target, start, shape = None, 0, None
        for part in parts:
            if target is None:
                shape = part.shape
                target = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, *shape))
            if part.shape != shape:
                raise ContractError(f"Images of one run have one size: got {part.shape} after {shape}.")
            target[start : start + len(part)] = part.pixels
            start += len(part)
        if target is None or start != count:
            raise ContractError(f"{count} images were to be gathered, {start} came.")
        target.flush()
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> Images:
        """The images of a .npy file, memory-mapped."""
        return cls(np.load(path, mmap_mode="r", allow_pickle=False))


def _same_shape(parts: Sequence[Images]) -> None:
    shapes = {part.shape for part in parts}
    if len(shapes) != 1:
        raise ContractError(f"Images of one run have one size: got {', '.join(map(str, sorted(shapes)))}.")
