"""The contact sheet: one row per iteration, one column per label."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pe.data.population import Population
from pe.data.samples import Images
from pe.report.pictures import png

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
            shown = mosaic(population, column, per_cell)
            if shown is not None:
                sheet.paste(shown, (_x(column), y), shown)
    return png(sheet)


def mosaic(population: Population, label: int, count: int = 9) -> Image.Image | None:
    """Up to `count` members of a label, spread evenly over them, in a square whose empty places are transparent.

    None where the label has no member.
    """
    members = np.flatnonzero(population.labels == label)
    if not members.size:
        return None
    samples = population.samples.take(members[np.linspace(0, members.size - 1, min(count, members.size)).astype(int)])
    assert isinstance(samples, Images)
    pixels = samples.pixels
    side = ceil(sqrt(len(pixels)))
    _, height, width, _ = pixels.shape
    grid = np.zeros((side * side, height, width, 4), dtype=np.uint8)
    grid[: len(pixels), ..., :3] = pixels
    grid[: len(pixels), ..., 3] = 255
    tiled = grid.reshape(side, side, height, width, 4).swapaxes(1, 2).reshape(side * height, side * width, 4)
    return Image.fromarray(tiled).resize((_CELL, _CELL), Image.Resampling.LANCZOS)


def _x(column: int) -> int:
    return _LEFT + column * (_CELL + _GAP)
