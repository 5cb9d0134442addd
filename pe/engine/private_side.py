"""The private records of a run: checked before anything is called, embedded once, recognised on resume."""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, field

from pe.errors import RunError
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import FILE, PrivateEmbeddings, embed_private, load_private
from pe.private.sources import PrivateSource
from pe.protocols import Embedding
from pe.run.directory import CONFIDENTIAL
from pe.run.durable import sha256
from pe.run.progress import Progress
from pe.run.writer import RunWriter

FINGERPRINT = f"{CONFIDENTIAL}/fingerprint.json"

log = logging.getLogger(__name__)


@dataclass
class PrivateSide:
    """The private records while a run goes on; nothing is read before it is needed.

    Attributes:
        source: where the records are.
        embedding: maps them to vectors.
        progress: told that something happens, never how much.
    """

    source: PrivateSource
    embedding: Embedding
    progress: Progress
    _dataset: PrivateDataset | None = field(default=None, init=False)
    _embedded: PrivateEmbeddings | None = field(default=None, init=False)

    def preflight(self) -> bytes:
        """Check all records before the run exists.

        Returns:
            What FINGERPRINT is to hold: a random key and the records' fingerprint under it. Confidential.

        Raises:
            PrivateDataError: a record is not as declared.
        """
        key = secrets.token_hex(32)
        return json.dumps({"key": key, "fingerprint": self._check(key)}).encode()

    def recognise(self, run: RunWriter) -> None:
        """Check that the records are those the run began with, pixel by pixel.

        Raises:
            RunError: they are not.
            PrivateDataError: a record is not as declared.
        """
        path = run.folder / FINGERPRINT
        if not path.is_file():
            raise RunError(f"{run.folder} has lost {FINGERPRINT}, and noise is still to be drawn: start a new run.")
        known = json.loads(path.read_text(encoding="utf-8"))
        if self._check(known["key"]) != known["fingerprint"]:
            raise RunError(
                f"The private records differ from those that {run.folder} began with: "
                "restore them, or start a new run (its ε adds to this one's)."
            )

    def embeddings(self, run: RunWriter) -> PrivateEmbeddings:
        """The records' embeddings: computed once per run, kept in confidential/."""
        if self._embedded is None:
            dataset = self.dataset()
            name = f"{CONFIDENTIAL}/embeddings/{FILE}"
            path = run.folder / name
            if path.is_file() and run.journal.files(name) == {name: sha256(path)}:
                self._embedded = load_private(dataset, path.parent)
            else:
                with self.progress.task("embedding private records", None):
                    self._embedded = embed_private(dataset, self.embedding, path.parent)
                run.journal.add_files({name: sha256(path)})
        return self._embedded

    def _check(self, key: str) -> str:
        with self.progress.task("checking private records", None):
            found = self.dataset().preflight(bytes.fromhex(key))
        for record in found.bad:
            log.warning("Record %d casts no vote: %s", record.index, record.reason)
        return found.fingerprint

    def dataset(self) -> PrivateDataset:
        """The records, opened when they are first asked for."""
        if self._dataset is None:
            self._dataset = self.source.open()
        return self._dataset
