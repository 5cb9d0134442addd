"""Retries, rates and outages, the same for every endpoint; no library below may retry by itself."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Condition, get_ident
from typing import Any, Generic, TypeVar

from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.settings import Connection
from pe.errors import Unavailable
from pe.plugins.protocols import Failed, Refused
from pe.progress import WORTH_TELLING

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Result = TypeVar("Result")
CheckStop = Callable[[], None]

EVERY = 0.5
"""Seconds between two checks, by a waiting request, of whether the run is to stop."""

FIRST, MOST = 0.5, 30.0
"""Most seconds of the random wait before the second try, and before any later try."""

SHRINK = 0.8
"""Factor of the concurrency after a 429."""


def workers_for(concurrency: int) -> int:
    """Return how many threads keep `concurrency` requests under way while some threads read and decode answers."""
    return concurrency + max(1, concurrency // 8)


class Gate:
    """Lets at most `width` requests through at once, at first `most` ≥ 1; shared by all workers of an endpoint.

    A throttled request narrows the gate by a fifth, unless the request had started before the last narrowing. As many
    successes as the gate is wide widen it by one (as TCP does: Chiu and Jain, 1989). During a pause the gate lets no
    request through.
    """

    def __init__(self, most: int) -> None:
        self._most, self._width = most, float(most)
        self._inside = self._narrowings = 0
        self._open_again = 0.0
        self._condition = Condition()

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return max(1, int(self._width))

    @contextmanager
    def passing(self, check_stop: CheckStop = lambda: None) -> Iterator[int]:
        """Wait for a place, unless `check_stop` raises; yield the number of narrowings so far, for `throttle`."""
        with self._condition:
            while (wait := self._open_again - time.monotonic()) > 0 or self._inside >= self.width:
                self._condition.wait(min(wait, EVERY) if wait > 0 else EVERY)
                check_stop()
            self._inside += 1
            since = self._narrowings
        try:
            yield since
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify()

    def succeed(self) -> None:
        """Widen the gate by 1 / width, so that as many successes as it is wide widen it by one."""
        with self._condition:
            before = self.width
            self._width = min(float(self._most), self._width + 1 / self._width)
            if self.width > before:
                self._condition.notify()

    def throttle(self, since: int, pause: float | None) -> None:
        """Narrow the gate, unless narrowed since `passing` gave `since`; close it for `pause` seconds, if any."""
        with self._condition:
            if since == self._narrowings:
                self._width = max(1.0, self._width * SHRINK)
                self._narrowings += 1
            if pause is not None:
                self._open_again = max(self._open_again, time.monotonic() + pause)


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The outcome of a request."""

    result: Result | None  # what was made of the answer; None: the request failed
    fault: Fault | None  # why the request failed; None: there is a result
    calls: int  # calls made for the request; each may have been billed
    # only this request fails, so its items are asked for with another seed, and no attempt is counted
    alone: bool = False
    stops: bool = False  # the run stops: no other request is under way, so it is not known whether only this one fails

    @property
    def miss(self) -> Refused | Failed | None:
        """The fault as `Refused` or `Failed`, for every item of the request; None if there is no fault."""
        if self.fault is None:
            return None
        if self.fault.refusal:
            return Refused(self.fault.words)
        return Failed(str(self.fault), not self.stops, not self.alone, self.fault.rejects)


class Policy:
    """One endpoint's rate and patience, shared by all of its workers.

    A request whose fault may pass (`Fault.heals`) is made again, after a random wait that doubles from FIRST to MOST,
    or the wait that the server asked for. A 429 slows all workers down, and its wait holds all of them back.

    When a request has failed `tries` times, and no other was answered meanwhile, the server counts as away: all
    requests wait, and one at a time, in turn, is made to see whether it is back. After `patience` the run stops.

    Args:
        name: what messages call the endpoint.
        concurrency, tries, patience: see `Concurrent`; a longer wait that the server names adds to the patience.
        longest: seconds of the longest wait that a throttling server may name.
        clean: redacts secrets from messages.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int,
        tries: int = 6,
        patience: float = 900.0,
        longest: float = 6 * 3600.0,
        clean: Callable[[str], str] = str,
    ) -> None:
        self.name, self.clean = name, clean
        self._gate, self._tries, self._seconds, self._longest = Gate(concurrency), tries, patience, longest
        self._wait, self._wait_ends = "", 0.0
        self._condition = Condition()
        self._answers = self._under_way = 0
        self._outage: _Outage | None = None

    @classmethod
    def of(cls, connection: Connection, name: str, concurrency: int, credentials: Credentials) -> Policy:
        """Return the policy of an endpoint with these connection settings."""
        tries, patience = connection.tries, connection.patience
        return cls(name, concurrency=concurrency, tries=tries, patience=patience, clean=credentials.clean)

    @property
    def wait(self) -> str:
        """The reason why requests wait now, if the wait is long, in a clause; empty if there is none."""
        return self._wait if self._outage is not None or time.monotonic() < self._wait_ends else ""

    def call(
        self, send: Callable[[], Sent], read: Callable[[Sent], Result], check_stop: CheckStop = lambda: None
    ) -> Outcome[Result]:
        """Make a request until it is answered, refused or given up; see `call_one_of`."""
        return self.call_one_of(lambda: (self._gate, send), read, check_stop)

    def call_one_of(
        self,
        choose: Callable[[], tuple[Gate, Callable[[], Sent]]],
        read: Callable[[Sent], Result],
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """Make a request as `call` does, where several endpoints, each with a gate of its own, give the same answer.

        The outcome has a fault for a refusal, a whole answer that is not the result, a rejected request, or a fault of
        this request alone.

        Args:
            choose: for each try, the gate to pass and the function that makes the request, or raises `Fault`.
            read: makes the result from the answer, after leaving the gate, or raises `Fault`.
            check_stop: called by a request that waits; raises what ends the waiting.

        Raises:
            Rejected: neither this request nor any other will succeed (401, 402, 403, 404, a spent quota …).
            Unavailable: the server was away, or throttled, for longer than the patience.
        """
        request = _Request(self._answers)
        with self._condition:
            self._under_way += 1
        try:
            while True:
                with self._turn(check_stop) as outage:
                    try:
                        return Outcome(self._once(*choose(), read, request, check_stop), None, request.calls)
                    except Fault as fault:
                        verdict = self._judge(fault, request, outage)
                if isinstance(verdict, Outcome):
                    return verdict
                end = time.monotonic() + verdict
                while (rest := end - time.monotonic()) > 0:
                    check_stop()
                    time.sleep(min(EVERY, rest))
        finally:
            with self._condition:
                self._under_way -= 1

    def _once(
        self,
        gate: Gate,
        send: Callable[[], Sent],
        read: Callable[[Sent], Result],
        request: _Request,
        check_stop: CheckStop,
    ) -> Result:
        request.has_answer = False
        with gate.passing(check_stop) as since:
            request.calls += 1
            try:
                answer = send()
            except Fault as fault:
                if fault.is_throttle:
                    gate.throttle(since, self._seconds if (fault.wait or 0.0) > self._longest else fault.wait)
                raise
        request.has_answer = True
        result = read(answer)
        gate.succeed()
        self._note_answer()
        return result

    def _note_answer(self) -> None:
        """Note that the server answered: an outage is over."""
        with self._condition:
            self._answers += 1
            self._outage = None
            self._condition.notify_all()

    @contextmanager
    def _turn(self, check_stop: CheckStop) -> Iterator[_Outage | None]:
        """Wait while the server is away; yield the outage if it is this request's turn to test it, else None."""
        me = get_ident()
        with self._condition:
            outage = self._outage
            if outage is not None:
                outage.queue.append(me)
        try:
            with self._condition:
                while outage is not None and self._outage is outage:
                    rest = outage.until - time.monotonic()
                    if outage.queue[0] == me and rest <= 0:  # and stays the first until it has left
                        break
                    self._condition.wait(min(EVERY, rest) if rest > 0 else EVERY)
                    check_stop()
                is_probe = outage is not None and self._outage is outage
            yield outage if is_probe else None
        finally:
            if outage is not None:
                with self._condition:
                    outage.queue.remove(me)
                    self._condition.notify_all()

    def _judge(self, fault: Fault, request: _Request, outage: _Outage | None) -> float | Outcome[Any]:
        """Return the seconds until a request with this fault is made again; or an outcome, if it is given up."""
        fault.words = self.clean(fault.words)
        if not fault.heals:
            self._note_answer()
            if fault.refusal or fault.whole or fault.rejects:
                return Outcome(None, fault.with_traceback(None), request.calls)
            if fault.bad_certificate:
                raise Rejected(
                    f"{self.name} is not trusted ({fault}): name its authority's file in SSL_CERT_FILE, "
                    "or give the address that its certificate is for."
                ) from None
            raise Rejected(f"{self.name} rejects the request with {fault}", fault.status) from None
        with self._condition:
            request.note(fault, self._answers, self._seconds)
            if self._outage is None and request.streak >= self._tries:
                self._outage = outage = _Outage(request.patience, request.streak)
            if self._outage is not None and self._outage is not outage:  # of another request: see `_turn`
                return 0.0
            outcome = self._give_up(fault, request, outage)
            pause = self._pause(fault, request.streak if outage is None else outage.faults)
            self._tell(fault, pause, outage)
            if outcome is not None:
                return outcome
            if outage is None:
                return pause
            outage.until, outage.faults = time.monotonic() + pause, outage.faults + 1
            return 0.0

    def _give_up(self, fault: Fault, request: _Request, outage: _Outage | None) -> Outcome[Any] | None:
        """Return the outcome of a request that is given up; None to make it again.

        Raises:
            Unavailable: the server is away, or throttles, and the patience is over.
        """
        patience = request.patience if outage is None else outage.patience
        alone = Outcome[Any](None, fault, request.calls, alone=True)
        may_be_alone = fault.own and not request.has_answer
        if not self._seconds:
            return alone if request.streak >= self._tries else None
        if not patience.is_over(fault, self._seconds, self._longest):
            return alone if may_be_alone and request.interludes >= 2 * self._tries else None
        if outage is None and request.interludes and not fault.is_throttle and not request.has_answer:
            return alone
        if may_be_alone and self._under_way == 1:
            return Outcome(None, fault, request.calls, alone=True, stops=True)
        if (fault.wait or 0.0) > self._longest:
            raise Unavailable(f"{self.name} asks to wait for {fault.wait:,.0f} s ({fault}).") from None
        seconds = time.monotonic() - patience.since
        patience.renew(self._seconds)
        duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        raise Unavailable(f"{self.name} gave no answer for {duration} (the last fault: {fault}).") from None

    def _pause(self, fault: Fault, faults: int) -> float:
        """Return the seconds until the next try, after `faults` faults in a row."""
        is_throttle = fault.is_throttle and self._outage is None
        if fault.wait is not None:
            return 0.0 if is_throttle else min(fault.wait, self._seconds or MOST)  # the gate holds throttled ones back
        longest = FIRST if is_throttle else min(MOST, FIRST * 2 ** min(faults - 1, 30))
        return random.uniform(longest / 4, longest)

    def _tell(self, fault: Fault, seconds: float, outage: _Outage | None) -> None:
        """Log and show that the next try is `seconds` away, unless it is soon or a longer wait is shown already."""
        log.info("%s: %s; trying again, %d at once", self.name, fault, self._gate.width)
        seconds = max(fault.wait or 0.0, seconds) if fault.is_throttle else seconds
        end, now = time.monotonic() + seconds, datetime.now()
        if outage is None and (seconds < WORTH_TELLING or end <= self._wait_ends):
            return
        reason = f"no answer from the server ({fault}), trying again at"
        if fault.is_throttle:
            reason = "rate limited by the server until"
        time_of_day = now + timedelta(seconds=seconds)
        clock = f"{time_of_day:%H:%M:%S}" if time_of_day.date() == now.date() else f"{time_of_day:%Y-%m-%d %H:%M:%S}"
        self._wait, self._wait_ends = f"{reason} {clock}", end
        level = logging.INFO if outage is None else logging.WARNING  # which shows outside a run, too
        log.log(level, "%s: %s", self.name, self._wait)


class _Patience:
    """The time for which a server is waited for."""

    def __init__(self, seconds: float) -> None:
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        self.since = time.monotonic()
        self.until = self.since + seconds

    def is_over(self, fault: Fault, seconds: float, longest: float) -> bool:
        now, wait = time.monotonic(), (fault.wait or 0.0) if fault.is_throttle else 0.0
        if wait > seconds / 2:
            self.until = max(self.until, min(now + wait + seconds, self.since + longest))
        return now >= self.until or wait > longest


@dataclass(eq=False)
class _Outage:
    """A server that is away: the patience left, faults in a row, the time of the next try, threads that wait."""

    patience: _Patience
    faults: int
    until: float = 0.0
    queue: deque[int] = field(default_factory=deque)


@dataclass
class _Request:
    """A request: its calls, its faults in a row, and how often others were answered between its faults."""

    answers: int
    calls: int = 0
    streak: int = 0
    interludes: int = 0
    has_answer: bool = False
    patience: _Patience = field(init=False)

    def note(self, fault: Fault, answers: int, seconds: float) -> None:
        if not hasattr(self, "patience"):  # begins with the first fault
            self.patience = _Patience(seconds)
        if answers != self.answers:
            self.answers, self.streak = answers, 0
            self.interludes += not fault.is_throttle
        self.streak += 1
