"""Waiting for a host's job: the one that is noted, or one that is started now; it is noted before anybody waits."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from adapters.http.faults import Fault
from adapters.http.gate import Gate
from adapters.http.policy import Policy
from pe.plugins.jobs import JobNote

Found = TypeVar("Found")

log = logging.getLogger(__name__)

GRACE = 15.0
"""Seconds for which a host may not know a job before the job counts as forgotten: hosts have several machines."""

RARER = 1.5, 10.0
"""By what factor each wait for a job exceeds the one before, and the longest the first."""


class Ended(Exception):  # no Fault: the policy would make the request again
    """A job that ended without a result.

    Args:
        words: why.
        refused: a content filter ended it, though the words may not say so.

    Attributes:
        fault: why; perhaps a refusal.
    """

    def __init__(self, words: str, *, refused: bool = False) -> None:
        super().__init__(words)
        fault = Fault(words, 400, "content_filter" if refused else "")
        self.fault = fault if fault.refusal else Fault(words)


def for_free(ask: Callable[[], Found]) -> Found:
    """Call `ask`, and mark its faults as free: asking again costs nothing."""
    try:
        return ask()
    except Fault as fault:
        fault.free = True
        raise


@dataclass(frozen=True)
class Look:
    """What a host says of a job that has not failed.

    Attributes:
        state: `waiting`: it is queued or at work; `unknown`: the host knows of none; `done`: it has a result.
        answer: the host's words on one that is done.
        wait: seconds that the host asks to wait.
    """

    state: Literal["waiting", "unknown", "done"]
    answer: Mapping[str, Any] = field(default_factory=dict)
    wait: float | None = None


@dataclass(frozen=True)
class Watch:
    """How a job is started, looked at and given up.

    Attributes:
        host: what messages call the host.
        note: where the job is noted.
        start: has the host start a job, and notes it; raises `Fault` where it is not started.
        look: what the host says of a job; raises `Ended` where it has no result, `Fault` where the host does not say.
        cancel: tells the host that nobody waits for a job any longer.
        policy: by which the host is looked at; one that is away is waited for.
        poll: seconds before the job is first looked at; later looks come up to ten times as rarely.
        timeout: seconds that it is waited for; infinity: until the host ends it.
    """

    host: str
    note: JobNote
    start: Callable[[], None]
    look: Callable[[str], Look]
    cancel: Callable[[str], None]
    policy: Policy
    poll: float
    timeout: float

    def wait(self) -> Mapping[str, Any]:
        """The host's words on the job once it is done: on the one that is noted, or on one that is started now.

        Raises:
            Ended: it has no result, or not in time.
            Fault: it cannot be started, or the host will not say.
        """
        note, end, gate = self.note, time.monotonic() + self.timeout, Gate(1)  # the job has passed the endpoint's
        if found := bool(note.job):
            log.info("%s: waiting for the job %s, which is noted", self.host, note.job)
        else:
            self.start()
        pause, known = self.poll, time.monotonic()
        while True:
            look_began = time.monotonic()
            look = self._look(gate)
            now = time.monotonic()
            end, known = end + now - look_began, known + now - look_began  # no time in which the host was away
            if look.state == "done":
                return look.answer
            if look.state == "waiting":
                known = now
            elif now - known >= GRACE:
                if not found:
                    raise Ended(f"the host does not know the job {note.job}, which it has taken")
                log.warning("%s does not know the job %s: it is submitted again.", self.host, note.job)
                self.start()
                found, pause, known = False, self.poll, time.monotonic()
                continue
            if now >= end:
                with suppress(Fault):
                    self.cancel(note.job)
                raise Ended(f"the job {note.job} did not end within job_timeout, {self.timeout:g} s")
            time.sleep(min(max(look.wait or 0.0, random.uniform(pause / 2, pause)), end - now))
            pause = min(pause * RARER[0], self.poll * RARER[1])

    def _look(self, gate: Gate) -> Look:
        """Ask the host about the job."""

        def look() -> Look:
            return for_free(lambda: self.look(self.note.job))

        outcome = self.policy.call_one_of(lambda: (gate, look), lambda found: found, self.note.check_stop)
        if outcome.result is None:
            assert outcome.fault is not None
            raise outcome.fault
        return outcome.result
