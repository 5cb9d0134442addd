"""A picture of generated images beside their nearest private records. Confidential: it shows private images."""

from __future__ import annotations

import io
from math import ceil

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from pe.data.images import Images
from pe.evaluation.frechet import Reals

_SIDE, _SEAM, _GAP, _TOP, _CAPTION, _COLUMNS = 96, 3, 16, 34, 20, 4
_PAIR = 2 * _SIDE + _SEAM
_PAPER, _INK, _RED = (255, 255, 255), (40, 40, 40), (170, 0, 0)


def pairs_picture(generated: Images, private: Images, distances: Reals) -> bytes:
    """A PNG of n ≥ 1 pairs, generated on the left and private on the right, each with its distance below.

    Args:
        generated: n images.
        private: n images.
        distances: float64 (n,).
    """
    rows = ceil(len(distances) / _COLUMNS)
    width = _GAP + min(len(distances), _COLUMNS) * (_PAIR + _GAP)
    sheet = Image.new("RGB", (max(width, 480), _TOP + rows * (_SIDE + _CAPTION + _GAP)), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    pen.text((_GAP, 10), "CONFIDENTIAL. Generated | its nearest private record; their distance", fill=_RED, font=font)
    for i, distance in enumerate(distances):
        x, y = _GAP + i % _COLUMNS * (_PAIR + _GAP), _TOP + i // _COLUMNS * (_SIDE + _CAPTION + _GAP)
        sheet.paste(_tile(generated.pixels[i]), (x, y))
        sheet.paste(_tile(private.pixels[i]), (x + _SIDE + _SEAM, y))
        pen.text((x, y + _SIDE + 3), f"{distance:.4g}", fill=_INK, font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _tile(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """An image, h×w×c, as a square of _SIDE pixels without blur."""
    colour = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    return Image.fromarray(colour).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
