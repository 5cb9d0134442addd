"""The jobs that a generator's host is at work on: known to the run before anyone waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from pe.store.journal import Journal

_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    request TEXT PRIMARY KEY,
    job TEXT NOT NULL  -- as the host names it
) STRICT
"""


@dataclass(frozen=True)
class Jobs:
    """A table of a run's journal; any thread may use it. `Journal.add_chunks` forgets the jobs of committed answers.

    Attributes:
        journal: of the run.
    """

    journal: Journal

    def keep(self, request: str, job: str) -> None:
        """Commit the job of a request, in place of any other."""
        with self.journal.transaction() as connection:
            connection.execute(_TABLE)
            connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (request, job))

    def find(self, request: str) -> str:
        """The job of a request whose answer is not committed; empty: none is known."""
        with self.journal.transaction() as connection:
            connection.execute(_TABLE)
            row = connection.execute("SELECT job FROM jobs WHERE request = ?", (request,)).fetchone()
        return "" if row is None else str(row[0])
