"""The size of the UNet, and how often it halves an image; asked before torch is loaded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pe.errors import RecipeError
from pe.plugins.validation import Count, Settings

_COARSE = 8
"""Pixels a side, at which a network of no stated size stops halving."""

_LEAST = 2
"""Pixels a side that are left at the last level, at least."""

_FIRST, _FURTHER = 16, 32


class Network(Settings):
    """The size of the UNet; the last level, of the least resolution, has attention.

    Attributes:
        channels: of each level, in multiples of 8; each but the last halves the image. None: a level for each
            time that the image can be halved until it has at most 8 pixels a side, of 16, 32, 32, … channels.
        layers: residual blocks per level.
    """

    channels: Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], Field(min_length=1)] | None = None
    layers: Count = 1


def levels(network: Network, height: int, width: int) -> tuple[int, ...]:
    """The channels of each level, for images of this size.

    Raises:
        RecipeError: the images are too small, or cannot be halved so often.
    """
    if network.channels is None:
        return _FIRST, *[_FURTHER] * _halvings(height, width)
    times = len(network.channels) - 1
    if min(height, width) < _LEAST * 2**times:
        raise RecipeError(
            f"network.channels has {times + 1} levels, which halve an image {times} times, and images of "
            f"{height}×{width} pixels are too small for that: take fewer levels, or images of at least "
            f"{_LEAST * 2**times} pixels a side."
        )
    if height % 2**times or width % 2**times:
        raise RecipeError(
            f"network.channels has {times + 1} levels, which halve an image {times} times, and {height}×{width} cannot "
            f"be halved so often: take fewer levels, or sides that {2**times} divides."
        )
    return network.channels


def _halvings(height: int, width: int) -> int:
    times = 0
    while min(height, width) > _COARSE and height % 2 == 0 and width % 2 == 0:
        height, width, times = height // 2, width // 2, times + 1
    return times
