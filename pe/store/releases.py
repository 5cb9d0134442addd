"""The ledger's store in a run: charges in the journal, noisy arrays in the shareable folder `releases/`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pe.errors import DamagedFile, PrivacyError, RunError
from pe.privacy.covered import RELEASES, release_file
from pe.privacy.release import Release
from pe.privacy.store import Array, StoredRelease
from pe.store.durable import TEMPORARY, sha256, write_durably
from pe.store.journal import Journal
from pe.store.writer import RunWriter


class JournalReleases:
    """A `pe.privacy.store.ReleaseStore` whose every record survives a crash of the process and the machine.

    A noisy array is a file written on the confidential side, synced and moved to `releases/`, and then a row.
    A file that a crash left there without its row is whole, so it is taken as the draw that it is. One that was
    not moved yet was nowhere to be seen, and is destroyed when the run is reopened. So no draw that was not kept
    leaves a trace.
    """

    def __init__(self, run: RunWriter, note: Callable[[], None] = lambda: None) -> None:
        """Reads what the run has stored.

        Args:
            run: the run.
            note: called before the first charge, and whenever one more array has been stored; what it raises stops the
                release.

        Raises:
            RunError: a noisy array was kept, and its file is gone or changed; or a file is there that was
                never charged, as when the journal was lost.
        """
        self._run, self._note = run, note
        self._stored: dict[str, StoredRelease] = {}
        for release, unsafe in stored_charges(run.journal):
            self._count(release, unsafe)
            self._stored[release.name] = replace(self._stored[release.name], array=self._read(release.name))
        known_files = {release_file(name) for name in self._stored}
        for path in sorted((run.folder / RELEASES).iterdir()):
            if f"{RELEASES}/{path.name}" not in known_files:
                raise RunError(
                    f"{path} was released, and the journal does not know of it, so it was lost: start a new run, "
                    "whose ε adds to this one's."
                )

    def find(self, name: str) -> StoredRelease | None:
        """What is stored under `name`, a whole file that lacks its row included; None if it was never charged."""
        found = self._stored.get(name)
        if found is not None and found.array is None:
            found = self._stored[name] = replace(found, array=self._read(name))
        return found

    def charged(self) -> Sequence[StoredRelease]:
        """Every release ever charged, in the order of the first charge."""
        return tuple(self._stored.values())

    def charge(self, release: Release, unsafe: bool) -> None:
        """Record one more charge, durably."""
        if not self._stored:
            self._note()
        self._run.journal.charge(release.name, json.dumps(release.to_dict()), unsafe)
        self._count(release, unsafe)

    def keep(self, name: str, array: Array) -> None:
        """Store the noisy array of a charged release, all of it or nothing."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        path = self._run.folder / release_file(name)
        digest = write_durably(path, buffer.getvalue(), by_way_of=self._unseen(name).parent)
        self._run.journal.add_release(name, release_file(name), digest)
        self._note()
        self._stored[name] = replace(self._stored[name], array=self._read(name))

    def traces(self, name: str) -> bool:
        """Whether a file of a draw that was not kept exists."""
        return self._unseen(name).exists()

    def _unseen(self, name: str) -> Path:
        """Where a draw lies until it is kept."""
        return self._run.run.confidential / (Path(release_file(name)).name + TEMPORARY)

    def _count(self, release: Release, unsafe: bool) -> None:
        before = self._stored.get(release.name)
        charges = 1 if before is None else before.charges + 1
        unsafe = unsafe or (before is not None and before.unsafe)
        self._stored[release.name] = StoredRelease(release if before is None else before.release, charges, unsafe, None)

    def _read(self, name: str) -> Array | None:
        row = self._run.journal.release(name)
        if row is None:
            path = self._run.folder / release_file(name)
            if not path.is_file():
                return None
            row = (release_file(name), sha256(path))
            self._run.journal.add_release(name, *row)
        path, digest = self._run.folder / row[0], row[1]
        if not path.is_file() or sha256(path) != digest:
            raise RunError(f"{path} is missing or was changed after it was released: restore it from a copy.")
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)  # the blocks of a fit may be large
        return array


def stored_charges(journal: Journal) -> list[tuple[Release, bool]]:
    """All charges, in order: the release, and whether it is unsafe.

    Raises:
        DamagedFile: a charge is not what was written.
    """
    charges = []
    for name, declared, unsafe in journal.charges():
        try:
            release = Release.from_dict(json.loads(declared))
        except (ValueError, PrivacyError) as error:
            raise DamagedFile(f"The charge of '{name}' in the journal is damaged: restore it from a copy.") from error
        if release.name != name:
            raise DamagedFile(f"The charge of '{name}' in the journal is that of another: restore it from a copy.")
        charges.append((release, unsafe))
    return charges
