"""Populations, and named arrays on disk.

Each column is one .npy file, which is written part by part and read memory-mapped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.arrays import BoolArray, Int32Array, Int64Array
from pe.data.display import paragraph, table, thumbnail
from pe.data.samples import (
    CONDITION,
    PART,
    Array,
    Conditions,
    Indices,
    Samples,
    kind_among,
    modality,
)
from pe.errors import ContractError, DamagedFile

MappedArray = np.memmap[Any, np.dtype[Any]]


class ColumnWriter:
    """Columns of `rows` rows in a folder, filled in any order without holding them in memory.

    Text columns are held until `close`, because their width is known only then. A column that only
    some samples have (`pe.data.samples.PART`) is 0, or empty, for all others.

    Raises:
        ContractError: a part has other columns, another dtype or another shape than the first one.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._rows = rows
        self._files: dict[str, MappedArray] = {}
        self._texts: dict[str, list[tuple[Indices, Array]]] = {}
        self._names: set[str] | None = None  # that every part has

    def put(self, rows: Indices, columns: Mapping[str, Array]) -> None:
        """Write a part: `columns[name][i]` becomes row `rows[i]`."""
        names = {name for name in columns if PART not in name.removeprefix(CONDITION)}
        if self._names is not None and self._names != names:
            raise ContractError(
                f"A generator's answers differ in their columns: {sorted(self._names ^ names)}."
            )
        self._names = names
        for name, column in columns.items():
            if column.dtype.kind == "U":
                self._texts.setdefault(name, []).append((rows, np.array(column)))
            else:
                self._target(name, column)[rows] = column

    def _target(self, name: str, column: Array) -> MappedArray:
        if name not in self._files:
            self._files[name] = open_table(
                self._path(name),
                column.dtype,
                (self._rows, *column.shape[1:]),
            )
        target = self._files[name]
        if target.dtype != column.dtype or target.shape[1:] != column.shape[1:]:
            form, first = (f"{a.dtype} {a.shape[1:]}" for a in (column, target))
            raise ContractError(
                f"All answers of one run have one shape: '{name}' came as {form} after {first}."
            )
        return target

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def close(self) -> list[Path]:
        """Finish all files and return their paths, sorted."""
        for file in self._files.values():
            file.flush()
        for name, parts in self._texts.items():
            whole = np.zeros(self._rows, np.result_type(*(part for _, part in parts)))
            for rows, part in parts:
                whole[rows] = part
            np.save(self._path(name), whole, allow_pickle=False)
        return sorted(self._path(name) for name in (*self._files, *self._texts))


def open_table(
    path: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> MappedArray:
    """Return a new .npy file that is mapped for writing, with its room on the disk reserved.

    A full disk is thus an OSError here. Later, a write into a mapped file would end the process.
    """
    table: MappedArray = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return table


def load_columns(folder: Path) -> dict[str, Array]:
    """Load all columns of `folder`, memory-mapped."""
    files = sorted(folder.glob("*.npy"))
    return {
        file.stem: np.lib.format.open_memmap(file, mode="r") for file in files
    }  # no pickle, no archive


# Populations: samples with the label each is evolved for, its condition and its parent.

Mask = BoolArray
NO_PARENT = -1
# in a notebook: labels, samples of each, characters of each text
_LABELS = 20
_SHOWN = 8
_BEGINNING = 300


@dataclass(frozen=True, eq=False)
class Population:
    """S_t of Algorithm 1, all labels together.

    Everything in it is public or drawn from noised releases.

    Attributes:
        samples: n samples.
        labels: int32 (n,), indices into the public class list: the private class that each sample
            is evolved for.
        conditions: the generator's own public conditions, n rows or no columns.
        parents: int64 (n,), index of the parent in the population before; NO_PARENT for founders.
    """

    samples: Samples
    labels: Int32Array
    conditions: Conditions
    parents: Int64Array

    def __post_init__(self) -> None:
        lengths = {
            len(self.samples),
            len(self.labels),
            len(self.parents),
            self.conditions.rows or len(self.samples),
        }
        if len(lengths) != 1:
            raise ContractError(f"A population's parts differ in length: {sorted(lengths)}.")

    def __len__(self) -> int:
        return len(self.samples)

    def _repr_html_(self) -> str:
        """Show some samples of each label in a notebook.

        Labels are numbers here; only the run knows their names.
        """
        rows = []
        labels = np.unique(self.labels)
        for label in labels[:_LABELS]:
            members = np.flatnonzero(self.labels == label)
            rows.append(
                (str(label), f"{len(members):,}", _cell(self.samples.take(members[:_SHOWN]), label))
            )
        rest = (
            f"; labels {labels[_LABELS]} and above are not shown" if len(labels) > _LABELS else ""
        )
        head = paragraph(f"Population of {len(self):,} {self.samples.noun}{rest}")
        return head + table(("label", self.samples.noun, f"the first {_SHOWN}"), rows)

    def take(self, indices: Indices) -> Population:
        """Return the members at `indices`, in that order, with their own parents."""
        samples = self.samples.take(indices)
        conditions = self.conditions.take(indices)
        return Population(samples, self.labels[indices], conditions, self.parents[indices])

    @staticmethod
    def columns(
        samples: Samples,
        conditions: Conditions,
        **others: Array,
    ) -> dict[str, Array]:
        """Return samples, conditions and other arrays of n rows, by the names of stored columns."""
        public = {f"{CONDITION}{name}": column for name, column in conditions.items()}
        return {samples.kind: samples.array, **public, **others}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Population:
        """Return the population that the stored arrays `columns` describe."""
        samples, conditions = parse_columns(columns)
        return cls(samples, columns["labels"], conditions, columns["parents"])

    @classmethod
    def load(cls, folder: Path) -> Population:
        """Load the population in a run's folder, memory-mapped.

        Raises:
            DamagedFile: it is missing or damaged.
        """
        if not folder.is_dir():
            raise DamagedFile(f"{folder} is missing: restore it from a copy.")
        try:
            population = cls.from_columns(load_columns(folder))
        except (
            ArithmeticError,
            ContractError,
            EOFError,
            IsADirectoryError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            raise DamagedFile(f"{folder} is damaged: restore it from a copy.") from error
        # The files may come from elsewhere: indices out of range would fail much later.
        samples = population.samples
        labels = population.labels
        parents = population.parents
        whole = labels.ndim == parents.ndim == 1 and labels.dtype.kind == parents.dtype.kind == "i"
        if not (
            whole and samples.check(samples.array) and (labels >= 0).all() and (parents >= -1).all()
        ):
            raise DamagedFile(f"{folder} is damaged: restore it from a copy.")
        return population


@dataclass(frozen=True, eq=False)
class Members:
    """The members of S_t as they follow from S_{t-1}.

    Member i is the candidate parents[i], unchanged if survives[i], else varied.
    """

    parents: Int64Array  # (n,)
    survives: Mask  # (n,)

    @classmethod
    def offspring(cls, parents: Int64Array) -> Members:
        """Return members that are variations of `parents`, one of each."""
        return cls(parents, np.zeros(len(parents), np.bool_))


def parse_columns(columns: Mapping[str, Array]) -> tuple[Samples, Conditions]:
    """Return the samples and conditions among the stored arrays `columns`."""
    kind = kind_among(columns.keys())
    conditions = {
        name.removeprefix(CONDITION): array
        for name, array in columns.items()
        if name.startswith(CONDITION)
    }
    return modality(kind)(columns[kind]), Conditions(conditions)


def _cell(samples: Samples, label: int) -> str:
    """Return samples of a label as HTML.

    Pictures stand side by side, and the beginnings of texts below each other.
    """
    if samples.is_text:
        texts = (
            text if len(text) <= _BEGINNING else f"{text[:_BEGINNING]} …"
            for text in samples.strings
        )
        return "".join(f'<div dir="auto">{escape(text)}</div>' for text in texts)
    return " ".join(
        thumbnail(image, f"label {label}, number {i}")
        for i, image in enumerate(samples.pictures(), 1)
    )
