"""Populations: samples with the label each is evolved for, its condition and its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pe.data.columns import load_columns
from pe.data.conditions import CONDITION, Conditions
from pe.data.display import paragraph, table, thumbnail
from pe.data.samples import Array, Indices, Readable, Samples, kind_among, modality
from pe.errors import ContractError, DamagedFile

Mask = npt.NDArray[np.bool_]
NO_PARENT = -1
_LABELS, _SHOWN, _BEGINNING = 20, 8, 300  # in a notebook: labels, samples of each, characters of each text


@dataclass(frozen=True, eq=False)
class Population:
    """S_t of Algorithm 1, all labels together. Everything in it is public or drawn from noised releases.

    Attributes:
        samples: n samples.
        labels: int32 (n,), index into the public class list: the private class the sample is evolved for.
        conditions: the generator's own public conditions, n rows or no columns.
        parents: int64 (n,), index of the parent in the population before; NO_PARENT for founders.
    """

    samples: Samples
    labels: npt.NDArray[np.int32]
    conditions: Conditions
    parents: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(self.samples), len(self.labels), len(self.parents), self.conditions.rows or len(self.samples)}
        if len(lengths) != 1:
            raise ContractError(f"A population's parts differ in length: {sorted(lengths)}.")

    def __len__(self) -> int:
        return len(self.samples)

    def _repr_html_(self) -> str:
        """Some samples of each label, for a notebook; labels are numbers here, and the run has their names."""
        rows, labels = [], np.unique(self.labels)
        for label in labels[:_LABELS]:
            members = np.flatnonzero(self.labels == label)
            shown = self.samples.take(members[:_SHOWN])
            rows.append((str(label), f"{len(members):,}", _cell(shown, label)))
        left = f"; labels {labels[_LABELS]} and above are not shown" if len(labels) > _LABELS else ""
        head = paragraph(f"Population of {len(self):,} {self.samples.noun}{left}")
        return head + table(("label", self.samples.noun, f"the first {_SHOWN}"), rows)

    def take(self, indices: Indices) -> Population:
        """The members at `indices`, in that order, with their own parents."""
        return Population(
            self.samples.take(indices), self.labels[indices], self.conditions.take(indices), self.parents[indices]
        )

    @staticmethod
    def columns(samples: Samples, conditions: Conditions, **others: Array) -> dict[str, Array]:
        """Samples and conditions (and other arrays of n rows) as named arrays, as they are stored."""
        named = {f"{CONDITION}{name}": column for name, column in conditions.items()}
        return {samples.kind: samples.array, **named, **others}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Population:
        """The population that the stored arrays `columns` describe."""
        samples, conditions = parse_columns(columns)
        return cls(samples, columns["labels"], conditions, columns["parents"])

    @classmethod
    def load(cls, folder: Path) -> Population:
        """The population of a run's folder, memory-mapped.

        Raises:
            DamagedFile: a column is missing, or not what this software writes.
        """
        if not folder.is_dir():
            raise DamagedFile(f"{folder} is missing: restore it from a copy.")
        try:
            found = cls.from_columns(load_columns(folder))
        except (ArithmeticError, ContractError, EOFError, IsADirectoryError, KeyError, TypeError, ValueError) as error:
            raise DamagedFile(f"{folder} is damaged: restore it from a copy.") from error
        labels, parents = found.labels, found.parents
        whole = labels.ndim == parents.ndim == 1 and labels.dtype.kind == parents.dtype.kind == "i"
        if not (whole and found.samples.check(found.samples.array) and (labels >= 0).all() and (parents >= -1).all()):
            raise DamagedFile(f"{folder} is damaged: restore it from a copy.")
        return found


@dataclass(frozen=True, eq=False)
class Members:
    """S_t as it follows from S_{t-1}: member i is the candidate parents[i], as it is where kept[i], else varied.

    Attributes:
        parents: int64 (n,).
        kept: bool (n,).
    """

    parents: npt.NDArray[np.int64]
    kept: Mask

    @classmethod
    def offspring(cls, parents: npt.NDArray[np.int64]) -> Members:
        """A variation of each of `parents`."""
        return cls(parents, np.zeros(len(parents), np.bool_))


def parse_columns(columns: Mapping[str, Array]) -> tuple[Samples, Conditions]:
    """The samples and conditions among the stored arrays `columns`."""
    kind = kind_among(columns.keys())
    conditions = {name.removeprefix(CONDITION): array for name, array in columns.items() if name.startswith(CONDITION)}
    return modality(kind)(columns[kind]), Conditions(conditions)


def _cell(samples: Samples, label: int) -> str:
    """Samples of a label side by side; texts by their beginnings, below each other."""
    if isinstance(samples, Readable):
        return "".join(f'<div dir="auto">{escape(_beginning(text))}</div>' for text in samples.strings)
    return " ".join(thumbnail(image, f"label {label}, number {i}") for i, image in enumerate(samples.pictures(), 1))


def _beginning(text: str) -> str:
    return text if len(text) <= _BEGINNING else f"{text[:_BEGINNING]} …"
