"""What a prompt tells the glyph simulator: the text in quotation marks, and words such as `thin` or `large`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from adapters.pen import SHAPE

_QUOTED = re.compile(r"[\"“„«]([^\"“”„«»]{1,40})[\"“”»]")
_WORD = re.compile(r"[a-z]+")
WORDS = {
    "small": ("scale", -1),
    "large": ("scale", 1),
    "narrow": ("width", -1),
    "wide": ("width", 1),
    "short": ("height", -1),
    "tall": ("height", 1),
    "backward": ("slant", -1),
    "italic": ("slant", 1),
    "thin": ("stroke", -1),
    "bold": ("stroke", 1),
}
"""What a prompt may ask for: a parameter's lower or upper half."""


def read_quote(prompt: str) -> str:
    """The first text in quotation marks; empty: there is none."""
    found = _QUOTED.search(prompt)
    return "" if found is None else found[1].strip()


def heed_words(scores: npt.NDArray[np.float32], prompts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The scores, each parameter that a prompt's words name in the half that they name.

    Args:
        scores: standard normal, n×p, the parameters of `SHAPE` first.
        prompts: n.
    """
    scores = scores.copy()
    for row, prompt in zip(scores, prompts, strict=True):
        for word in _WORD.findall(prompt.lower()):
            if word in WORDS:
                name, side = WORDS[word]
                row[SHAPE.index(name)] = side * abs(row[SHAPE.index(name)])
    return scores
