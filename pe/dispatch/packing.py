"""A chunk of answers as bytes: named arrays, its samples as their modality packs them."""

from __future__ import annotations

import io

import numpy as np

from pe.data.conditions import CONDITION, DRAWN
from pe.data.samples import Array, kind_among, modality

_MARK = "packed"
_DRAWN = f"{CONDITION}{DRAWN}"


def encode(columns: dict[str, Array]) -> bytes:
    """Named arrays as bytes: their names, then each array, all in the .npy format, one after another.

    Columns of samples become the parts that their modality packs them into.
    """
    kind = kind_among(columns.keys())
    samples = [name for name in (kind, _DRAWN) if name in columns]
    others = {name: array for name, array in columns.items() if name not in samples}
    packed = {
        f"{_MARK}.{name}.{part}": array
        for name in samples
        for part, array in modality(kind).pack(columns[name]).items()
    }
    buffer = io.BytesIO()
    for array in (np.array([*packed, *others]), *packed.values(), *others.values()):
        np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Array]:
    """The named arrays that `encode` was given; never executes anything."""
    buffer = io.BytesIO(data)
    names = np.load(buffer, allow_pickle=False)
    columns = {str(name): np.load(buffer, allow_pickle=False) for name in names}
    packed: dict[str, dict[str, Array]] = {}
    for name in [name for name in columns if name.startswith(f"{_MARK}.")]:
        column, part = name.removeprefix(f"{_MARK}.").rsplit(".", 1)
        packed.setdefault(column, {})[part] = columns.pop(name)
    kind = next(iter(packed))
    return {name: modality(kind).unpack(parts) for name, parts in packed.items()} | columns
