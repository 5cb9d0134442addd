"""What an answer cost, in what providers bill."""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np

log = logging.getLogger(__name__)

MOST = 10**12
"""Largest number of anything that one answer is billed for."""


@dataclass(frozen=True)
class Usage:
    """What was billed.

    Attributes:
        calls: requests made.
        images: images made.
        tokens: of all kinds; those that are of none of the four below cost as the dearest kind does.
        text_in: tokens of prompts.
        image_in: tokens of parents.
        text_out: tokens of text that the model wrote.
        image_out: tokens of images that it made.
        megapixels: of images that it made, as they were drawn; a megapixel is a million pixels.
        cost: what all of it cost, where several generators have prices of their own; else 0.
    """

    calls: int = 1
    images: int = 0
    tokens: int = 0
    text_in: int = 0
    image_in: int = 0
    text_out: int = 0
    image_out: int = 0
    megapixels: float = 0.0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def known(self, made: int) -> Usage:
        """Usage of an answer with `made` samples, whose numbers that no answer can cost count as not stated."""
        calls, images, *tokens, megapixels, cost = astuple(self)
        counts = (count_of(calls, 1), count_of(images, made), *map(count_of, tokens))
        return Usage(*counts, *(float(_amount_of(each) or 0) for each in (megapixels, cost)))


def count_of(stated: object, unknown: int = 0) -> int:
    """A whole number from 0 to MOST that an answer states of its cost; `unknown` for anything else, which is logged."""
    amount = _amount_of(stated, whole=True)
    return unknown if amount is None else int(amount)


def _amount_of(stated: object, whole: bool = False) -> float | None:
    """A number from 0 to MOST, else None."""
    number = isinstance(stated, int | float | np.integer | np.floating) and not isinstance(stated, bool)
    if number and 0 <= stated <= MOST and (not whole or stated == int(stated)):  # type: ignore[operator, call-overload]
        return stated  # type: ignore[return-value]
    if stated is not None:
        _tell()
    return None


@cache
def _tell() -> None:
    """Log it once."""
    log.warning("An answer states a usage that no request can have (not from 0 to %s): it counts as not stated.", MOST)


NOTHING = Usage(0)
KINDS = ("text_in", "image_in", "text_out", "image_out")
"""Of tokens."""
