"""How often a UNet halves an image; asked before torch is loaded."""

from __future__ import annotations

from adapters.trained.diffusion.settings import Network
from pe.errors import RecipeError

_COARSE = 8
"""Pixels a side, at which a network of no stated size stops halving."""

_LEAST = 2
"""Pixels a side that are left at the last level, at least."""

_FIRST, _FURTHER = 16, 32


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
