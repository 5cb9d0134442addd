"""The private records of a run, and the public samples compared with them."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pe.data.bounded import read_bytes
from pe.data.samples import Shape
from pe.data.strict_json import json_object
from pe.errors import DamagedFile, PEError, RecipeError, RunError
from pe.fit.trainer import PrivateRecords
from pe.histogram import PrivateWork
from pe.planning.checks import data_set_ledger, reads_public
from pe.planning.deadlines import EMBEDDING
from pe.plugins.embed import check_comparable, try_embedding
from pe.plugins.protocols import Embedding, ReadsPublicSamples
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import PublicClock
from pe.privacy.release import Release
from pe.private.dataset import Digests, Preflight, PrivateDataset, find_copies, listing
from pe.private.embeddings import FILE, PrivateEmbeddings, embed_private, load_private
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.certified import read_json_file
from pe.store.durable import sha256, writing
from pe.store.places import CONFIDENTIAL, PUBLIC_SAMPLES
from pe.store.run import Run
from pe.store.writer import JournalReleases, RunWriter, has_journal

IDENTITY = f"{CONFIDENTIAL}/identity.json"
_UNKNOWN = 0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """The identity of a run and its private records. Confidential."""

    key: str  # the key of the fingerprint, hexadecimal
    fingerprint: str  # the private records' fingerprint under the key
    # the run's own random name in the data set's ledger file; empty before it is entered there
    run: str = ""
    # of the run's directory when the run was entered; a copy of the directory has another
    inode: int = _UNKNOWN

    def is_of(self, folder: Path) -> bool:
        """True if `folder` is the directory that was entered, not a copy, or if none was."""
        return self.inode in (folder.stat().st_ino, _UNKNOWN)

    def dump(self) -> bytes:
        """Return the content of the file IDENTITY."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, run: RunWriter) -> Identity:
        """Read the identity of a run."""
        path = run.folder / IDENTITY
        if not path.is_file():
            raise RunError(
                f"{run.folder} has lost {IDENTITY}, and noise is still to be drawn: start a new "
                "run."
            )
        try:
            return cls(**json_object(read_bytes(path).decode()))
        except (ValueError, TypeError) as error:
            raise DamagedFile(f"{path} is damaged: restore it from a copy.") from error


@dataclass
class PrivateSide:
    """The private records while a run goes on. Nothing is read before it is needed."""

    source: PrivateSource
    embedding: Embedding
    progress: Progress  # is told that something happens, never how much
    work: PrivateWork
    # holds the embedding back until its deadline, if it has one
    clock: PublicClock = field(default_factory=PublicClock, init=False)
    _vectors: PrivateEmbeddings | None = field(default=None, init=False)
    _preflight: Preflight | None = field(default=None, init=False)

    @cached_property
    def dataset(self) -> PrivateDataset:
        """The records, opened when they are first asked for."""
        return self.source.open()

    def records(self) -> PrivateRecords:
        """Return all readable records, in memory, for a generator that is fitted on them."""
        return PrivateRecords.of(self.dataset)

    def preflight(self) -> Identity:
        """Check all records before the run exists. Return their identity under a new key."""
        key = secrets.token_hex(32)
        return Identity(key, self._fingerprint(key))

    def _fingerprint(self, key: str) -> str:
        with self.progress.task("checking private records", None), listing(self.source.place):
            self._preflight = self.dataset.preflight(bytes.fromhex(key))
        return self._preflight.fingerprint

    def log_bad_records(self) -> None:
        """Name the records that cast no vote, in the run's confidential log alone.

        The run goes on without them.
        """
        if self._preflight is None:
            return
        for record in self._preflight.bad:
            log.warning("Record %d casts no vote: %s", record.index, record.reason)
        for remark in self._preflight.remarks:
            log.warning("%s", remark)

    def recognise(self, run: RunWriter) -> None:
        """Check, by their fingerprint, that the records are those that the run began with."""
        identity = Identity.of(run)
        if self._fingerprint(identity.key) != identity.fingerprint:
            raise RunError(
                f"The private records differ from those that {run.folder} began with: restore "
                "them, or start a new run (its ε adds to this one's)."
            )

    @property
    def digests(self) -> Digests:
        """The digests of the readable records, once they were read. CONFIDENTIAL."""
        assert self._preflight is not None
        return self._preflight.digests

    def try_embedding(self, shape: Shape | None) -> None:
        """Try the embedding on made-up samples, before anything is asked for.

        It is also tried on the generator's `shape`.
        """
        with self.progress.task("trying the embedding", None):
            try_embedding(self.embedding, self.source.modality, self.source.shape)
            if shape is not None and shape != self.source.shape:
                check_comparable(self.embedding, self.source.modality, self.source.shape, shape)

    def embeddings(self, run: RunWriter) -> PrivateEmbeddings:
        """Return the records' embeddings: computed once per run, kept in confidential/."""
        if self._vectors is None:
            name = f"{CONFIDENTIAL}/embeddings/{FILE}"
            path = run.folder / name
            if path.is_file() and run.journal.files(name) == {name: sha256(path)}:
                self._vectors = load_private(self.dataset, path.parent)
            else:
                dataset = self.dataset
                until = self.clock.hold(EMBEDDING)
                with self.progress.task("embedding private records", None), until, writing(path):
                    self._vectors = embed_private(
                        dataset,
                        self.embedding,
                        path.parent,
                        self.work.embed,
                    )
                    run.journal.add_files({name: sha256(path)})
        return self._vectors

    # The data set's ledger file; a source without a place on disk has none.

    @property
    def _data_set(self) -> DataSetLedger | None:
        return data_set_ledger(self.source)

    def check_cap(self, releases: Sequence[Release]) -> None:
        """Refuse a new run that the data set's cap forbids, before the run exists."""
        data_set = self._data_set
        if data_set is not None:
            data_set.check(releases)

    def enter(
        self,
        run: RunWriter,
        releases: Sequence[Release],
        delta: float,
    ) -> dict[str, Any] | None:
        """Enter the run into the data set's ledger file before anything is released.

        Entering it again changes nothing.

        A copy of a run's directory, or an older state of it, is entered as another run: it is about
        to draw once more what the first has drawn, or may draw. Return the data set's total over
        all runs; None without a ledger file.
        """
        data_set = self._data_set
        if data_set is None:
            return None
        identity = Identity.of(run)
        here = run.folder.stat().st_ino
        is_older = data_set.draw_count(identity.run) > len(run.journal.releases())
        if identity.run and (is_older or not identity.is_of(run.folder)):
            self.progress.warn(
                f"{run.folder} is a copy, or was restored: it counts as one more run of the data "
                "set's ledger."
            )
            identity = replace(identity, run="")
        if not identity.run or identity.inode != here:
            identity = replace(identity, run=identity.run or secrets.token_hex(16), inode=here)
            run.write(IDENTITY, identity.dump())
        total = data_set.enter(identity.run, releases, delta)
        self._preflight = None  # 32 bytes a record that nothing needs any more
        return total

    def note_draw(self, run: RunWriter) -> None:
        """Note in the data set's ledger file that a draw begins, or one more release is kept."""
        data_set = self._data_set
        if data_set is not None:
            data_set.drew(Identity.of(run).run, len(run.journal.releases()))

    def leave(self, run: RunWriter) -> None:
        """Strike a run that has drawn nothing out of the data set's ledger file.

        If it goes on, it is entered again.

        Where that cannot be done, the entry stays: the total is too high, and never too low.
        """
        try:
            data_set = self._data_set
            if data_set is not None:
                data_set.strike(Identity.of(run).run)
        except PEError as error:
            log.warning(
                "The run stays in the data set's ledger, though it has drawn nothing: %s",
                error,
            )

    def total(self, delta: float) -> dict[str, Any] | None:
        """Return the data set's total as it stands now. None without a ledger file."""
        data_set = self._data_set
        return None if data_set is None else data_set.total(delta)


def forget_run(folder: Path, ledger: DataSetLedger) -> None:
    """Strike the run in `folder` out of `ledger`, durably.

    If it goes on, it is entered again before it draws.

    Both must say that nothing was drawn: the run's journal, under the run's lock, and the ledger
    file, which notes when a run begins to draw; so neither an older state of the run nor a copy of
    it serves to strike out what was drawn.
    """
    run = Run.open(folder)
    if not has_journal(run):
        raise RunError(
            f"{folder} has no journal, which alone can tell that nothing was drawn: its entry "
            "stays."
        )
    with RunWriter.reopen(folder) as writer:
        identity = Identity.of(writer)
        # A journal that was begun later cannot tell what was drawn before it.
        if not writer.journal.has_event("started"):
            raise RunError(
                f"{folder} has lost its first journal, so what was drawn is unknown: its entry "
                "stays."
            )
        names = [one.release.name for one in JournalReleases(writer).charges()]
        if names:
            raise RunError(
                f"{folder} has drawn noise for {', '.join(names)}, which counts for good: its "
                "entry stays."
            )
        if not identity.is_of(folder):
            raise RunError(
                f"{folder} is a copy, or was moved to another disk: resume it, or forget the first."
            )
        ledger.strike(identity.run)
        writer.journal.add_event("struck out of the data set's ledger")


@dataclass(frozen=True)
class PublicPool:
    """The public samples that plug-ins read.

    They must not change during the run, and images must not be copies of private ones.
    """

    readers: Mapping[str, ReadsPublicSamples]  # section of the recipe → the plug-in that reads them
    is_compared: bool  # True if a public image that is a private record is refused
    source: PrivateSource  # of the private records; public samples are decoded to its shape
    progress: Progress

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        plugins: Mapping[str, object],
        progress: Progress,
    ) -> PublicPool | None:
        """Return the pool of `plugins`, by recipe section.

        There is none if no plug-in reads samples, or all their files are gone. Files may be gone
        where a model that another run fitted with them needs them no more; a warning names them.
        """
        readers: dict[str, ReadsPublicSamples] = {}
        for section, plugin in plugins.items():
            if not reads_public(plugin):
                continue
            missing = [path for path in plugin.public_paths() if not path.exists()]
            if missing:
                noun = recipe.private.modality.noun
                progress.warn(
                    f"The public {noun} {missing[0]} are not there, so they cannot be checked."
                )
            else:
                readers[section] = plugin
        is_compared = recipe.privacy.pool_overlaps == "refused"
        return cls(readers, is_compared, recipe.private, progress) if readers else None

    def pin(self, private: PrivateSide) -> bytes:
        """Refuse images that are private records, if `is_compared`.

        Return the content of PUBLIC_SAMPLES.
        """
        found = self._read(private.digests if self.is_compared else ())
        for content, copies in found.values():
            if copies:
                raise RecipeError(
                    f"{len(copies):,} of {content['samples']:,} public {self._noun} are private "
                    f"records, to the last bit (the first: {copies[0]}). Use public {self._noun} "
                    "from another source. If the private records are published, set "
                    "`privacy.pool_overlaps: declared`."
                )
        contents = {section: content for section, (content, _) in found.items()}
        return f"{json.dumps(contents)}\n".encode()

    def check_same(self, folder: Path) -> None:
        """Refuse to go on with the run in `folder` if its public samples have changed."""
        path = folder / PUBLIC_SAMPLES
        if not path.is_file():
            raise DamagedFile(f"{path} is gone: restore it from a copy.")
        first = read_json_file(path)
        for section, (content, _) in self._read(()).items():
            if first.get(section) != content:
                places = ", ".join(map(str, self.readers[section].public_paths()))
                raise RunError(
                    f"The public {self._noun} {places} are not those that {folder} began with: "
                    "restore them, or start a new run."
                )

    def _read(self, private: Digests | tuple[()]) -> dict[str, tuple[dict[str, object], list[str]]]:
        """Return `find_copies` of each section's public samples, among the `private` digests."""
        shape = self.source.shape
        with self.progress.task(f"reading public {self._noun}", None):
            return {
                name: find_copies(
                    private,
                    one.public_samples(shape, self.source.rule),
                    self.source.modality,
                    shape,
                )
                for name, one in self.readers.items()
            }

    @property
    def _noun(self) -> str:
        return self.source.modality.noun
