"""A run that this process writes: lock, journal, stored releases and files.

Every file is whole or absent.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from pe.data.population import ColumnWriter, Population
from pe.data.samples import CAPTION, SOFT_LABEL, Array, Indices
from pe.errors import DamagedFile, PrivacyError, RunError
from pe.privacy.covered import RELEASES, release_file
from pe.privacy.ledger import MemoryStore, StoredRelease
from pe.privacy.release import Release
from pe.store import places
from pe.store.durable import (
    TEMPORARY,
    RunLock,
    check_local,
    durable_file,
    folder_beside,
    level_confidential,
    publish_folder,
    remove_unfinished,
    sha256,
    sync,
    write_durably,
    writing,
)
from pe.store.journal import Journal
from pe.store.machine import check_no_links
from pe.store.run import Run

_JOURNAL = "journal.sqlite"


@dataclass(frozen=True)
class RunWriter:
    """A run that this process may write. A context manager that closes it at the end."""

    run: Run
    journal: Journal  # every chunk, charge, release and change of state
    lock: RunLock  # held until `close`

    @classmethod
    def create(cls, folder: Path, files: Mapping[str, bytes]) -> RunWriter:
        """Make a run in the new folder `folder` that holds `files` (name → content).

        It appears whole or not at all.
        """
        places.check_absent(folder)
        check_local(folder)
        with writing(folder), folder_beside(folder) as temporary:
            for part in ("populations", "releases"):
                (temporary / part).mkdir()
            (temporary / places.CONFIDENTIAL).mkdir(mode=0o700)
            for name, content in files.items():
                write_durably(temporary / name, content)
            temporary.rename(folder)
            sync(folder.parent)
        return cls._begin(folder)

    @classmethod
    def reopen(cls, folder: Path) -> RunWriter:
        """Open the run in `folder` to go on with it.

        After `pe purge` it begins a new confidential side.
        """
        Run.open(folder)
        check_no_links(folder)
        check_local(folder)
        writer = cls._begin(folder)
        try:
            with writing(folder):
                remove_unfinished(folder)
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def _begin(cls, folder: Path) -> RunWriter:
        confidential = folder / places.CONFIDENTIAL
        with writing(folder):
            confidential.mkdir(mode=0o700, exist_ok=True)
            for part in ("chunks", "embeddings"):
                (confidential / part).mkdir(exist_ok=True)
            sync(folder)
        lock = RunLock(confidential / "lock")
        try:
            journal = Journal(confidential / _JOURNAL)
        except BaseException:
            lock.release()
            raise
        return cls(Run(folder), journal, lock)

    def close(self) -> None:
        """Close the journal, level the times of the confidential side, and let go of the lock."""
        try:
            self.journal.close()
            level_confidential(self.folder)
        finally:
            self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self.run.folder

    @property
    def chunks(self) -> Path:
        """The folder of answers whose population is not whole yet."""
        return self.run.confidential / "chunks"

    def write(self, name: str, data: bytes | str) -> None:
        """Put a file into the run, whole or not at all."""
        write_durably(self.folder / name, data.encode() if isinstance(data, str) else data)

    def set_waiting(self, words: str) -> None:
        """Note for `pe view` what the run waits for, or with "" that it waits no longer."""
        if words:
            self.write(places.WAITING, words)
        else:
            (self.folder / places.WAITING).unlink(missing_ok=True)

    def population(self, place: str) -> Population | None:
        """Load the finished population in the run's folder `place`, or None while unfinished.

        `check_files` comes first.
        """
        if not self.journal.files(f"{place}/"):
            return None
        self.check_files(f"{place}/")
        return Population.load(self.folder / place)

    def check_files(self, prefix: str) -> None:
        """Raise DamagedFile if a file whose name starts with `prefix` is missing or was changed."""
        for name, digest in self.journal.files(prefix).items():
            path = self.folder / name
            if not path.is_file() or sha256(path) != digest:
                raise DamagedFile(
                    f"{path} is missing or was changed after it was written. Restore it from a "
                    "copy."
                )

    def add_population(
        self,
        place: str,
        labels: Array,
        parents: Array,
        parts: Iterable[tuple[Indices, Mapping[str, Any]]],
    ) -> Population:
        """Make a population durable in the run's folder `place` from parts of (rows, columns)."""
        final = self.folder / place
        with self._folder_to_fill(final) as temporary:
            writer = ColumnWriter(temporary, len(labels))
            for rows, columns in parts:
                writer.put(rows, columns)
            np.save(temporary / "labels.npy", labels.astype(np.int32), allow_pickle=False)
            np.save(temporary / "parents.npy", parents.astype(np.int64), allow_pickle=False)
            writer.close()
            digests = {f"{place}/{path.name}": sha256(path) for path in temporary.iterdir()}
            # votes that were released for a population hold for the same bits alone
            before = self.journal.files(f"{place}/")
            if before and before != digests:
                raise DamagedFile(
                    f"{final} was damaged, and could not be made again with the same bits, since "
                    "another GPU or machine may round differently. Restore it from a copy."
                )
        self.journal.add_files(digests)
        return Population.load(final)

    @contextmanager
    def new_folder(self, name: str) -> Iterator[Path]:
        """Make a folder to be filled, which appears in the run under `name` whole or not at all.

        It is durable. Whoever may read the run may read its files, whatever mode a library
        (safetensors: 0600) gave them.
        """
        with self._folder_to_fill(self.folder / name) as temporary:
            yield temporary
            files = [path for path in temporary.rglob("*") if path.is_file()]
            for path in files:
                path.chmod(temporary.stat().st_mode & 0o666)
            digests = {
                f"{name}/{path.relative_to(temporary).as_posix()}": sha256(path) for path in files
            }
        self.journal.add_files(digests)

    @contextmanager
    def _folder_to_fill(self, final: Path) -> Iterator[Path]:
        temporary = final.with_name(final.name + TEMPORARY)
        with writing(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            publish_folder(temporary, final)

    def shareable_files(self) -> dict[str, str]:
        """Return name → SHA-256 of each shareable file that the run wrote, except the certificate.

        Stray files are left out.
        """
        names = (
            places.RECIPE,
            places.BANNER,
            places.SYNTHETIC,
            places.EVOLUTION,
            places.PUBLIC_SAMPLES,
            places.DEGREE,
        )
        own = {name: sha256(self.folder / name) for name in names if (self.folder / name).is_file()}
        entries = {**own, **self.journal.releases(), **self.journal.files("")}
        return {
            name: entries[name]
            for name in sorted(entries)
            if not name.startswith(f"{places.CONFIDENTIAL}/")
        }

    def write_samples(self, name: str, population: Population, classes: Sequence[str]) -> None:
        """Put a population into the run as the .npz file `name`.

        It holds samples, labels, label names, soft labels and captions.
        """
        names = np.array(classes)
        columns = {
            population.samples.kind: population.samples.array,
            "labels": population.labels,
            "label_names": names,
        }
        if SOFT_LABEL in population.conditions:
            columns["soft_labels"] = population.conditions[SOFT_LABEL]
        if CAPTION in population.conditions:
            columns["captions"] = population.conditions[CAPTION]
        with durable_file(self.folder / name) as file:
            np.savez(file, allow_pickle=False, **columns)


def has_journal(run: Run) -> bool:
    """Return True if a run has a journal, which a purged run and an export lack."""
    return (run.confidential / _JOURNAL).is_file()


@contextmanager
def read_journal(run: Run) -> Iterator[Journal]:
    """Open the journal of a run to read it, while another process may write it.

    Raises:
        RunError: the run was purged.
    """
    if not has_journal(run):
        raise RunError(f"{run.folder} has no journal: its confidential side was purged.")
    journal = Journal(run.confidential / _JOURNAL, reading=True)
    try:
        yield journal
    finally:
        journal.close()
        level_confidential(run.folder)


class JournalReleases(MemoryStore):
    """The charges and releases of a run, which survive a crash of the process and the machine.

    Charges are in the journal, noisy arrays in the shareable folder `releases/`. An array is
    written on the confidential side, synced and moved to `releases/`, and then entered as a row. A
    file that a crash left in `releases/` without its row is whole, so it counts as the draw. A file
    that was not moved yet was never shareable, and is deleted when the run is reopened. So no draw
    that was not kept leaves a trace.

    `note` is called before the first charge, and whenever one more array has been stored; if it
    raises, the release stops.

    Raises:
        RunError: a stored array is gone or changed, or a file was never charged, for example
            because the journal was lost.
    """

    def __init__(self, run: RunWriter, note: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._run = run
        self._note = note
        for release, unsafe in stored_charges(run.journal):
            super().charge(release, unsafe)
        for name in self._releases:
            self.find(name)
        charged_files = {release_file(name) for name in self._releases}
        for path in sorted((run.folder / RELEASES).iterdir()):
            if f"{RELEASES}/{path.name}" not in charged_files:
                raise RunError(
                    f"{path} was released, but the journal does not know of it, so the journal was "
                    "lost. Start a new run; its ε adds to this one's."
                )

    def find(self, name: str) -> StoredRelease | None:
        """Return the release `name`, or None if it was not charged.

        Its array may be one whose file a crash left without a row.
        """
        release = super().find(name)
        if release is not None and release.array is None:
            release = replace(release, array=self._read(name))
            self._releases[name] = release
        return release

    def charge(self, release: Release, unsafe: bool) -> None:
        """Record one more charge, durably."""
        if not self._releases:
            self._note()
        self._run.journal.charge(release.name, json.dumps(release.to_dict()), unsafe)
        super().charge(release, unsafe)

    def keep(self, name: str, array: Array) -> None:
        """Store the noisy array of a charged release, all of it or nothing."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        path = self._run.folder / release_file(name)
        digest = write_durably(path, buffer.getvalue(), by_way_of=self._unseen(name).parent)
        self._run.journal.add_release(name, release_file(name), digest)
        self._note()
        self.find(name)

    def traces(self, name: str) -> bool:
        """Return True if the file of a draw that was not kept exists."""
        return self._unseen(name).exists()

    def _unseen(self, name: str) -> Path:
        """Return the path at which a drawn array lies until it is kept."""
        return self._run.run.confidential / (Path(release_file(name)).name + TEMPORARY)

    def _read(self, name: str) -> Array | None:
        row = self._run.journal.release(name)
        if row is None:
            path = self._run.folder / release_file(name)
            if not path.is_file():
                return None
            row = (release_file(name), sha256(path))
            self._run.journal.add_release(name, *row)
        file, digest = row
        path = self._run.folder / file
        if not path.is_file() or sha256(path) != digest:
            raise RunError(
                f"{path} is missing or was changed after it was released. Restore it from a copy."
            )
        # mapped, since the blocks of a fit may be large
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array


def stored_charges(journal: Journal) -> list[tuple[Release, bool]]:
    """Return all charges, in order, each as the release and True if it is unsafe.

    Raises:
        DamagedFile: a charge was changed.
    """
    charges = []
    for name, terms, unsafe in journal.charges():
        try:
            release = Release.from_dict(json.loads(terms))
        except (ValueError, PrivacyError) as error:
            raise DamagedFile(
                f"The charge of '{name}' in the journal is damaged. Restore it from a copy."
            ) from error
        if release.name != name:
            raise DamagedFile(
                f"The charge of '{name}' in the journal is that of another. Restore it from a copy."
            )
        charges.append((release, unsafe))
    return charges
