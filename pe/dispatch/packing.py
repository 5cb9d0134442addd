"""A chunk of answers as bytes: named arrays, its samples as their modality packs them."""

from __future__ import annotations

import io

import numpy as np

from pe.data.samples import Array, kind_among, modality

_MARK = "packed"


def encode(columns: dict[str, Array]) -> bytes:
    """Named arrays as bytes: their names, then each array, all in the .npy format, one after another.

    The samples' column becomes the parts that their modality packs it into.
    """
    kind = kind_among(columns.keys())
    others = {name: array for name, array in columns.items() if name != kind}
    packed = {f"{_MARK}.{kind}.{part}": array for part, array in modality(kind).pack(columns[kind]).items()}
    buffer = io.BytesIO()
    for array in (np.array([*packed, *others]), *packed.values(), *others.values()):
        np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Array]:
    """The named arrays that `encode` was given; never executes anything."""
    buffer = io.BytesIO(data)
    names = np.load(buffer, allow_pickle=False)
    columns = {str(name): np.load(buffer, allow_pickle=False) for name in names}
    packed = [name for name in columns if name.startswith(f"{_MARK}.")]
    kind = packed[0].split(".")[1]
    parts = {name.removeprefix(f"{_MARK}.{kind}."): columns.pop(name) for name in packed}
    return {kind: modality(kind).unpack(parts), **columns}
