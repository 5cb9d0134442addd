"""The run's directory: what is shareable, and `confidential/` for all else."""

from __future__ import annotations

import io
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.columns import ColumnWriter
from pe.data.population import Population
from pe.data.samples import Array, Indices
from pe.errors import RunError
from pe.run.durable import TEMPORARY, publish_folder, write_durably
from pe.run.journal import Journal

RECIPE = "recipe.yaml"
SYNTHETIC = "synthetic.npz"
EVOLUTION = "evolution.png"
CERTIFICATE = Path("certificate.json")
CONFIDENTIAL = "confidential"


@dataclass(frozen=True)
class Run:
    """A run on disk.

    Attributes:
        folder: the run's directory. All of it but `confidential/` is shareable.
        journal: every chunk, charge and release of the run.
    """

    folder: Path
    journal: Journal

    @classmethod
    def create(cls, folder: Path) -> Run:
        """A new run in `folder`, which must not exist yet.

        Raises:
            RunError: the folder exists.
        """
        cls.check_absent(folder)
        folder.mkdir(parents=True)
        (folder / "confidential").mkdir(mode=0o700)
        for part in ("populations", "releases", "confidential/chunks", "confidential/embeddings"):
            (folder / part).mkdir()
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in `folder`.

        Raises:
            RunError: there is none.
        """
        if not (folder / "confidential").is_dir():
            raise RunError(f"{folder} is not a run: it has no confidential/ folder.")
        return cls(folder, Journal(folder / "confidential" / "journal.sqlite"))

    @staticmethod
    def check_absent(folder: Path) -> None:
        """Refuse a folder that exists.

        Raises:
            RunError: it exists.
        """
        if folder.exists():
            raise RunError(f"{folder} exists already: name another directory for the run, or remove it.")

    @property
    def confidential(self) -> Path:
        """The folder of all that touched private data un-noised, and of the run's timings."""
        return self.folder / "confidential"

    def write(self, name: str, data: bytes | str) -> Path:
        """Put a file into the run, whole or not at all."""
        path = self.folder / name
        write_durably(path, data.encode() if isinstance(data, str) else data)
        return path

    def population(self, t: int) -> Population | None:
        """S_t, memory-mapped; None while it is not finished."""
        folder = self._population_folder(t)
        return Population.load(folder) if folder.is_dir() else None

    def add_population(
        self, t: int, labels: Array, parents: Array, parts: Iterable[tuple[Indices, Mapping[str, Any]]]
    ) -> Population:
        """Make S_t durable from its parts, each (rows, columns), and return it memory-mapped."""
        final = self._population_folder(t)
        temporary = final.with_name(final.name + TEMPORARY)
        temporary.mkdir(exist_ok=True)
        writer = ColumnWriter(temporary, len(labels))
        for rows, columns in parts:
            writer.put(rows, columns)
        np.save(temporary / "labels.npy", labels.astype(np.int32), allow_pickle=False)
        np.save(temporary / "parents.npy", parents.astype(np.int64), allow_pickle=False)
        writer.close()
        publish_folder(temporary, final)
        return Population.load(final)

    @property
    def synthetic(self) -> Population:
        """The finished population, memory-mapped.

        Raises:
            RunError: the run is not finished.
        """
        if not (self.folder / SYNTHETIC).is_file():
            raise RunError(f"{self.folder} is not finished: it has no {SYNTHETIC}.")
        last = max(int(folder.name) for folder in (self.folder / "populations").iterdir() if folder.name.isdecimal())
        return Population.load(self._population_folder(last))

    @property
    def certificate(self) -> str:
        """The certificate as a page of Markdown.

        Raises:
            RunError: the run is not finished.
        """
        return self._text(CERTIFICATE.with_suffix(".md").name)

    @property
    def guarantee(self) -> dict[str, Any]:
        """The certificate as JSON values: epsilon, delta, releases, covered files and so on.

        Raises:
            RunError: the run is not finished.
        """
        values: dict[str, Any] = json.loads(self._text(CERTIFICATE.name))
        return values

    def export(self, to: str | Path) -> Path:
        """Copy the shareable side of the run to the new folder `to`.

        Raises:
            RunError: `to` exists.
        """
        target = Path(to)
        self.check_absent(target)
        shutil.copytree(self.folder, target, ignore=_confidential_of(self.folder))
        return target

    def _text(self, name: str) -> str:
        path = self.folder / name
        if not path.is_file():
            raise RunError(f"{self.folder} is not finished: it has no {name}.")
        return path.read_text(encoding="utf-8")

    def write_synthetic(self, population: Population, classes: Sequence[str]) -> None:
        """Put the finished population into the run as `synthetic.npz`: images, labels and label_names."""
        names = np.array(classes)
        columns = {population.samples.kind: population.samples.array, "labels": population.labels, "label_names": names}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **columns)
        write_durably(self.folder / SYNTHETIC, buffer.getvalue())

    def _population_folder(self, t: int) -> Path:
        return self.folder / "populations" / f"{t:03d}"


def new_name(recipe_name: str) -> str:
    """`<recipe>-<UTC time>-<4 hex>`: a name for a run's directory."""
    return f"{recipe_name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def _confidential_of(folder: Path) -> Callable[[str, list[str]], list[str]]:
    def ignored(directory: str, _names: list[str]) -> list[str]:
        return [CONFIDENTIAL] if Path(directory) == folder else []

    return ignored
