"""A chunk of answers as bytes: named arrays, large images compressed without loss."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from pe.data.samples import Array, Images

_SIDE = 64
_PNG = "png"
_ENDS = "png_ends"


def encode(columns: dict[str, Array]) -> bytes:
    """Named arrays as bytes: their names, then each array, all in the .npy format, one after another.

    Images of more than 64 pixels a side are PNG: 40,000 lookahead images of 512×512 are 35 GB raw.
    """
    columns = dict(columns)
    images = columns.get(Images.kind)
    if images is not None and max(images.shape[1:3]) > _SIDE:
        del columns[Images.kind]
        columns |= _compress(images)
    buffer = io.BytesIO()
    for array in (np.array(list(columns)), *columns.values()):
        np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Array]:
    """The named arrays that `encode` was given; never executes anything."""
    buffer = io.BytesIO(data)
    names = np.load(buffer, allow_pickle=False)
    columns = {str(name): np.load(buffer, allow_pickle=False) for name in names}
    if _PNG in columns:
        columns[Images.kind] = _expand(columns.pop(_PNG), columns.pop(_ENDS))
    return columns


def _compress(images: Array) -> dict[str, Array]:
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(buffer, "PNG", compress_level=1)
        files.append(buffer.getvalue())
    ends = np.cumsum([len(file) for file in files], dtype=np.int64)
    return {_PNG: np.frombuffer(b"".join(files), dtype=np.uint8), _ENDS: ends}


def _expand(data: Array, ends: Array) -> Array:
    parts = np.split(data, ends[:-1])
    images = np.stack([np.asarray(Image.open(io.BytesIO(part.tobytes()))) for part in parts])
    return images[..., None] if images.ndim == 3 else images
