"""A chunk of answers as bytes: named arrays, its samples as their modality packs them."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt

from pe.data.conditions import CONDITION, DRAWN
from pe.data.samples import Array, kind_among, modality
from pe.store.durable import Piece

_MARK = "packed"
_LONGEST_HEADER = 10 + 2**16  # bytes, in version 1.0 of the format
_DRAWN = f"{CONDITION}{DRAWN}"


def encode(columns: dict[str, Array]) -> list[Piece]:
    """Named arrays as pieces of a file: their names, then each array, all in the .npy format, one after another.

    Columns of samples become the parts that their modality packs them into. An array in C order is not copied.
    """
    kind = kind_among(columns.keys())
    samples = [name for name in (kind, _DRAWN) if name in columns]
    others = {name: array for name, array in columns.items() if name not in samples}
    packed = {
        f"{_MARK}.{name}.{part}": array
        for name in samples
        for part, array in modality(kind).pack(columns[name]).items()
    }
    pieces: list[Piece] = []
    for array in (np.array([*packed, *others]), *packed.values(), *others.values()):
        whole, header = np.asarray(array, order="C"), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(whole))
        pieces += header.getvalue(), whole.reshape(-1).view(np.uint8).data
    return pieces


def decode(data: npt.NDArray[np.uint8]) -> dict[str, Array]:
    """The named arrays that `encode` was given, in the memory of the file's bytes `data`; never executes anything."""
    names, end = _read(data, 0)
    columns: dict[str, Array] = {}
    for name in names:
        columns[str(name)], end = _read(data, end)
    packed: dict[str, dict[str, Array]] = {}
    for name in [name for name in columns if name.startswith(f"{_MARK}.")]:
        column, part = name.removeprefix(f"{_MARK}.").rsplit(".", 1)
        packed.setdefault(column, {})[part] = columns.pop(name)
    kind = next(iter(packed))
    return {name: modality(kind).unpack(parts) for name, parts in packed.items()} | columns


def _read(data: npt.NDArray[np.uint8], start: int) -> tuple[Array, int]:
    """The array whose .npy header begins at `start`, and where it ends; copied only if it lies unaligned."""
    head = io.BytesIO(data[start : start + _LONGEST_HEADER].tobytes())
    np.lib.format.read_magic(head)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
    begin = start + head.tell()
    array: Array = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape, order="F" if fortran else "C")
    return np.require(array, requirements="A"), begin + array.nbytes
