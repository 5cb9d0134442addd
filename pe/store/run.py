"""A run on disk: read it, export it and purge it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import date
from html import escape
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pe.data.bounded import read_bytes
from pe.data.display import Page, paragraph, picture, table
from pe.data.population import Population
from pe.data.remote import is_remote
from pe.data.samples import Array
from pe.errors import BAD_FILES, DamagedFile, MissingDependency, RunError, printable, quoted
from pe.store import certified, places
from pe.store.durable import RunLock, level_times, sync, write_durably
from pe.store.export import export
from pe.store.formats import Format, arrow_schema, read_table
from pe.store.machine import bind, check_no_links, is_own


@dataclass(frozen=True)
class Run:
    """A run on disk, to be read. `pe.store.writer` writes it.

    Attributes:
        folder: the run's directory. All of it but `confidential/` is shareable.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Return the run in `folder`.

        Raises:
            RunError: there is none.
        """
        certified.check_run(Path(folder))
        return cls(Path(folder))

    @classmethod
    def open_own(cls, folder: str | Path, command: str) -> Run:
        """Return the run in `folder` for a `command` that writes into it.

        Raises:
            RunError: the folder is an export, which nobody changes.
        """
        run = cls.open(folder)
        check_no_links(run.folder)
        if certified.is_export(run.folder):
            raise RunError(
                f"`{command}` would write into {run.folder}, which is an export: it has no "
                f"{places.CONFIDENTIAL}/. Name the run that it was made from; or, if you received "
                f"it, check it by `pe verify {quoted(run.folder)}`, and call `mkdir -m 700 "
                f"{quoted(run.confidential)}` before you go on."
            )
        return run

    @property
    def name(self) -> str:
        """The name of the run's folder, which every page uses."""
        return os.fsencode(self.folder.resolve().name).decode(errors="replace")

    @property
    def confidential(self) -> Path:
        """The folder of times, and of all that comes from private data without noise.

        `pe purge` removes it.
        """
        return self.folder / places.CONFIDENTIAL

    @property
    def is_finished(self) -> bool:
        """True if the run has its certificate."""
        return (self.folder / places.CERTIFICATE).is_file()

    @property
    def noiseless(self) -> bool:
        """True if the run adds no noise, so that nothing is promised."""
        return (self.folder / places.BANNER).exists()

    def population(self, t: int) -> Population | None:
        """Load S_t, memory-mapped, or return None while it is not finished."""
        folder = self.folder / places.population_place(t)
        return Population.load(folder) if folder.is_dir() else None

    def founders(self) -> Population | None:
        """Load the random samples that S_0 holds, or holds variations of, memory-mapped.

        Returns None if there are none yet.
        """
        folder = self.folder / places.FOUNDERS
        return Population.load(folder) if folder.is_dir() else self.population(0)

    def populations(self, labels: int | None = None) -> list[Population]:
        """Load S_0, S_1, …, as far as they are finished, memory-mapped.

        Raises:
            DamagedFile: a population does not follow from the one before, or has labels beyond the
                first `labels`.
        """
        populations: list[Population] = []
        for t in count():
            one = self.population(t)
            if one is None:
                break
            before = populations[-1] if populations else None
            fits = before is None or (
                before.samples.shape == one.samples.shape and one.parents.max() < len(before)
            )
            if not fits or (labels is not None and one.labels.max() >= labels):
                place = self.folder / places.population_place(t)
                raise DamagedFile(f"{place} is damaged: restore it from a copy.")
            populations.append(one)
        return populations

    @property
    def synthetic(self) -> Population:
        """The finished population, memory-mapped."""
        certified.check_has_samples(self.folder)
        populations = self.populations()
        if not populations:
            raise RunError(f"{self.folder} has no populations: restore them from a copy.")
        return populations[-1]

    @property
    def degree(self) -> str | None:
        """A clause on how the generator varied its parents in the run's trial, or None."""
        path = self.folder / places.DEGREE
        return (
            printable(str(certified.read_json_file(path).get("told", "")))
            if path.is_file()
            else None
        )

    def extensions(self) -> list[Population]:
        """Load the populations that `pe extend` added and the certificate covers, memory-mapped.

        They are in order.
        """
        return list(certified.extensions(self.folder).values())

    @property
    def certificate(self) -> Page:
        """The certificate of a finished run as a page of Markdown, a `str`.

        A notebook shows it as it is printed.
        """
        return Page(certified.read_finished(self.folder, certified.PAGE))

    @property
    def guarantee(self) -> dict[str, Any]:
        """The certificate of a finished run as JSON values: epsilon, delta, releases and so on."""
        return certified.read_certificate(self.folder)

    def export(self, to: str | Path, form: Format = "npz") -> Path:
        """Copy what may be shared of the run to the new folder `to`.

        See `pe.store.export.export`.
        """
        return export(self.folder, Path(to), form)

    def to_torch(self) -> Any:
        """Return the final samples, with those of `pe extend`, as a data set of torch.

        It yields (sample, label). Images are float32, c×h×w in [0, 1], texts strings, other samples
        as stored; labels are int64, and index the label names, `classes` of the data set. A row is
        a mapping of columns to scalars: numbers, and days since 1970-01-01, are float64, NaN where
        they are missing; a category, ordinal or boolean is int64, its place among the declared
        values, and a missing one has the place after the last.

        Raises:
            RunError: the run is not finished.
            MissingDependency: torch is not installed. The two methods below raise the same errors.
        """
        torch = self._library("torch")
        table = read_table(self.folder)
        samples = table.kind(np.concatenate([part.samples.array for part in table.parts]))
        labels = np.concatenate([part.labels for part in table.parts]).astype(np.int64)
        if table.columns is not None:
            pairs = zip(table.columns.items(), table.columns.codes(samples).T, strict=True)
            numbers = {
                name: torch.from_numpy(_numbers(column, codes)) for (name, column), codes in pairs
            }
            content: Any = torch.utils.data.StackDataset(**numbers)
        elif samples.is_text:
            content = samples.strings
        else:
            content = torch.from_numpy(samples.array)
        if samples.feature.get("_type") == "Image":
            content = content.movedim(-1, 1) / 255
        dataset = torch.utils.data.StackDataset(content, torch.from_numpy(labels))
        dataset.classes = table.names
        return dataset

    def to_datasets(self) -> Any:
        """Return these samples as a `datasets.Dataset` with the columns of an export.

        The label is a ClassLabel.
        """
        datasets = self._library("datasets")
        table = read_table(self.folder)
        features = datasets.Features.from_arrow_schema(arrow_schema(table))
        features[table.label] = datasets.ClassLabel(names=table.names)
        return datasets.Dataset.from_list(list(table.entries()), features=features)

    def to_pandas(self) -> Any:
        """Return these samples as a data frame.

        It has `text`, `image` (bytes of a PNG file, path), or the columns of rows, and the label.
        The label, categories and ordinals are categorical; integers and booleans have pandas's
        nullable types where one is missing.
        """
        pandas = self._library("pandas")
        table = read_table(self.folder)
        frame = pandas.DataFrame(list(table.entries()))
        frame[table.label] = pandas.Categorical(frame[table.label], categories=table.names)
        for name, column in (table.columns or {}).items():
            if column.values:
                values = [column.value(code) for code in range(column.size)]
                dtype = pandas.CategoricalDtype(values, ordered=column.is_ordered)
            else:
                dtype = _DTYPES[column.kind][frame[name].hasnans]
            frame[name] = frame[name].astype(dtype)
        return frame

    def _library(self, name: str) -> Any:
        """Import a library for these samples.

        Raises:
            RunError: there are no samples.
            MissingDependency: the library is not installed.
        """
        certified.check_has_samples(self.folder)
        try:
            return import_module(name)
        except ImportError as error:
            raise MissingDependency(
                f"`run.to_{name}()` needs {name}, which is not installed. Call `pip install "
                f"{name}`."
            ) from error

    def _repr_html_(self) -> str:
        """Show the evolution, the guarantee and the labels in a notebook.

        An unfinished run shows how far it is.
        """
        name = self.folder.name
        if not self.is_finished:
            populations = self.populations()
            last = populations[-1]._repr_html_() if populations else ""
            state = (
                f"it has S_0 to S_{len(populations) - 1}, the last of them below"
                if populations
                else "it is empty"
            )
            return paragraph(f"Run {name} is not finished: {state}. `pe run RUN` goes on.") + last
        parts = [paragraph(f"Run {name}. {self.guarantee['statement']}")]
        evolution = self.folder / places.EVOLUTION
        if evolution.is_file():
            parts.append(
                picture(read_bytes(evolution), "one row per iteration, one column per label")
            )
        if (self.folder / places.SYNTHETIC).is_file():  # not in an export in another form
            with np.load(self.folder / places.SYNTHETIC, allow_pickle=False) as archive:
                names = archive["label_names"].tolist()
                counts = Counter(archive["labels"].tolist())
            rows = (
                (f"<bdi>{escape(label)}</bdi>", f"{counts[i]:,}") for i, label in enumerate(names)
            )
            parts.append(table(("label", "samples"), rows))
        return "".join(parts)


_DTYPES = {
    "integer": ("int64", "Int64"),
    "real": ("float64", "float64"),
    "boolean": ("bool", "boolean"),
    "date": ("datetime64[s]", "datetime64[s]"),
}
"""Kind of a column of rows → its dtype in pandas, and where values are missing."""


def _numbers(column: Any, codes: Array) -> Array:
    """Return a column of rows as `Run.to_torch` has it, from its codes, int64 (n,)."""
    if column.min is None:
        return np.ascontiguousarray(codes)
    cells = (column.cell(code) for code in codes.tolist())
    days = ((cell - date(1970, 1, 1)).days if isinstance(cell, date) else cell for cell in cells)
    return np.array([np.nan if day is None else day for day in days], np.float64)


_NOTE = (
    "All that was confidential in this run was deleted by `pe purge`.\n"
    "`pe extend` and `pe evaluate` make confidential/ anew; another `pe purge` deletes it.\n"
    "If a line of hexadecimal digits follows, the machine that made the run knows it by that.\n"
)


def purge(run: Run) -> None:
    """Delete `confidential/` of a finished run, and then record that it was done.

    The list of unreadable private files beside the data, which a refused start may have left, is
    deleted, too, if the run is this machine's own. Export, certificate and report work as before;
    noise can no longer be drawn, nor the private embeddings used again. A call that a crash
    interrupts is finished by another call. Deleting removes names: what a disk, its snapshots and
    backups still hold is not this software's to erase.
    """
    certified.read_certificate(run.folder)
    if run.confidential.is_symlink():
        raise RunError(
            f"{run.confidential} is a link. Delete what it points to, and the link, by hand."
        )
    if not run.confidential.is_dir():
        raise RunError(
            f"{run.folder} has no confidential side: it was purged before, or is an export."
        )
    path = run.confidential / "lock"
    with RunLock(path):
        try:
            own = bind(read_bytes(run.folder / places.RECIPE)) if is_own(run.folder) else b""
            if is_own(run.folder, places.FULL_RECIPE):  # else it may name anybody's file
                _delete_list(run.folder / places.FULL_RECIPE)
            _delete(run, path)
            write_durably(run.folder / places.PURGED, _NOTE.encode() + own)
            certified.reissue(run.folder, [places.PURGED])
            path.unlink()
            run.confidential.rmdir()
            sync(run.folder)
            level_times(run.folder)
        except OSError as error:
            raise RunError(
                f"{error.filename or run.confidential} cannot be deleted: {error.strerror}."
            ) from error


def _delete_list(recipe: Path) -> None:
    """Delete `<data>.bad-files.txt` beside the data that a run's full recipe names."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    place = content.get("private", {}).get("path")
    if place is not None and not is_remote(place):
        data = Path(place).resolve()
        list_file = data.with_name(BAD_FILES.format(data.name))
        if list_file.exists():
            list_file.unlink()


def _delete(run: Run, lock: Path) -> None:
    """Delete, durably, everything confidential but the lock."""
    # The recipe goes first, and without it a run is not resumed: a half-deleted journal must never
    # be gone on with, because the charges that it has forgotten would be drawn anew.
    (run.folder / places.FULL_RECIPE).unlink(missing_ok=True)
    sync(run.confidential)
    for path in sorted(run.confidential.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            sync(path)
            path.rmdir()
        elif path != lock:
            path.unlink()
    sync(run.confidential)
