"""Where a generator notes the job that a host makes of a request, so that a run that is killed pays for it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class JobNote:
    """The job of one request.

    A generator whose host answers by jobs writes the job's id before it waits for the job. After a kill or a stop the
    same request comes with the same items and the same note, and the generator waits for that job in place of starting
    another. The run forgets a note when it has stored the request's answer. Outside of a run (`pe probe`) a note lasts
    for one request.

    Attributes:
        job: the id, or whatever else names the job to its host; empty: none was noted.
        calls: jobs that were started, or may have been; each may be billed.
        key: names the request in its run.
        keep: makes an id durable.
        check_stop: to be called again and again while a request waits; raises if the run is to stop.
    """

    job: str = ""
    calls: int = 0
    key: str = ""
    keep: Callable[[str], None] = lambda job: None
    check_stop: Callable[[], None] = lambda: None

    def write(self, job: str) -> None:
        """Note a job in place of any other; it is durable when this returns."""
        self.keep(job)
        self.job = job
