"""The jobs that a generator's host is at work on: known to the run before anyone waits for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pe.store.journal import Journal

_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    request TEXT PRIMARY KEY,
    job TEXT NOT NULL,               -- as the host names it
    items BLOB NOT NULL DEFAULT x''  -- int64, of the request; none in a journal from before
) STRICT
"""


@dataclass(frozen=True)
class Jobs:
    """A table of a run's journal; any thread may use it. `Journal.add_chunks` forgets the jobs of committed answers.

    Attributes:
        journal: of the run.
    """

    journal: Journal

    def keep(self, request: str, items: bytes, job: str) -> None:
        """Commit the job of a request for `items`, in place of any other."""
        with self._table() as connection:
            connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (request, job, items))

    def find(self, request: str) -> str:
        """The job of a request whose answer is not committed; empty: none is known."""
        with self._table() as connection:
            row = connection.execute("SELECT job FROM jobs WHERE request = ?", (request,)).fetchone()
        return "" if row is None else str(row[0])

    def of_phase(self, phase: str) -> list[tuple[str, bytes]]:
        """The requests of a phase whose jobs are kept, each with its items."""
        with self._table() as connection:
            rows = connection.execute(
                "SELECT request, items FROM jobs WHERE substr(request, 1, ?) = ? AND job != '' ORDER BY rowid",
                (len(phase) + 1, f"{phase} "),
            )
            return [(str(request), bytes(items)) for request, items in rows]

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the table, which is made, or given what it lacks."""
        with self.journal.transaction() as connection:
            connection.execute(_TABLE)
            if "items" not in [column[1] for column in connection.execute("PRAGMA table_info(jobs)")]:
                connection.execute("ALTER TABLE jobs ADD COLUMN items BLOB NOT NULL DEFAULT x''")
            yield connection
