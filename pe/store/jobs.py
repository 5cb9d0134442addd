"""The jobs that a generator's host is at work on: known to the run before anyone waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from pe.store.journal import Journal


@dataclass(frozen=True)
class Jobs:
    """A table of a run's journal; any thread may use it. `Journal.add_chunks` forgets the jobs of committed answers.

    Attributes:
        journal: of the run.
    """

    journal: Journal

    def keep(self, request: str, items: bytes, job: str) -> None:
        """Commit the job of a request for `items`, in place of any other."""
        with self.journal.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", (request, job, items))

    def find(self, request: str) -> str:
        """The job of a request whose answer is not committed; empty: none is known."""
        return next(
            (str(job) for (job,) in self.journal.read("SELECT job FROM jobs WHERE request = ?", (request,))), ""
        )

    def of_phase(self, phase: str) -> list[tuple[str, bytes]]:
        """The requests of a phase whose jobs are kept, each with its items."""
        return self.journal.read(
            "SELECT request, items FROM jobs WHERE substr(request, 1, ?) = ? AND job != '' ORDER BY rowid",
            (len(phase) + 1, f"{phase} "),
        )
