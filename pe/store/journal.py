"""The journal of a run: an SQLite file with a row for every chunk, charge and release.

A row is committed only after the file that it names is durable, so every file that the journal
names exists.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from pe.errors import RunError
from pe.plugins.protocols import NOTHING, Usage

SCHEMA_VERSION = 4

SCHEMA = """
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    phase TEXT NOT NULL,
    file TEXT,               -- the good items' columns and their indices; NULL when there were none
    sha256 TEXT,
    answered INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    images INTEGER NOT NULL,
    tokens INTEGER NOT NULL, -- of all kinds
    seconds REAL NOT NULL,   -- from the request to its answer
    text_in INTEGER NOT NULL DEFAULT 0,  -- tokens of that kind
    image_in INTEGER NOT NULL DEFAULT 0,
    text_out INTEGER NOT NULL DEFAULT 0,
    image_out INTEGER NOT NULL DEFAULT 0,
    megapixels REAL NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0  -- where several generators have prices of their own
) STRICT;
CREATE INDEX chunks_by_phase ON chunks (phase);
CREATE TABLE misses (
    chunk INTEGER NOT NULL REFERENCES chunks (id),
    item INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('refused', 'failed')),
    retryable INTEGER NOT NULL,  -- 1; 4 more for a rejected request; earlier versions added 2
    reason TEXT NOT NULL
) STRICT;
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    declared TEXT NOT NULL,  -- the release as JSON
    unsafe INTEGER NOT NULL  -- drawn from noise that a test can foretell
) STRICT;
CREATE TABLE files (
    name TEXT PRIMARY KEY,   -- relative to the run's directory
    sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,        -- UTC
    event TEXT NOT NULL      -- started, resumed, finished, …
) STRICT;
CREATE TABLE releases (
    name TEXT PRIMARY KEY,
    file TEXT NOT NULL,
    sha256 TEXT NOT NULL
) STRICT;
"""


JOBS = """
CREATE TABLE IF NOT EXISTS jobs (
    request TEXT PRIMARY KEY,
    job TEXT NOT NULL,               -- as the host names it
    items BLOB NOT NULL DEFAULT x''  -- int64, of the request; none in a journal from before
) STRICT
"""
JOBS_FROM_BEFORE = "ALTER TABLE jobs ADD COLUMN items BLOB NOT NULL DEFAULT x''"


_BILLED = [field.name for field in fields(Usage)]


@dataclass(frozen=True)
class ChunkRow:
    """A committed answer: the file of its columns, what it cost and how long it took."""

    id: int
    phase: str
    file: str | None
    sha256: str | None
    answers: int
    seconds: float
    usage: Usage


@dataclass(frozen=True)
class Miss:
    """An item that an answer left without a sample. `rejected`: see `Failed`."""

    item: int
    outcome: str
    retryable: bool
    reason: str
    rejected: bool = False


@dataclass(frozen=True)
class Totals:
    """The billed usage and the numbers of refused and answered items, over all chunks."""

    usage: Usage = NOTHING
    refusals: int = 0
    answers: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.usage + other.usage, self.refusals + other.refusals, self.answers + other.answers
        )


@contextmanager
def _in_a_sentence(path: Path, participle: str) -> Iterator[None]:
    """Turn SQLite's errors into a RunError that says what cannot be done to the journal.

    The `participle` says it: opened, read, written or closed.
    """
    try:
        yield
    except sqlite3.Error as error:
        remedy = "then resume the run" if participle == "written" else "or restore it from a copy"
        raise RunError(
            f"The journal {path} cannot be {participle} ({error}). Check the disk, {remedy}."
        ) from error


def has_tables(path: Path) -> bool:
    """Return True if the journal has its tables.

    Until its writer has made them, nobody can read it.
    """
    if not path.exists() or not path.stat().st_size:
        return False
    address = _read_only_address(path) or f"{path.absolute().as_uri()}?mode=ro"
    with _in_a_sentence(path, "read"), closing(sqlite3.connect(address, uri=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        views = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')"
        ).fetchall()
    if views:  # in the place of a table, a view may have rows without end
        raise RunError(
            f"{path} is not the journal of a run, because it holds a view named '{views[0][0]}'."
        )
    return bool(version)


def _read_only_address(path: Path) -> str:
    """Return the address of a journal on a read-only medium, or "" on any other.

    On such a medium SQLite can make no files beside the journal.
    """
    log = path.with_name(f"{path.name}-wal")
    is_whole = not log.exists() or not log.stat().st_size
    if is_whole and os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path.absolute().as_uri()}?immutable=1"
    return ""


class Journal:
    """The journal file. It has one writer at a time. Any thread may use it.

    A reader sees the journal as it was when the reader opened it; no writer waits for a reader.
    Every method raises RunError for a bad disk, and so does opening a journal that is damaged or of
    another version.
    """

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        self._path = path
        self._totals: Totals | None = None
        self._lock = Lock()
        with _in_a_sentence(path, "opened"):
            address = (_read_only_address(path) if reading else "") or path.absolute().as_uri()
            self._connection = sqlite3.connect(
                address, isolation_level=None, check_same_thread=False, uri=True
            )
        try:
            with _in_a_sentence(path, "read"):
                self._prepare(reading)
        except BaseException:
            self.close()
            raise

    def _prepare(self, reading: bool) -> None:
        execute = self._connection.execute
        if reading:
            # all that is read is of one instant, while a writer goes on
            execute("BEGIN")
        (version,) = execute("PRAGMA user_version").fetchone()
        if not reading:
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = FULL")
            execute("PRAGMA foreign_keys = ON")
            if version == 0:
                self._make_tables()
                version = SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise RunError(
                f"{self._path} has journal version {version}, but this software writes version "
                f"{SCHEMA_VERSION}. Use the software that made the run."
            )
        if not reading:
            execute(JOBS)
            if "items" not in [column[1] for column in execute("PRAGMA table_info(jobs)")]:
                execute(JOBS_FROM_BEFORE)

    def _make_tables(self) -> None:
        with self.transaction() as connection:
            for statement in SCHEMA.split(";\n"):
                connection.execute(statement)
            # last, since readers take a journal with a version for a whole one
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file."""
        with _in_a_sentence(self._path, "closed"):
            self._connection.close()

    def read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the rows that a query finds."""
        with _in_a_sentence(self._path, "read"), self._lock:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Carry out all of the block's statements or none. They are durable when the block ends."""
        with _in_a_sentence(self._path, "written"), self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def write(self, statement: str, *rows: Sequence[object]) -> None:
        """Carry out a statement for each row of values, in one transaction."""
        with self.transaction() as connection:
            connection.executemany(statement, rows)

    # Answers of the generator.

    def add_chunks(
        self, chunks: list[tuple[ChunkRow, list[Miss]]], requests: Sequence[str] = ()
    ) -> None:
        """Commit answers whose files are durable already, all or none.

        Each comes with the items that it left without a sample. The jobs of `requests`, to which
        these are the answers, are forgotten.
        """
        columns = ("phase", "file", "sha256", "answered", "seconds", *_BILLED)
        places = ", ".join("?" * len(columns))
        insert = f"INSERT INTO chunks ({', '.join(columns)}) VALUES ({places})"  # noqa: S608
        with self.transaction() as connection:
            for request in requests:
                connection.execute("DELETE FROM jobs WHERE request = ?", (request,))
            for row, misses in chunks:
                answer = (row.phase, row.file, row.sha256, row.answers, row.seconds)
                chunk = connection.execute(insert, (*answer, *astuple(row.usage))).lastrowid
                for one in misses:
                    bits = one.retryable + 4 * one.rejected
                    miss = (chunk, one.item, one.outcome, bits, one.reason)
                    connection.execute("INSERT INTO misses VALUES (?, ?, ?, ?, ?)", miss)
        # a sum over all rows after each answer would take ever longer
        if self._totals is not None:
            for row, misses in chunks:
                refusals = sum(miss.outcome == "refused" for miss in misses)
                self._totals += Totals(row.usage, refusals, row.answers)

    def chunks(self, phase: str) -> list[ChunkRow]:
        """Return the committed answers of a phase, in the order of their commits."""
        columns = ", ".join(("id", "file", "sha256", "answered", "seconds", *_BILLED))
        rows = []
        query = f"SELECT {columns} FROM chunks WHERE phase = ? ORDER BY id"  # noqa: S608
        for chunk, file, digest, answers, seconds, *usage in self.read(query, (phase,)):
            if file is not None and Path(file).name != file:
                raise RunError(
                    f"The journal names a chunk '{file}' outside of the run, so it is not the "
                    "journal of a run."
                )
            rows.append(ChunkRow(chunk, phase, file, digest, answers, seconds, Usage(*usage)))
        return rows

    def phases(self) -> list[str]:
        """Return the phases that have answers, in the order of their first answers."""
        rows = self.read("SELECT phase FROM chunks GROUP BY phase ORDER BY MIN(id)")
        return [phase for (phase,) in rows]

    def misses(self, phase: str) -> list[Miss]:
        """Return the items of a phase that answers left without a sample, in order of commits."""
        rows = self.read(
            "SELECT item, outcome, retryable, reason FROM misses JOIN chunks ON chunk = id WHERE "
            "phase = ? ORDER BY misses.rowid",
            (phase,),
        )
        return [
            Miss(item, outcome, bool(bits & 1), reason, bits > 3)
            for item, outcome, bits, reason in rows
        ]

    def totals(self) -> Totals:
        """Return what was billed, refused and answered in all phases so far."""
        if self._totals is None:
            # TOTAL, since SUM may overflow
            sums = ", ".join(f"TOTAL({name})" for name in ("answered", *_BILLED))
            [(*counts, megapixels, cost)] = self.read(f"SELECT {sums} FROM chunks")  # noqa: S608
            answers, *usage = map(int, counts)
            [(refusals,)] = self.read("SELECT COUNT(*) FROM misses WHERE outcome = 'refused'")
            billed = replace(Usage(*usage), megapixels=megapixels, cost=cost)
            self._totals = Totals(billed, refusals, answers)
        return self._totals

    def samples_per_second(self) -> float | None:
        """Return the samples per second if requests are made one at a time.

        Returns None if nothing was answered yet.
        """
        [(images, seconds)] = self.read("SELECT TOTAL(images), TOTAL(seconds) FROM chunks")
        return images / seconds if images and seconds else None

    def forget_chunks(self, phase: str, ids: list[int]) -> None:
        """Empty the rows of answers whose files are lost, so that their items are asked for again.

        Their cost stays.
        """
        self._totals = None
        statement = (
            "UPDATE chunks SET file = NULL, sha256 = NULL, answered = 0 WHERE phase = ? AND id = ?"
        )
        self.write(statement, *((phase, chunk) for chunk in ids))

    # Files and changes of state.

    def add_files(self, digests: Mapping[str, str]) -> None:
        """Commit the SHA-256 of files that are durable already."""
        self.write("INSERT OR REPLACE INTO files VALUES (?, ?)", *digests.items())

    def files(self, prefix: str) -> dict[str, str]:
        """Return name → SHA-256 of the files whose name starts with `prefix`."""
        query = "SELECT name, sha256 FROM files WHERE substr(name, 1, ?) = ? ORDER BY name"
        return dict(self.read(query, (len(prefix), prefix)))

    def add_event(self, event: str) -> None:
        """Commit a change of the run's state, with the time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.write("INSERT INTO events (at, event) VALUES (?, ?)", (now, event))

    def events(self) -> list[tuple[str, str]]:
        """Return all changes of the run's state: (time in UTC, event)."""
        return self.read("SELECT at, event FROM events ORDER BY id")

    def has_event(self, event: str) -> bool:
        """Return True if this change of the run's state was ever committed."""
        return bool(self.read("SELECT 1 FROM events WHERE event = ? LIMIT 1", (event,)))

    # Charges and releases.

    def charge(self, name: str, terms: str, unsafe: bool) -> None:
        """Commit a charge, before the release is drawn."""
        self.write(
            "INSERT INTO charges (name, declared, unsafe) VALUES (?, ?, ?)", (name, terms, unsafe)
        )

    def charges(self) -> list[tuple[str, str, bool]]:
        """Return all charges, in order: (name of the release, declaration as JSON, is unsafe)."""
        rows = self.read("SELECT name, declared, unsafe FROM charges ORDER BY id")
        return [(name, terms, bool(unsafe)) for name, terms, unsafe in rows]

    def add_release(self, name: str, file: str, sha256: str) -> None:
        """Commit a drawn release whose file is durable already."""
        self.write("INSERT INTO releases VALUES (?, ?, ?)", (name, file, sha256))

    def releases(self) -> dict[str, str]:
        """Return file → SHA-256 of all drawn releases, in the order of the files' names."""
        return dict(self.read("SELECT file, sha256 FROM releases ORDER BY file"))

    def release(self, name: str) -> tuple[str, str] | None:
        """Return the file and SHA-256 of a drawn release, or None before it is drawn."""
        rows = self.read("SELECT file, sha256 FROM releases WHERE name = ?", (name,))
        return rows[0] if rows else None

    # Jobs that a generator's host works on, each committed before anyone waits for it.

    def keep_job(self, request: str, items: bytes, job: str) -> None:
        """Commit the job of a request for `items`, in place of any other job of this request."""
        self.write("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (request, job, items))

    def job(self, request: str) -> str:
        """Return the job of a request whose answer is not committed, or ""."""
        rows = self.read("SELECT job FROM jobs WHERE request = ?", (request,))
        return str(rows[0][0]) if rows else ""

    def jobs(self, phase: str) -> list[tuple[str, bytes]]:
        """Return the requests of a phase that have jobs, each with its items."""
        return self.read(
            "SELECT request, items FROM jobs WHERE substr(request, 1, ?) = ? AND job != '' ORDER "
            "BY rowid",
            (len(phase) + 1, f"{phase} "),
        )
