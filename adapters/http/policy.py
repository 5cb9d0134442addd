"""Retries and rates, the same for every endpoint; no library below may retry by itself."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from adapters.http.faults import Fault, Rejected
from adapters.http.gate import Gate
from pe.errors import MissingDependency
from pe.plugins.protocols import Failed, Refused
from pe.progress import WORTH_TELLING

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Result = TypeVar("Result")

FIRST, MOST = 0.5, 30.0
"""Seconds to wait before the second try, at the most, and before any later one."""


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What came of a request.

    Attributes:
        result: the answer; None: there is none.
        fault: why there is none.
        calls: requests made for it; each may have been billed.
    """

    result: Result | None
    fault: Fault | None
    calls: int

    @property
    def miss(self) -> Refused | Failed | None:
        """What the fault is for the request's items; None: there is none."""
        if self.fault is None:
            return None
        return Refused(self.fault.words) if self.fault.refusal else Failed(str(self.fault))


class Policy:
    """One endpoint's rate and patience, shared by all of its workers.

    A request whose fault may pass (faults.py says which: no connection, 429, 5xx, …) is made again, after a random
    wait that doubles from FIRST to MOST, or the wait that the server asked for. A 429 slows all workers
    down, and its wait holds all of them back; it does not count as a try, but for `patience` seconds at most.

    Args:
        name: what messages call the endpoint.
        concurrency: requests at once, at the most.
        tries: how often a request is made before it counts as failed.
        patience: seconds that a request may spend being throttled, beside a longer wait that the server names.
        longest: seconds of the longest wait that a throttling server may name.
        clean: takes out of words what no message may hold.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int,
        tries: int = 6,
        patience: float = 600.0,
        longest: float = 6 * 3600.0,
        clean: Callable[[str], str] = str,
    ) -> None:
        self.name = name
        self._gate = Gate(concurrency)
        self._tries, self._patience, self._longest, self._clean = tries, patience, longest, clean
        self._waits_until, self._wait = 0.0, ""

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return self._gate.width

    @property
    def wait(self) -> str:
        """What requests wait for now, if it takes long, in a clause; empty: for nothing."""
        return self._wait if time.monotonic() < self._waits_until else ""

    def call(self, send: Callable[[], Sent], read: Callable[[Sent], Result]) -> Outcome[Result]:
        """Make a request until it is answered, refused or given up.

        Args:
            send: makes it once; raises `Fault` when it brings nothing.
            read: see `call_one_of`.

        Returns:
            See `call_one_of`.

        Raises:
            Rejected: see `call_one_of`.
        """
        return self.call_one_of(lambda: (self._gate, send), read)

    def call_one_of(
        self, choose: Callable[[], tuple[Gate, Callable[[], Sent]]], read: Callable[[Sent], Result]
    ) -> Outcome[Result]:
        """The same, where several endpoints, each with a gate of its own, give the same answer.

        Args:
            choose: for each try, the gate to pass and what makes the request once behind it; raises `Fault` when it
                brings nothing.
            read: makes the result of what was sent back, while others ask; raises `Fault` when there is none in it.

        Returns:
            The answer; or the fault: a refusal, or the last of `tries` that may heal later.

        Raises:
            Rejected: it will not succeed however often it is made (401, 403, 404, 400 …).
        """
        tenacity = _tenacity()
        counted = _Tries(self._tries, self._patience, self._longest)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, Fault) and error.heals),
            stop=lambda state: counted.over(_fault(state)),
            wait=lambda state: counted.wait(_fault(state)),
            before_sleep=lambda state: self._say(_fault(state), state.next_action.sleep),
            reraise=True,
        )
        try:
            result = retrying(lambda: self._once(*choose(), read, counted))
        except Fault as fault:
            if fault.heals or fault.refusal:
                fault.words = self._clean(fault.words)
                return Outcome(None, fault.with_traceback(None), counted.calls)
            words = self._clean(str(fault))
            if fault.untrusted:
                raise Rejected(
                    f"{self.name} is not trusted ({words}): name its authority's file in SSL_CERT_FILE, "
                    "or give the address that its certificate is for."
                ) from None
            raise Rejected(f"{self.name} rejects the request with {words}", fault.status) from None
        return Outcome(result, None, counted.calls)

    def _once(self, gate: Gate, send: Callable[[], Sent], read: Callable[[Sent], Result], counted: _Tries) -> Result:
        with gate.passing() as since:
            counted.calls += 1
            try:
                sent = send()
            except Fault as fault:
                if fault.throttled:
                    pause = self._patience if (fault.wait or 0.0) > self._longest else fault.wait
                    gate.throttled(since, pause)
                    self._note_wait(fault, pause or 0.0)
                raise
        result = read(sent)
        gate.succeeded()
        return result

    def _say(self, fault: Fault, seconds: float) -> None:
        log.info("%s: %s; trying again, %d at once", self.name, self._clean(str(fault)), self._gate.width)
        self._note_wait(fault, seconds)

    def _note_wait(self, fault: Fault, seconds: float) -> None:
        """Tell that the next try is so far away, unless it is near or a longer wait is told."""
        until = time.monotonic() + seconds
        if seconds < WORTH_TELLING or until <= self._waits_until:
            return
        if fault.throttled:
            asked = fault.wait or seconds
            again = f", trying again at {_clock(seconds)}" if asked > seconds else ""
            words = f"rate limited by the server until {_clock(asked)}{again}"
        else:
            came = "no answer" if fault.status is None else f"HTTP {fault.status}"
            words = f"{came} from the server, trying again at {_clock(seconds)}"
        self._wait, self._waits_until = words, until
        log.info("%s: %s", self.name, words)


class _Tries:
    """The tries of one request: how many, and how long to wait before the next."""

    def __init__(self, most: int, patience: float, longest: float) -> None:
        self.calls = 0
        self._most, self._patience, self._longest = most, patience, longest
        self._failed = 0
        self._patient_until, self._last = 0.0, 0.0

    def over(self, fault: Fault) -> bool:
        if not fault.throttled:
            self._failed += 1
            return self._failed >= self._most
        now, named = time.monotonic(), fault.wait or 0.0
        if not self._last:
            self._patient_until, self._last = now + self._patience, now + self._longest
        if named > self._patience:
            self._patient_until = min(now + named + self._patience, self._last)
        return now >= self._patient_until or named > self._longest

    def wait(self, fault: Fault) -> float:
        if fault.wait is not None:
            return 0.0 if fault.throttled else min(fault.wait, self._patience)  # the gate holds throttled ones back
        longest = FIRST if fault.throttled else min(MOST, FIRST * 2 ** (self._failed - 1))
        return random.uniform(longest / 4, longest)


def _clock(seconds: float) -> str:
    """The time of day in so many seconds, with the date if it is another day's."""
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M:%S}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%S}"


def _fault(state: Any) -> Fault:
    error = state.outcome.exception()
    assert isinstance(error, Fault)
    return error


def _tenacity() -> Any:
    try:
        import tenacity
    except ImportError as error:
        raise MissingDependency.of("tenacity", "http", "Calling an endpoint") from error
    return tenacity
