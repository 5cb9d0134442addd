"""Pictures for pages: PNG files inside the page itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from math import ceil

import numpy as np
import numpy.typing as npt
from PIL import Image

from pe.data.population import Population
from pe.data.samples import Images

Pixels = npt.NDArray[np.uint8]

_LARGEST = 96
"""Pixels of an image's longer side in a page, at the most."""


def image_tag(picture: bytes, alt: str) -> str:
    """An <img> that holds its PNG file."""
    width, height = Image.open(io.BytesIO(picture)).size
    data = base64.b64encode(picture).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt, quote=True)}" width="{width}" height="{height}">'


def strip(population: Population, members: Sequence[int] | npt.NDArray[np.int64], gap: int = 2) -> bytes:
    """The images of `members` side by side, with transparent gaps, as a PNG file."""
    assert isinstance(population.samples, Images)
    images = population.samples.take(np.asarray(members, dtype=np.int64)).pixels
    tiles = [_tile(image) for image in images]
    height, width = tiles[0].height, tiles[0].width
    whole = Image.new("RGBA", (len(tiles) * (width + gap) - gap, height))
    for i, tile in enumerate(tiles):
        whole.paste(tile, (i * (width + gap), 0))
    return png(whole)


def png(image: Image.Image) -> bytes:
    """An image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def spread_over(members: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Up to `count` of `members`, evenly spread."""
    chosen: npt.NDArray[np.int64] = members[
        np.linspace(0, len(members) - 1, min(count, len(members))).round().astype(np.int64)
    ]
    return chosen


def _tile(image: Pixels) -> Image.Image:
    """An image as it is shown: small ones by whole-number enlargement, large ones reduced."""
    picture = Image.fromarray(np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3))))
    longest = max(picture.size)
    if longest > _LARGEST:
        factor = _LARGEST / longest
        size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
        return picture.resize(size, Image.Resampling.LANCZOS)
    factor = max(1, ceil(48 / longest))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
