"""The contact sheet: one row per iteration, one column per label."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from pe.data.population import Population
from pe.data.samples import Images

_CELL = 96
_GAP = 8
_LEFT, _TOP = 56, 34
_PAPER, _INK = (255, 255, 255), (40, 40, 40)


def contact_sheet(populations: Sequence[Population], classes: Sequence[str], per_cell: int = 9) -> bytes:
    """A PNG of S_0 … S_T; each cell a square of up to `per_cell` members of a label, spread evenly over them.

    Args:
        populations: of images; one row each.
        classes: the label names; one column each.
        per_cell: images per cell, ≥ 1.
    """
    width = _LEFT + len(classes) * (_CELL + _GAP)
    height = _TOP + len(populations) * (_CELL + _GAP)
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for column, name in enumerate(classes):
        pen.text((_x(column) + _CELL // 2, _TOP // 2), name[:12], fill=_INK, font=font, anchor="mm")
    for row, population in enumerate(populations):
        y = _TOP + row * (_CELL + _GAP)
        pen.text((_LEFT // 2, y + _CELL // 2), f"S{row}", fill=_INK, font=font, anchor="mm")
        for column in range(len(classes)):
            members = np.flatnonzero(population.labels == column)
            if members.size:
                shown = members[np.linspace(0, members.size - 1, min(per_cell, members.size)).astype(int)]
                sheet.paste(_mosaic(population.take(shown)), (_x(column), y))
    return _png(sheet)


def _x(column: int) -> int:
    return _LEFT + column * (_CELL + _GAP)


def _mosaic(population: Population) -> Image.Image:
    """The images side by side in a square of _CELL pixels."""
    assert isinstance(population.samples, Images)
    pixels = population.samples.pixels
    side = ceil(sqrt(len(pixels)))
    _, height, width, channels = pixels.shape
    grid = np.zeros((side * side, height, width, channels), dtype=np.uint8)
    grid[: len(pixels)] = pixels
    tiled = grid.reshape(side, side, height, width, channels).swapaxes(1, 2)
    whole: npt.NDArray[np.uint8] = tiled.reshape(side * height, side * width, channels)
    rgb = np.broadcast_to(whole, (*whole.shape[:2], 3))
    return Image.fromarray(np.ascontiguousarray(rgb)).resize((_CELL, _CELL), Image.Resampling.LANCZOS)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
