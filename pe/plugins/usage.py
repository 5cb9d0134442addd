"""What an answer cost, in what providers bill."""

from __future__ import annotations

from dataclasses import astuple, dataclass


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


NOTHING = Usage(0)
KINDS = ("text_in", "image_in", "text_out", "image_out")
"""Of tokens."""
