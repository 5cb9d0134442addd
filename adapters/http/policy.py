"""How many requests an endpoint is asked at once: fewer when it says that it is too much, then more again."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Condition, get_ident
from typing import Any, Generic, TypeVar

from adapters.http.credentials import Credentials
from adapters.http.faults import Fault, Rejected
from adapters.http.settings import Connection
from pe.errors import Unavailable
from pe.plugins.protocols import Failed, Refused
from pe.progress import WORTH_TELLING

EVERY = 0.5
"""Seconds after which a request that waits is asked whether the run is to stop."""

SHRINK = 0.8
"""What is left of the concurrency after a 429: it shrinks by a fifth."""


def workers_for(concurrency: int) -> int:
    """Threads that keep `concurrency` requests under way: some read and decode answers while others ask."""
    return concurrency + max(1, concurrency // 8)


class Gate:
    """Lets at most `width` requests through at once; shared by all workers of an endpoint.

    A request that was throttled narrows it by a fifth, once for all requests that had started before the last
    narrowing; each whole round of successes widens it by one (as TCP does: Chiu and Jain, 1989). A pause holds
    everybody back.
    """

    def __init__(self, most: int) -> None:
        """Opens as wide as `most`, ≥ 1."""
        self._most = most
        self._width = float(most)
        self._inside = 0
        self._narrowings = 0
        self._open_again = 0.0
        self._changed = threading.Condition()

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return max(1, int(self._width))

    @contextmanager
    def passing(self, check_stop: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for a place, unless `check_stop` raises; gives the number of narrowings so far, for `throttled`."""
        with self._changed:
            while True:
                wait = self._open_again - time.monotonic()
                if wait <= 0 and self._inside < self.width:
                    break
                self._changed.wait(min(wait, EVERY) if wait > 0 else EVERY)
                check_stop()
            self._inside += 1
            since = self._narrowings
        try:
            yield since
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify()

    def succeeded(self) -> None:
        """Widen a little: by one after as many successes as it is wide."""
        with self._changed:
            before = self.width
            self._width = min(float(self._most), self._width + 1 / self._width)
            if self.width > before:
                self._changed.notify()

    def throttled(self, since: int, pause: float | None) -> None:
        """Narrow, and hold everybody back for `pause` seconds, if the endpoint named any."""
        with self._changed:
            if since == self._narrowings:
                self._width = max(1.0, self._width * SHRINK)
                self._narrowings += 1
            if pause is not None:
                self._open_again = max(self._open_again, time.monotonic() + pause)


# Retries, rates and outages, the same for every endpoint; no library below may retry by itself.


log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Result = TypeVar("Result")
CheckStop = Callable[[], None]

FIRST, MOST = 0.5, 30.0
"""Seconds to wait before the second try, at the most, and before any later one."""


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The outcome of a request.

    Attributes:
        result: the answer; None: there is none.
        fault: why there is none.
        calls: requests made for it; each may have been billed.
        alone: only this request fails, by a fault of transport, so it is to be made with another seed.
        stops: the same, as far as anybody can tell: nothing else is asked. The run stops.
    """

    result: Result | None
    fault: Fault | None
    calls: int
    alone: bool = False
    stops: bool = False

    @property
    def miss(self) -> Refused | Failed | None:
        """What the fault is for the request's items; None: there is none."""
        if self.fault is None:
            return None
        if self.fault.refusal:
            return Refused(self.fault.words)
        return Failed(str(self.fault), retryable=not self.stops, attempt=not self.alone)


class Policy:
    """One endpoint's rate and patience, shared by all of its workers.

    A request whose fault may pass (faults.py says which: no connection, 429, 5xx, …) is made again, after a random
    wait that doubles from FIRST to MOST, or the wait that the server asked for. A 429 slows all workers
    down, and its wait holds all of them back.

    When a request has failed `tries` times, and none brought an answer meanwhile, the server counts as away: all
    requests wait, and one at a time, in turn, is made to see whether it is back. After `patience` the run stops.

    Args:
        name: what messages call the endpoint.
        concurrency: requests at once, at the most.
        tries: how often a request is made before the server counts as away.
        patience: seconds that a server is waited for, beside a longer wait that it names; 0: it is not waited for.
        longest: seconds of the longest wait that a throttling server may name.
        clean: takes out of words what no message may hold.
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
        self.name = name
        self._gate = Gate(concurrency)
        self._tries, self._patience, self._longest, self._clean = tries, patience, longest, clean
        self._waits_until, self._wait = 0.0, ""
        self._changed = Condition()
        self._answers = self._asking = 0
        self._outage: _Outage | None = None

    @property
    def width(self) -> int:
        """Requests that may be under way at once, now."""
        return self._gate.width

    @property
    def wait(self) -> str:
        """The reason for which requests wait now, if it takes long, in a clause; empty: none."""
        return self._wait if self._outage is not None or time.monotonic() < self._waits_until else ""

    def call(
        self, send: Callable[[], Sent], read: Callable[[Sent], Result], check_stop: CheckStop = lambda: None
    ) -> Outcome[Result]:
        """Make a request until it is answered, refused or given up; see `call_one_of`.

        Args:
            send: makes it once; raises `Fault` when it brings nothing.
            read: see `call_one_of`.
            check_stop: likewise.
        """
        return self.call_one_of(lambda: (self._gate, send), read, check_stop)

    def call_one_of(
        self,
        choose: Callable[[], tuple[Gate, Callable[[], Sent]]],
        read: Callable[[Sent], Result],
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """The same, where several endpoints, each with a gate of its own, give the same answer.

        Args:
            choose: for each try, the gate to pass and what makes the request once behind it; raises `Fault` when it
                brings nothing.
            read: makes the result of what was sent back, while others ask; raises `Fault` when there is none in it.
            check_stop: asked again and again by a request that waits; raises what ends the waiting.

        Returns:
            The answer; or the fault: a refusal, a whole answer that is not what was asked, or one that this request
            alone has.

        Raises:
            Rejected: it will not succeed however often it is made (401, 403, 404, 400 …).
            Unavailable: the server was away, or throttled, for longer than the patience.
        """
        request = _Request(self._answers)
        with self._changed:
            self._asking += 1
        try:
            while True:
                outage = self._admit(check_stop)
                try:
                    result = self._once(*choose(), read, request, check_stop)
                except Fault as fault:
                    pause, given_up = self._judge(fault, request, outage)
                    if given_up is not None:
                        return given_up
                else:
                    return Outcome(result, None, request.calls)
                finally:
                    self._leave(outage)
                end = time.monotonic() + pause
                while (left := end - time.monotonic()) > 0:
                    check_stop()
                    time.sleep(min(EVERY, left))
        finally:
            with self._changed:
                self._asking -= 1

    def _once(
        self,
        gate: Gate,
        send: Callable[[], Sent],
        read: Callable[[Sent], Result],
        request: _Request,
        check_stop: CheckStop,
    ) -> Result:
        request.received = False
        with gate.passing(check_stop) as since:
            request.calls += 1
            try:
                sent = send()
            except Fault as fault:
                if fault.throttled:
                    gate.throttled(since, self._patience if (fault.wait or 0.0) > self._longest else fault.wait)
                raise
        request.received = True
        result = read(sent)
        gate.succeeded()
        self._note_answer()
        return result

    def _note_answer(self) -> None:
        """The server is there: an outage is over."""
        with self._changed:
            self._answers += 1
            self._outage = None
            self._changed.notify_all()

    def _admit(self, check_stop: CheckStop) -> _Outage | None:
        """Wait while the server is away; the outage, when it is this request's turn to see whether that is over."""
        me = get_ident()
        with self._changed:
            outage = self._outage
            if outage is None:
                return None
            outage.queue.append(me)
            try:
                while self._outage is outage:
                    left = outage.until - time.monotonic()
                    if outage.prober in (None, me) and outage.queue[0] == me and left <= 0:
                        outage.prober = me
                        return outage
                    self._changed.wait(min(EVERY, left) if left > 0 else EVERY)
                    check_stop()
            finally:
                outage.queue.remove(me)
        return None

    def _leave(self, outage: _Outage | None) -> None:
        """Let the next request see whether the outage is over."""
        if outage is not None:
            with self._changed:
                outage.prober = None
                self._changed.notify_all()

    def _judge(self, fault: Fault, request: _Request, outage: _Outage | None) -> tuple[float, Outcome[Any] | None]:
        """Return the seconds until a request with this fault is made again, or its outcome."""
        fault.words = self._clean(fault.words)
        if not fault.heals:
            self._note_answer()
            if fault.refusal or fault.whole:
                return 0.0, Outcome(None, fault.with_traceback(None), request.calls)
            raise self._rejected(fault) from None
        with self._changed:
            request.note(fault, self._answers, self._patience)
            if self._outage is None and request.streak >= self._tries:
                self._outage = outage = _Outage(request.patience, request.streak)
            if self._outage is None or self._outage is outage:
                given_up = self._give_up(fault, request, outage)
                pause = self._pause(fault, request.streak if outage is None else outage.faults)
                self._tell(fault, pause, outage)
                if outage is None or given_up is not None:
                    return pause, given_up
                outage.until, outage.faults = time.monotonic() + pause, outage.faults + 1
        return 0.0, None

    def _give_up(self, fault: Fault, request: _Request, outage: _Outage | None) -> Outcome[Any] | None:
        """Return the outcome of a request that is given up; None to make it again.

        Raises:
            Unavailable: because its server is away, or throttles.
        """
        beside, alone = request.beside, Outcome[Any](None, fault, request.calls, alone=True)
        patience = request.patience if outage is None else outage.patience
        if not self._patience:
            return alone if request.streak >= self._tries else None
        if not patience.over(fault, self._patience, self._longest):
            return alone if fault.own and beside >= 2 * self._tries and not request.received else None
        if outage is None and beside and not fault.throttled and not request.received:
            return alone
        if self._asking == 1 and fault.own and not request.received:
            return replace(alone, stops=True)
        waited = time.monotonic() - patience.since
        patience.renew(self._patience)
        duration = f"{waited:.0f} s" if waited < 100 else f"{waited / 60:.0f} minutes"
        raise Unavailable(f"{self.name} gave no answer for {duration} (the last fault: {fault}).") from None

    def _rejected(self, fault: Fault) -> Rejected:
        if fault.untrusted:
            return Rejected(
                f"{self.name} is not trusted ({fault}): name its authority's file in SSL_CERT_FILE, "
                "or give the address that its certificate is for."
            )
        return Rejected(f"{self.name} rejects the request with {fault}", fault.status)

    def _pause(self, fault: Fault, faults: int) -> float:
        """Seconds until the next try, after so many faults in a row."""
        throttled = fault.throttled and self._outage is None
        if fault.wait is not None:
            return 0.0 if throttled else min(fault.wait, self._patience or MOST)  # the gate holds throttled ones back
        longest = FIRST if throttled else min(MOST, FIRST * 2 ** min(faults - 1, 30))
        return random.uniform(longest / 4, longest)

    def _tell(self, fault: Fault, seconds: float, outage: _Outage | None) -> None:
        """Tell that the next try is so far away, unless it is near or a longer wait is told."""
        log.info("%s: %s; trying again, %d at once", self.name, fault, self._gate.width)
        seconds = max(fault.wait or 0.0, seconds) if fault.throttled else seconds
        until = time.monotonic() + seconds
        if outage is None and (seconds < WORTH_TELLING or until <= self._waits_until):
            return
        reason = (
            "rate limited by the server until"
            if fault.throttled
            else f"no answer from the server ({fault}), trying again at"
        )
        self._wait, self._waits_until = f"{reason} {_clock(seconds)}", until
        log.log(
            logging.INFO if outage is None else logging.WARNING, "%s: %s", self.name, self._wait
        )  # outside a run, too


def policy_of(given: Connection, name: str, concurrency: int, credentials: Credentials) -> Policy:
    """The policy of an endpoint that is reached so; messages call it `name`."""
    tries, patience = given.tries, given.patience
    return Policy(name, concurrency=concurrency, tries=tries, patience=patience, clean=credentials.clean)


@dataclass
class _Patience:
    """The time for which a server is waited for."""

    since: float
    until: float

    def over(self, fault: Fault, patience: float, longest: float) -> bool:
        now, named = time.monotonic(), (fault.wait or 0.0) if fault.throttled else 0.0
        if named > patience / 2:
            self.until = max(self.until, min(now + named + patience, self.since + longest))
        return now >= self.until or named > longest

    def renew(self, patience: float) -> None:
        self.since = time.monotonic()
        self.until = self.since + patience


@dataclass
class _Outage:
    """A server that is away: how long it is waited for, how often it has failed in a row, and who asks it next."""

    patience: _Patience
    faults: int
    until: float = 0.0
    prober: int | None = None
    queue: deque[int] = field(default_factory=deque)


@dataclass
class _Request:
    """A request: its calls, its faults since others were last answered, and how often they were in between."""

    seen: int
    calls: int = 0
    streak: int = 0
    beside: int = 0
    received: bool = False
    patience: _Patience = field(default_factory=lambda: _Patience(0.0, 0.0))

    def note(self, fault: Fault, answers: int, patience: float) -> None:
        if not self.patience.since:
            self.patience.renew(patience)
        if answers != self.seen:
            self.seen, self.streak = answers, 0
            self.beside += not fault.throttled
        self.streak += 1


def _clock(seconds: float) -> str:
    """The time of day in so many seconds, with the date if it is another day's."""
    now = datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"{then:%H:%M:%S}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%S}"
