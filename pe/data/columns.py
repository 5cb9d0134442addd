"""Named arrays of equal length on disk: one .npy file per column, written part by part, read memory-mapped."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.conditions import CONDITION, PART
from pe.data.samples import Array, Indices
from pe.errors import ContractError


class ColumnWriter:
    """Fills columns of `rows` rows in a folder, in any order, without holding them in memory.

    Text columns are held until `close`, because their width is known only then. A column that only some samples have
    (`pe.data.conditions.PART`) is 0, or empty, in all others.

    Raises:
        ContractError: a part has other columns, another dtype or another shape than the first one.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._files: dict[str, np.memmap[Any, np.dtype[Any]]] = {}
        self._texts: dict[str, list[tuple[Indices, Array]]] = {}
        self._names: set[str] | None = None  # that every part has

    def put(self, rows: Indices, columns: Mapping[str, Array]) -> None:
        """Write a part: `columns[name][i]` becomes row `rows[i]`."""
        names = {name for name in columns if PART not in name.removeprefix(CONDITION)}
        if self._names is not None and self._names != names:
            raise ContractError(f"A generator's answers differ in their columns: {sorted(self._names ^ names)}.")
        self._names = names
        for name, column in columns.items():
            if column.dtype.kind == "U":
                self._texts.setdefault(name, []).append((rows, np.array(column)))
            else:
                write_rows(self._target(name, column), rows, column)

    def _target(self, name: str, column: Array) -> np.memmap[Any, np.dtype[Any]]:
        target = self._files.get(name)
        if target is None:
            shape = (self._rows, *column.shape[1:])
            target = open_table(self._path(name), column.dtype, shape)
            self._files[name] = target
        if target.dtype != column.dtype or target.shape[1:] != column.shape[1:]:
            got, first = (f"{a.dtype} {a.shape[1:]}" for a in (column, target))
            raise ContractError(f"All answers of one run have one shape: '{name}' came as {got} after {first}.")
        return target

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def close(self) -> list[Path]:
        """Finish all files and return their paths, sorted."""
        for file in self._files.values():
            file.flush()
        for name, parts in self._texts.items():
            width = max((part.dtype.itemsize for _, part in parts), default=4) // 4
            whole = np.zeros(self._rows, dtype=f"<U{max(width, 1)}")
            for rows, part in parts:
                whole[rows] = part
            np.save(self._path(name), whole, allow_pickle=False)
        return sorted(self._path(name) for name in (*self._files, *self._texts))


def open_table(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[Any]]:
    """A new .npy file mapped for writing, its room on the disk taken, so that a full disk is an error here.

    Raises:
        OSError: there is no room. (A write into a mapped file without room would end the process.)
    """
    table: np.memmap[Any, np.dtype[Any]] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return table


def write_rows(table: Array, rows: Indices, values: Array) -> None:
    """table[rows] = values; of a table on the disk, rows that follow each other as one piece, not page by page."""
    places = np.arange(len(table))[rows] if isinstance(rows, slice) else np.asarray(rows)
    if isinstance(table, np.memmap) and len(places) and bool((np.diff(places) == 1).all()):
        with Path(str(table.filename)).open("r+b") as file:
            file.seek(table.offset + int(places[0]) * table.strides[0])
            file.write(np.asarray(values, table.dtype, order="C").reshape(-1).view(np.uint8).data)
    else:
        table[rows] = values


def let_go(table: Array) -> None:
    """Give back the memory that a table on the disk, mapped read-only, was read into; any of it may be read again."""
    if isinstance(table.base, mmap.mmap) and not table.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        table.base.madvise(mmap.MADV_DONTNEED)


def load_columns(folder: Path) -> dict[str, Array]:
    """All columns of `folder`, memory-mapped."""
    files = sorted(folder.glob("*.npy"))
    return {file.stem: np.lib.format.open_memmap(file, mode="r") for file in files}  # no pickle, no archive
